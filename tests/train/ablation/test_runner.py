from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import Ablation, Blend
from tests.support.ablations import TRAIN, changed, tiny_ablation
from train.ablation import runner
from train.ablation.arms import Run, expand_runs
from train.ablation.runner import Child, Outcome, request_of
from train.sizing.device_fit import DEVICE_SHARE


def test_every_run_ends_with_metrics_in_its_folder(
    ran: tuple[Ablation, str, list[Outcome]],
) -> None:
    tiny, out, outcomes = ran
    assert [o.run for o in outcomes] == list(expand_runs(tiny, out))
    for outcome in outcomes:
        assert outcome.error == ""
        assert not outcome.reused
        record = disk.read_json(disk.join(outcome.run.out, "run.json"))
        assert record["blend_hash"] == disk.content_hash(outcome.run.blend.document())
        assert record["seed"] == outcome.run.seed
        stored = disk.read_metadata(disk.join(outcome.run.out, "eval", "colours.parquet"))[
            "metrics"
        ]
        assert outcome.metrics == {"colours": stored}
    assert (
        disk.from_plain(Blend, disk.read_json(disk.join(out, "blends", "half.json")))
        == outcomes[2].run.blend
    )


def test_the_same_seed_is_the_same_run_and_another_is_not(
    ran: tuple[Ablation, str, list[Outcome]],
) -> None:
    _, out, _ = ran
    weights = {
        name: Path(out, "runs", name, "export", "open_clip_model.safetensors").read_bytes()
        for name in ("raw/seed-0", "raw/seed-1", "a_a/seed-0")
    }
    assert len(set(weights.values())) == 3


def no_work(*_: object) -> None:
    pytest.fail("a run was repeated")


def pretend(asked: list[tuple[str, int]]) -> Callable[..., None]:
    """Instead of `run_in_children`: notes the runs, which all fail."""

    def fail_all(
        to_do: list[Run], tasks: object, jobs: int, out: str, report: Callable[[Outcome], None]
    ) -> None:
        for run in to_do:
            asked.append((run.arm, run.seed))
            report(Outcome(run=run, error="not now"))

    return fail_all


