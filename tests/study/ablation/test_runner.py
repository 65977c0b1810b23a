"""Runs of several ranks: the same result as one, a rank that dies, a machine that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clipmill.manifests import disk
from clipmill.manifests.schema import Ablation, Blend
from clipmill.study import runner
from clipmill.study.arms import Run, expand_runs
from clipmill.study.runner import Child, Outcome, request_of, train_and_evaluate
from clipmill.train.formats import model_files, open_clip_files
from clipmill.train.model.clip import CLIP
from clipmill.train.sizing.device_fit import DEVICE_SHARE
from tests.support import processes
from tests.support.ablations import TRAIN, Ran, changed, tiny_ablation


def test_every_run_ends_with_metrics_in_its_folder(ran: Ran) -> None:
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


def test_the_same_seed_is_the_same_run_and_another_is_not(ran: Ran) -> None:
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


def test_what_is_done_is_not_done_again(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, out, outcomes = ran
    monkeypatch.setattr(runner, "run_in_children", no_work)
    again = runner.run_all(tiny, out)
    assert all(o.reused for o in again)
    assert [o.metrics for o in again] == [o.metrics for o in outcomes]


def test_only_what_is_missing_is_done(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    ran: Ran,
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
        until = time.monotonic() + 900
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
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, outcomes = ran
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pool, data = outcomes[0].run.blend.pools["web"], ran[0].evaluate[0].data
    tiny = tiny_ablation(pool, data, arms={"raw": "web/all"}, jobs=2)
    on_ray = runner.run_all(tiny, str(tmp_path), engine="ray")
    assert [o.error for o in on_ray] == ["", ""]
    assert [o.metrics for o in on_ray] == [o.metrics for o in outcomes[:2]]


def test_an_error_is_an_answer(tiny_pool: str, data: str, tmp_path: Path) -> None:
    tiny = tiny_ablation(tiny_pool, data, train={**TRAIN, "batch_size": 64})
    run = expand_runs(tiny, str(tmp_path))[0]
    answer = runner.train_and_evaluate(runner.request_of(run, tiny.evaluate, 1))
    assert answer["refused"]
    assert answer["error"].startswith("ValueError: fewer rows than a batch")


def test_a_model_that_became_nan_is_a_failed_run(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: object
) -> None:
    tiny = tiny_ablation(tiny_pool, data)
    run = expand_runs(tiny, str(tmp_path))[0]
    request = runner.request_of(run, tiny.evaluate, 1)
    assert "metrics" in runner.train_and_evaluate(request)
    broken: CLIP = open_clip_files.load_export(f"{run.out}/export")
    with torch.no_grad():
        next(broken.visual.parameters()).fill_(torch.nan)
    open_clip_files.save_export(broken, f"{run.out}/export")
    record = disk.read_json(f"{run.out}/run.json")  # as if training had written it
    export = model_files.source_files(f"{run.out}/export")
    disk.write_json(f"{run.out}/run.json", {**record, "export": export})
    answer = runner.train_and_evaluate(request)
    assert answer["refused"]
    assert "task 'colours': the image features of 'blue/0.png' are not finite" in answer["error"]


ROOT = Path(__file__).resolve().parents[3]


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "clipmill.study.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_child_ends_with_its_parent() -> None:
    process = start()
    process.communicate(timeout=900)  # closes its stdin
    assert process.returncode == 0


@pytest.mark.slow
def test_stdout_has_answers_only_and_a_line_that_is_no_request_ends_the_child() -> None:
    process = start()
    assert process.stdin is not None
    process.stdin.write("this is no JSON\n")
    process.stdin.flush()
    process.wait(timeout=900)
    assert process.returncode == 1
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read() == ""
    assert json.JSONDecodeError.__name__ in process.stderr.read()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


WEIGHTS = "export/open_clip_model.safetensors"


def of_two_ranks(pool: str, data: str, **changes: object) -> Ablation:
    train = {**TRAIN, "micro_batch": "auto"}
    return tiny_ablation(pool, data, **{"train": train, "ranks": 2, **changes})


def assert_same_result(out: str, reference: str) -> None:
    """Weights and evaluation of two runs agree up to rounding."""
    weights = load_file(disk.join(out, WEIGHTS))
    for name, expected in load_file(disk.join(reference, WEIGHTS)).items():
        assert (weights[name] - expected).abs().max() < 1e-4, name
    assert disk.read_json(disk.join(out, "run.json"))["world"] == 2


@pytest.mark.slow
def test_a_mistake_of_a_rank_is_the_answer(tiny_pool: str, data: str, tmp_path: Path) -> None:
    two = of_two_ranks(tiny_pool, data, train={**TRAIN, "batch_size": 64})
    request = request_of(expand_runs(two, str(tmp_path))[0], two.evaluate, 2)
    answer = train_and_evaluate(request)
    assert answer["refused"]
    assert answer["error"].startswith("ValueError: fewer rows than a batch")


@pytest.mark.slow
def test_two_ranks_train_what_one_does_though_one_is_killed(
    ran: Ran,
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = processes.new_mark()
    monkeypatch.setenv(processes.MARK, mark)
    _, _, reference = ran
    two = of_two_ranks(tiny_pool, data, arms={"raw": "web/all"})
    runs, answers = expand_runs(two, str(tmp_path)), []
    ask = runner.Child.ask

    def note(self: runner.Child, request: runner.Json) -> runner.Json:
        answers.append(ask(self, request))
        return answers[-1]

    monkeypatch.setattr(runner.Child, "ask", note)
    ended: list[Outcome] = []
    work = threading.Thread(
        target=runner.run_in_children,
        args=(runs[:1], two.evaluate, 1, str(tmp_path), ended.append),
    )
    work.start()
    first, second = processes.wait_for(mark, "clipmill.study.child", "request.json", count=2)
    os.kill(second, signal.SIGKILL)
    work.join(timeout=900)
    answer = {key: answers[0][key] for key in ("error", "refused")}
    assert answer == {"error": "one of 2 ranks died by SIGKILL", "refused": False}
    assert not processes.is_alive(first)
    assert [outcome.error for outcome in ended] == [""]
    assert len(answers) == 2
    assert_same_result(runs[0].out, reference[0].run.out)
    assert (ended[0].metrics or {})["colours"]["accuracy"] == (reference[0].metrics or {})[
        "colours"
    ]["accuracy"]


@pytest.mark.slow
def test_ranks_end_with_the_process_that_started_them(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = processes.new_mark()
    monkeypatch.setenv(processes.MARK, mark)
    two = of_two_ranks(tiny_pool, data)
    child = runner.Child(runner.environment(0, 1, 0, 2), tmp_path / "log")
    request = request_of(expand_runs(two, str(tmp_path))[0], two.evaluate, 2)
    answers: list[runner.Json] = []
    asking = threading.Thread(target=lambda: answers.append(child.ask(request)))
    asking.start()
    ranks = processes.wait_for(mark, "clipmill.study.child", "request.json", count=2)
    assert child.process is not None
    child.process.kill()
    asking.join(timeout=900)
    assert "its process ended with -9" in answers[0]["error"]
    until = time.monotonic() + 900
    while any(processes.is_alive(rank) for rank in ranks) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(processes.is_alive(rank) for rank in ranks)
    child.end()


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_a_worker_that_is_killed_costs_an_attempt_and_not_the_run(
    ran: Ran,
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, reference = ran
    mark = processes.new_mark()
    monkeypatch.setenv(processes.MARK, mark)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    two = of_two_ranks(tiny_pool, data, arms={"raw": "web/all"})
    runs = expand_runs(two, str(tmp_path))
    killed: list[int] = []

    def kill() -> None:
        ranks = processes.wait_for(mark, "clipmill.study.child", "request.json", count=2)
        killed.append(processes.parent_of(ranks[0]))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ended: list[Outcome] = []
    runner.run_on_ray(runs[:1], two.evaluate, 1, str(tmp_path), ended.append)
    killer.join()
    assert len(killed) == 1
    assert [outcome.error for outcome in ended] == [""]
    assert_same_result(runs[0].out, reference[0].run.out)


@pytest.mark.slow
@pytest.mark.ray
def test_ranks_on_several_machines_are_workers_of_ray_train(
    ran: Ran,
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, reference = ran
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(runner, "_is_spread", lambda ranks, nodes: True)
    two = of_two_ranks(tiny_pool, data, arms={"raw": "web/all"})
    runs = expand_runs(two, str(tmp_path))
    ended: list[Outcome] = []
    runner.run_on_ray(runs[:1], two.evaluate, 1, str(tmp_path), ended.append)
    assert [outcome.error for outcome in ended] == [""]
    assert_same_result(runs[0].out, reference[0].run.out)


def node(alive: bool = True, **resources: float) -> dict[str, object]:
    return {"Alive": alive, "Resources": resources}


def test_ranks_spread_where_no_machine_has_room_for_all() -> None:
    machines = [node(CPU=64.0, GPU=8.0), node(CPU=64.0, GPU=8.0), node(alive=False, GPU=99.0)]
    assert not runner._is_spread(8, machines)
    assert runner._is_spread(16, machines)
    with pytest.raises(ValueError, match="ranks is 17, but the cluster has 16 GPUs"):
        runner._is_spread(17, machines)
    assert not runner._is_spread(4, [node(CPU=4.0)])
