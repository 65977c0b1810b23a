"""Runs of several ranks: the same result as one, a rank that dies, a machine that is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from manifests import disk
from manifests.schema import Ablation
from tests.support import processes
from tests.support.ablations import TRAIN, tiny_ablation
from train.ablation import runner
from train.ablation.arms import expand_runs
from train.ablation.runner import Outcome, request_of, train_and_evaluate

WEIGHTS = "export/open_clip_model.safetensors"
pytestmark = pytest.mark.slow


def of_two_ranks(pool: str, data: str, **changes: object) -> Ablation:
    train = {**TRAIN, "micro_batch": "auto"}
    return tiny_ablation(pool, data, **{"train": train, "ranks": 2, **changes})


def assert_same_result(out: str, reference: str) -> None:
    """Weights and evaluation of two runs agree up to rounding."""
    weights = load_file(disk.join(out, WEIGHTS))
    for name, expected in load_file(disk.join(reference, WEIGHTS)).items():
        assert (weights[name] - expected).abs().max() < 1e-4, name
    assert disk.read_json(disk.join(out, "run.json"))["world"] == 2


def test_two_ranks_train_what_one_does(
    ran: tuple[Ablation, str, list[Outcome]], tiny_pool: str, data: str, tmp_path: Path
) -> None:
    _, _, reference = ran
    two = of_two_ranks(tiny_pool, data, arms={"raw": "web/all"})
    ended: list[Outcome] = []
    runs = expand_runs(two, str(tmp_path))
    runner.run_in_children(runs[:1], two.evaluate, 1, str(tmp_path), ended.append)
    assert [outcome.error for outcome in ended] == [""]
    assert_same_result(runs[0].out, reference[0].run.out)
    assert ended[0].metrics is not None
    accuracy = ended[0].metrics["colours"]["accuracy"]
    assert reference[0].metrics is not None
    assert accuracy == reference[0].metrics["colours"]["accuracy"]


def test_a_mistake_of_a_rank_is_the_answer(tiny_pool: str, data: str, tmp_path: Path) -> None:
    two = of_two_ranks(tiny_pool, data, train={**TRAIN, "batch_size": 64})
    request = request_of(expand_runs(two, str(tmp_path))[0], two.evaluate, 2)
    answer = train_and_evaluate(request)
    assert answer["refused"]
    assert answer["error"].startswith("ValueError: fewer rows than a batch")


def test_a_rank_that_is_killed_costs_an_attempt_and_not_the_run(
    tiny_pool: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mark = processes.new_mark()
    monkeypatch.setenv(processes.MARK, mark)
    two = of_two_ranks(tiny_pool, data)
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
    first, second = processes.wait_for(mark, "train.ablation.child", "request.json", count=2)
    os.kill(second, signal.SIGKILL)
    work.join(timeout=240)
    answer = {key: answers[0][key] for key in ("error", "refused")}
    assert answer == {"error": "one of 2 ranks died by SIGKILL", "refused": False}
    assert not processes.is_alive(first)
    assert [outcome.error for outcome in ended] == [""]
    assert len(answers) == 2


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
    ranks = processes.wait_for(mark, "train.ablation.child", "request.json", count=2)
    assert child.process is not None
    child.process.kill()
    asking.join(timeout=60)
    assert "its process ended with -9" in answers[0]["error"]
    until = time.monotonic() + 60
    while any(processes.is_alive(rank) for rank in ranks) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(processes.is_alive(rank) for rank in ranks)
    child.end()


@pytest.mark.ray
def test_on_ray_a_worker_that_is_killed_costs_an_attempt_and_not_the_run(
    ran: tuple[Ablation, str, list[Outcome]],
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
        ranks = processes.wait_for(mark, "train.ablation.child", "request.json", count=2)
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


@pytest.mark.ray
def test_ranks_on_several_machines_are_workers_of_ray_train(
    ran: tuple[Ablation, str, list[Outcome]],
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