def test_what_is_done_is_not_done_again(
    ran: tuple[Ablation, str, list[Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, outcomes = ran
    monkeypatch.setattr(runner, "run_in_children", no_work)
    again = runner.run_all(tiny, out)
    assert all(o.reused for o in again)
    assert [o.metrics for o in again] == [o.metrics for o in outcomes]


def test_the_log_has_the_metric_that_decides(
    tiny_pool: str, data: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"name": "captions", "kind": "retrieval", "data": data, "metric": "recall@10"}
    by_recall = tiny_ablation(tiny_pool, data, evaluate=[task], primary="captions")
    scores = {"captions": {"recall@1": 0.25, "recall@10": 0.75}}

    def end_all(to_do: list[Run], *others: object) -> None:
        report = others[-1]
        assert callable(report)
        for run in to_do:
            report(Outcome(run=run, metrics=scores))

    monkeypatch.setattr(runner, "run_in_children", end_all)
    with caplog.at_level(logging.INFO):
        runner.run_all(by_recall, "/nowhere")
    assert "captions recall@10 0.7500 (" in caplog.text
    assert "recall@1 " not in caplog.text


def test_only_what_is_missing_is_done(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, _ = ran
    shutil.copytree(out, tmp_path / "copy")
    copy = str(tmp_path / "copy")
    os.remove(disk.join(copy, "runs/raw/seed-1/run.json"))
    os.remove(disk.join(copy, "runs/half/seed-0/eval/colours.parquet"))
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(runner, "run_in_children", pretend(asked))
    outcomes = runner.run_all(tiny, copy)
    assert asked == [("raw", 1), ("half", 0)]
    assert [o.error for o in outcomes] == ["", "not now", "not now", "", "", ""]


def test_a_changed_view_replaces_what_it_makes_stale_and_keeps_the_rest(
    ran: tuple[Ablation, str, list[Outcome]],
    add_view: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny, out, outcomes = ran
    shutil.copytree(out, tmp_path / "copy")
    pool = str(tmp_path / "pool")
    shutil.copytree(outcomes[0].run.blend.pools["web"], pool)
    moved = changed(tiny, pools={"web": {"out": pool}})
    copy = str(tmp_path / "copy")
    monkeypatch.setattr(runner, "run_in_children", no_work)
    assert all(o.reused for o in runner.run_all(moved, copy)), "a pool may be moved"

    add_view(pool, "half", lambda shard, row: row % 3 == 0)
    disk.write_json(disk.join(copy, "results.json"), {"of": "the old runs"})
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(runner, "run_in_children", pretend(asked))
    with caplog.at_level("INFO"):
        again = runner.run_all(moved, copy)
    assert asked == [("half", 0), ("half", 1)]
    assert [o.reused for o in again] == [True, True, False, False, True, True]
    lines = [line for line in caplog.messages if "trained anew" in line]
    assert len(lines) == 2
    assert lines[0].startswith("half seed 0 is trained anew (views.web/half: ")
    kept = lines[0].split("the old run is kept in ")[1]
    assert disk.exists(disk.join(kept, "export", "open_clip_model.safetensors"))
    assert not disk.exists(disk.join(copy, "runs/half/seed-0/run.json"))
    assert not disk.exists(disk.join(copy, "results.json")), "it was of other runs"


def test_other_settings_replace_all_runs(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, out, _ = ran
    monkeypatch.setattr(runner, "run_in_children", no_work)
    logs_more = changed(tiny, train={**TRAIN, "log_every": 1})
    assert all(o.reused for o in runner.run_all(logs_more, out))
    shutil.copytree(out, tmp_path / "copy")
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(runner, "run_in_children", pretend(asked))
    faster = changed(tiny, train={**TRAIN, "lr": 0.1})
    runner.run_all(faster, str(tmp_path / "copy"))
    assert len(asked) == 6


# --- children ------------------------------------------------------------------------------------


def child(tmp_path: Path) -> Child:
    return Child(runner.environment(0, 1, 0), tmp_path / "log")


@pytest.mark.slow
def test_a_child_that_dies_answers_with_that_and_is_started_again(
    tmp_path: Path, tiny_pool: str, data: str
) -> None:
    worker = child(tmp_path)
    try:
        answer = worker.ask(
            {"threads": "none"}
        )  # no such request: the process ends with a traceback
        assert answer == {"error": f"its process ended with 1 (see {tmp_path / 'log'})"}
        assert "set_num_threads expects an int" in (tmp_path / "log").read_text()
        tiny = tiny_ablation(tiny_pool, data)
        run = expand_runs(tiny, str(tmp_path))[0]
        assert "metrics" in worker.ask(request_of(run, tiny.evaluate, 1))
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("answers", "tried", "error"),
    [
        ([{"error": "died"}, {"metrics": {"colours": {"accuracy": 0.5}}}], 2, ""),
        ([{"error": "died"}, {"error": "died again"}], 2, "died again"),
        ([{"error": "ValueError: fewer rows", "refused": True}], 1, "ValueError: fewer rows"),
    ],
)
def test_a_run_is_tried_once_more_unless_a_person_must_act(
    answers: list[dict[str, object]],
    tried: int,
    error: str,
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def ask(self: Child, request: dict[str, object]) -> dict[str, object]:
        asked.append(request)
        return answers[len(asked) - 1]

    monkeypatch.setattr(Child, "ask", ask)
    tiny = tiny_ablation(tiny_pool, data)
    ended: list[Outcome] = []
    runner.run_in_children(
        expand_runs(tiny, str(tmp_path))[:1], tiny.evaluate, 2, str(tmp_path), ended.append
    )
    assert len(asked) == tried
    assert json.loads(json.dumps(asked[0])) == asked[0]
    assert [o.error for o in ended] == [error]


def test_children_share_the_processors_and_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "usable_cores", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runner.environment(1, 3, 0)["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in runner.environment(1, 3, 1)
    assert [runner.environment(n, 3, 2)["CUDA_VISIBLE_DEVICES"] for n in range(3)] == [
        "0",
        "1",
        "0",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert runner.environment(1, 3, 2)["CUDA_VISIBLE_DEVICES"] == "6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    pairs = [runner.environment(n, 3, 4, ranks=2) for n in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in pairs] == ["0,1", "2,3", "0,1"]
    assert [each[DEVICE_SHARE] for each in pairs] == ["2", "1", "2"]
    assert runner.environment(0, 3, 0)[DEVICE_SHARE] == "3", "they share host memory"
    assert runner.threads_of(20) == 1


def test_the_log_says_which_step_the_runs_are_at(
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runner, "PAUSE_S", 0.01)
    ablation = tiny_ablation(tiny_pool, data, arms={"raw": "web/all"})
    first, second = expand_runs(ablation, str(tmp_path))
    for run, lines in ((first, '{"step": 1}\n'), (second, '{"step": 3}\n{"st')):
        Path(run.out).mkdir(parents=True)
        Path(run.out, "log.jsonl").write_text(lines)

    def wait_for(text: str) -> None:
        until = time.monotonic() + 60
        while text not in caplog.text:
            assert time.monotonic() < until, caplog.text
            time.sleep(0.01)

    def work(*_: object) -> None:
        wait_for("0/2 runs are done after 0.0 minutes; no step of a run is logged yet")
        with open(Path(first.out, "log.jsonl"), "a") as log:
            log.write('{"step": 2}\n')
        wait_for(f"minutes; raw seed 0: step 2 of {first.config.steps}\n")

    monkeypatch.setattr(runner, "replace_stale", lambda *_: None)
    monkeypatch.setattr(runner, "run_in_children", work)
    with caplog.at_level("INFO"), pytest.raises(KeyError):  # no run has an outcome
        runner.run_all(ablation, str(tmp_path))


# --- Ray -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_the_same_runs_give_the_same_numbers(
    ran: tuple[Ablation, str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, outcomes = ran
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pool, data = outcomes[0].run.blend.pools["web"], ran[0].evaluate[0].data
    tiny = tiny_ablation(pool, data, arms={"raw": "web/all"}, jobs=2)
    on_ray = runner.run_all(tiny, str(tmp_path), engine="ray")
    assert [o.error for o in on_ray] == ["", ""]
    assert [o.metrics for o in on_ray] == [o.metrics for o in outcomes[:2]]
