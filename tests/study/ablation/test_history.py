"""What was asked before the runs of an ablation and at every verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.records import read_document
from clipmill.manifests.schema import Ablation
from clipmill.study import history, runner
from clipmill.verdict.pages.schema import StudyResults
from tests.support import commands
from tests.support.ablations import Ran, changed, in_process, measured


def run(ablation: Ablation, folder: Path) -> None:
    """The command, in a folder whose runs are finished."""
    disk.write_json(folder / "asked.json", ablation)
    assert commands.ablate([str(folder / "asked.json"), "--out", str(folder)]) == 0


@pytest.fixture
def folder(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an ablation whose runs are finished: three arms, two seeds."""
    monkeypatch.setattr(runner, "run_in_children", in_process)
    shutil.copytree(ran[1], tmp_path / "out")
    return tmp_path / "out"


def metric(ablation: Ablation, name: str) -> Ablation:
    task = disk.to_plain(ablation.evaluate[0])
    return changed(ablation, evaluate=[{**task, "metric": name}])


def test_a_verdict_is_recorded_once_and_every_change_with_its_date(ran: Ran, folder: Path) -> None:
    tiny = ran[0]
    run(tiny, folder)
    run(tiny, folder)  # the same verdict adds no line
    begun, verdict = history.looks(str(folder))
    assert (begun.state, verdict.state) == ("begun", "complete")
    assert verdict.finished == {"raw": (0, 1), "half": (0, 1), "a_a": (0, 1)}
    assert begun.finished == verdict.finished, "the runs were there before the first line"
    assert history.changes((begun, verdict)) == ()

    run(changed(metric(tiny, "logprob"), equivalence=0.2), folder)
    lines = history.looks(str(folder))
    assert [line.state for line in lines] == ["begun", "complete", "begun", "complete"]
    (change,) = history.changes(lines)
    assert change.lines == (
        "equivalence: None -> 0.2",
        "tasks.colours.metric: accuracy -> logprob",
    )
    assert change.runs == 6
    assert change.date == lines[2].date
    assert change.date.endswith("Z")


def test_the_data_of_an_arm_and_a_prompt_are_part_of_the_design(
    ran: Ran, tmp_path: Path, add_view: Callable[..., None]
) -> None:
    tiny, pool, out = ran[0], str(tmp_path / "pool"), str(tmp_path / "out")
    shutil.copytree(ran[2][0].run.blend.pools["web"], pool)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a {}\n")
    task = disk.to_plain(tiny.evaluate[0]) | {"templates_from": str(prompts)}
    moved = changed(tiny, pools={"web": {"out": pool}}, evaluate=[task])
    history.record_look(moved, out, measured(moved, {"colours": {"raw": [0.5]}}), complete=False)
    (look,) = history.looks(out)
    assert look.finished == {"raw": (0,)}
    assert look.results == disk.content_hash(
        {"raw": {0: {"colours": {"accuracy": 0.5}}}, "half": {}, "a_a": {}}
    )
    add_view(pool, "half", lambda shard, row: row % 3 == 0)
    prompts.write_text("the {}\n")
    history.record_begin(moved, out)
    (change,) = history.changes(history.looks(out))
    keys = [line.partition(":")[0] for line in change.lines]
    assert keys == ["data.half.web/half", "tasks.colours.data_hash"]
    assert change.runs == 1


def test_a_change_before_the_first_run_is_none(ran: Ran, tmp_path: Path) -> None:
    tiny, out = ran[0], str(tmp_path)
    history.record_begin(tiny, out)
    history.record_begin(changed(tiny, seeds=[0, 1, 2]), out)
    assert len(history.looks(out)) == 2
    assert history.changes(history.looks(out)) == ()


def test_a_line_that_is_no_look_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(json.dumps({"date": "today"}) + "\n")
    with pytest.raises(ValueError, match=r"history\.jsonl: line 1 is no record of a look"):
        history.looks(str(tmp_path))


@pytest.mark.slow
def test_seeds_added_after_a_verdict_are_another_look(ran: Ran, folder: Path) -> None:
    """Through the command: the third seed is added after a verdict of two."""
    tiny = ran[0]
    run(tiny, folder)
    assert read_document(str(folder / "results.json"), StudyResults).earlier_looks == ()
    run(tiny, folder)  # the same verdict again is no look
    assert "Look 2" not in read_document(str(folder / "results.json"), StudyResults).verdict
    more = changed(tiny, seeds=[0, 1, 2])
    run(more, folder)
    results = read_document(str(folder / "results.json"), StudyResults)
    assert [look.seeds for look in results.earlier_looks] == [(0, 1)]
    assert "Look 2 at these arms" in results.verdict
    assert {row.looks for row in results.comparisons} == {2}
    run(tiny, folder)  # the first verdict is still the first
    assert read_document(str(folder / "results.json"), StudyResults).earlier_looks == ()
    run(metric(more, "logprob"), folder)
    metrics = read_document(str(folder / "results.json"), StudyResults).earlier_looks
    assert [(len(look.seeds), look.metric) for look in metrics] == [
        (2, "accuracy"),
        (3, "accuracy"),
    ]


def test_looks_with_other_training_settings_do_not_count(ran: Ran, folder: Path) -> None:
    tiny = ran[0]
    run(tiny, folder)
    longer = changed(tiny, seeds=[0, 1, 2], train={**tiny.train, "lr": 1e-3})
    assert history.earlier_looks(longer, history.looks(str(folder))) == ()
    assert len(history.earlier_looks(changed(tiny, seeds=[4, 5]), history.looks(str(folder)))) == 1
