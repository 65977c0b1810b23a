from __future__ import annotations

from pathlib import Path

from manifests import disk
from manifests.schema import Suite, TaskSpec
from tests.support.tasks import changed
from train.evaluation.suite import evaluate_suite, group_averages, readable_tasks
from train.evaluation.tasks import evaluate
from train.model.clip import CLIP


def suite_of(*tasks: TaskSpec, **groups: tuple[str, ...]) -> Suite:
    return Suite(name="small", tasks=tasks, groups=groups)


def test_what_is_present_is_evaluated_and_complete_groups_are_averaged(
    colours: TaskSpec, captioned: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    named = changed(colours, metric="mean_class_accuracy")
    gone = changed(colours, name="gone", data=str(tmp_path / "gone"))
    damaged = changed(colours, name="damaged", templates=["none"])
    both = ("colours", "captioned")
    suite = suite_of(named, captioned, gone, damaged, both=both, all=(*both, "gone", "damaged"))
    out = str(tmp_path / "out")
    results = evaluate_suite(model, suite, out)
    assert results.metrics == evaluate(model, [named, captioned], str(tmp_path / "again"))
    assert results.deciding == {"colours": "mean_class_accuracy", "captioned": "recall@1"}
    assert results.missing == {"gone": str(tmp_path / "gone")}
    assert "must contain {} once" in results.failed["damaged"]
    mean = (
        results.metrics["colours"]["mean_class_accuracy"] + results.metrics["captioned"]["recall@1"]
    )
    first, second = results.averages
    assert first.value == mean / 2
    assert first.line() == f"both: {mean / 2:.4f}, the mean of 2 tasks"
    assert second.line() == "all: no average, 2 of 4 tasks have no result (gone, damaged)"
    assert f"gone: missing, there is no {tmp_path}/gone" in results.lines()
    assert disk.read_json(tmp_path / "out" / "suite-small.json") == disk.to_plain(results)
    assert [task.name for task in readable_tasks(suite.tasks)] == ["colours", "captioned"]


def test_a_metric_that_a_task_does_not_have_fails_that_task(
    colours: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    wrong = changed(colours, metric="worst_group_accuracy")  # it has no groups
    results = evaluate_suite(model, suite_of(wrong), str(tmp_path / "out"))
    assert "task 'colours' has no worst_group_accuracy, which decides" in results.failed["colours"]
    assert results.deciding == {}


def test_metrics_that_do_not_add_up_have_no_group_average() -> None:
    tasks = [
        {"name": "a", "kind": "classification", "data": "d"},
        {"name": "b", "kind": "retrieval", "data": "d", "metric": "median_rank"},
        {"name": "c", "kind": "classification", "data": "d", "metric": "calibration_error"},
    ]
    fields = {"name": "s", "tasks": tasks, "groups": {"all": ["a", "b", "c"], "one": ["a"]}}
    suite = disk.from_plain(Suite, fields)
    metrics = {"a": {"accuracy": 0.5}, "b": {"median_rank": 120.0}, "c": {"calibration_error": 0.3}}
    deciding = {task: next(iter(of)) for task, of in metrics.items()}
    mixed, one = group_averages(suite, metrics, deciding)
    assert mixed.value is None
    assert mixed.line() == (
        "all: no average, accuracy, median_rank, calibration_error differ in unit or in which "
        "direction is better"
    )
    assert one.value == 0.5
