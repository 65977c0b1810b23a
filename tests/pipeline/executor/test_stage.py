"""Tickets on both engines: order in a group, second tries, and workers that die."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clipmill import ROOT
from clipmill.manifests import ray_runtime, waits
from clipmill.pipeline.executor import stage
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Outcomes, Report, Stage, Ticket, Work
from tests.support.small_pool import make_pool, rows

pytestmark = pytest.mark.slow

Results = dict[str, dict[str, Any]]
Run = Callable[..., tuple[Report, list[list[str]], Results]]
ENGINES = ["inline", pytest.param("ray", marks=pytest.mark.ray)]


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One embedded Ray for this file."""
    ray_runtime.connect()
    yield
    ray_runtime.disconnect()


@pytest.fixture
def on(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run tickets of [(group, payload)] through a factory of this file; its report and log."""

    def run(
        engine: Any,
        factory: Callable[..., Any],
        tickets: list[tuple[str, dict[str, Any]]],
        **changes: Any,
    ) -> tuple[Report, list[list[str]], Results]:
        if engine == "ray":
            request.getfixturevalue("ray")
        log = tmp_path / "log"
        one = Stage(
            name="s",
            work=factory,
            job={"log": str(log)},
            **changes,
        )
        todo = [
            Ticket(id=str(i), group=group, payload=payload)
            for i, (group, payload) in enumerate(tickets)
        ]
        results: Results = {}
        report = execute(one, todo, engine=engine, on_done=results.__setitem__)
        assert (report.done, report.failures) == (len(results), len(report.failed))
        lines = log.read_text().splitlines() if log.exists() else []
        return report, [line.split() for line in lines], results

    return run


# --- what the workers do --------------------------------------------------------------------------


def note(job: dict[str, Any], *words: str) -> None:
    with open(job["log"], "a") as f:
        f.write(" ".join(words) + "\n")


def obedient(job: dict[str, Any]) -> Work:
    """Does what the payload says."""
    note(job, "factory")

    def work(ticket: Ticket) -> dict[str, Any]:
        note(job, "begin", ticket.group, ticket.id, str(os.getpid()))
        asked = ticket.payload or {}
        time.sleep(asked.get("sleep", 0))
        once = Path(f"{job['log']}.{ticket.id}")
        if "once" in asked and once.exists():
            return {"tries": 2}
        once.touch()
        if asked.get("do") == "raise":
            raise KeyError("no such thing")
        if asked.get("do") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if asked.get("do") == "return a set":
            return {"set": {1, 2}}
        note(job, "end", ticket.group, ticket.id, str(os.getpid()))
        return {"id": ticket.id, "pair": (1, 2)}

    return work


class Tidy:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        note(self.job, "closed")


def refusing(job: dict[str, Any]) -> None:
    raise ValueError("user_agent is missing; set fetch.user_agent")


def broken(job: dict[str, Any]) -> None:
    raise OSError("no weights")


# --- auto ---------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_is_left_of_a_stage_that_is_worth_ray_goes_there(
    on: Run, ray: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    concurrency: int
) -> None:  # fmt: skip
    monkeypatch.setattr(stage, "settled", lambda engine: engine)
    monkeypatch.setattr(stage, "ALONE_S", 0.5)
    monkeypatch.setattr(stage, "WORTH_S", 0.5)
    caplog.set_level("INFO")
    tickets = [(f"g{i % 9}", {"sleep": 0.1}) for i in range(60)]
    tickets[3] = ("g3", {"do": "raise", "once": True})
    report, log, results = on("auto", obedient, tickets, concurrency=concurrency)
    assert (report.done, report.failures, len(results)) == (60, 0, 60)
    of_group: dict[str, list[int]] = {}
    for _, group, number, _ in (line for line in log if line[0] == "begin"):
        if number != "3":
            of_group.setdefault(group, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in of_group.values())
    assert len({line[3] for line in log if line[0] == "begin"} - {str(os.getpid())}) >= 1
    assert any(line[3] == str(os.getpid()) for line in log if line[0] == "begin")
    assert caplog.text.count("go to a Ray of this machine") == 1


def test_a_short_stage_needs_no_ray(on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "run_on_ray", None)
    monkeypatch.setattr(stage, "settled", lambda engine: engine)
    monkeypatch.setattr(stage, "ALONE_S", 0.0)
    report, log, _ = on("auto", obedient, [("g", {})] * 20)
    assert report.done == 20
    assert {line[3] for line in log if line[0] == "begin"} == {str(os.getpid())}


def test_where_a_ray_was_given_auto_is_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray")
    for name in ("RAY_ADDRESS", ray_runtime.JOB_CONFIG):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.delenv(ray_runtime.JOB_CONFIG, raising=False)
        assert ray_runtime.settled("auto") == "auto"
        monkeypatch.setenv(name, "{}")
        assert ray_runtime.settled("auto") == "ray"
        assert ray_runtime.settled("inline") == "inline"


# --- both engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_tickets_of_a_group_run_in_order_and_one_at_a_time(on: Run, engine: str) -> None:
    tickets = [(f"g{i % 5}", {"sleep": 0.01}) for i in range(30)]
    report, log, results = on(engine, obedient, tickets)
    assert report.failed == {}
    assert results == {str(i): {"id": str(i), "pair": [1, 2]} for i in range(30)}
    for group in range(5):
        lines = [
            (line[0], int(line[2]))
            for line in log
            if line[0] != "factory" and line[1] == f"g{group}"
        ]
        assert lines == [(what, i) for i in range(group, 30, 5) for what in ("begin", "end")]
    workers = {line[3] for line in log if line[0] == "begin"}
    assert sum(line[0] == "factory" for line in log) >= len(workers)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_raises_is_tried_twice_and_stops_nothing(
    on: Run, engine: str, concurrency: int
) -> None:
    fails, once = {"do": "raise"}, {"do": "raise", "once": True}
    tickets = [("a", {"sleep": 0.2}), ("a", fails), ("a", {}), ("b", {}), ("b", once)]
    report, log, results = on(engine, obedient, tickets, concurrency=concurrency)
    assert list(report.failed) == ["1"]
    assert re.fullmatch(r"KeyError: 'no such thing' \(test_stage\.py:\d+\)", report.failed["1"])
    assert set(results) == {"0", "2", "3", "4"}
    assert results["4"] == {"tries": 2}
    begun = [line[2] for line in log if line[0] == "begin"]
    assert Counter(begun) == {"0": 1, "1": 2, "2": 1, "3": 1, "4": 2}
    if concurrency == 1:
        assert [ticket for ticket in begun if ticket in "012"] == ["0", "1", "1", "2"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_factory_that_refuses_is_a_persons_mistake(on: Run, engine: str) -> None:
    with pytest.raises(ValueError, match=r"^user_agent is missing; set fetch\.user_agent$"):
        on(engine, refusing, [("a", {})])
    with pytest.raises(RuntimeError, match="broken raised OSError: no weights"):
        on(engine, broken, [("a", {})])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_holds_something_is_closed(on: Run, engine: str) -> None:
    _, log, results = on(engine, Tidy, [("a", {})])
    assert results == {"0": {}}
    assert log == [["closed"]]


# --- several at a time ----------------------------------------------------------------------------


def overlaps(log: list[list[str]]) -> int:
    """The most tickets that were under way at once in one process."""
    most, now = 0, dict[str, int]()
    for what, _, _, pid in (line for line in log if line[0] != "factory"):
        now[pid] = now.get(pid, 0) + (1 if what == "begin" else -1)
        most = max(most, now[pid])
    return most


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_holds_as_many_tickets_as_the_stage_says(on: Run, engine: str) -> None:
    _, log, results = on(engine, obedient, [("a", {"sleep": 0.3})] * 6, concurrency=3)
    assert set(results) == {str(i) for i in range(6)}
    assert overlaps(log) == 3
    assert len({line[3] for line in log if line[0] == "begin"}) == 1, (
        "a group is on one worker at a time"
    )
    for what in ("begin", "end"):
        assert {int(line[2]) for line in [line for line in log if line[0] == what][:3]} == {0, 1, 2}


@pytest.mark.ray
def test_a_worker_that_is_killed_with_two_tickets_under_way(on: Run) -> None:
    """Both are tried again, each alone: the one that is to blame fails, its neighbour does not."""
    tickets = [
        ("a", {"sleep": 1.0}),
        ("a", {"sleep": 0.4, "do": "die"}),
        ("a", {}),
        ("b", {}),
        ("b", {}),
    ]
    report, log, results = on("ray", obedient, tickets, concurrency=2)
    assert list(report.failed) == ["1"]
    assert "the worker died" in report.failed["1"]
    assert set(results) == {"0", "2", "3", "4"}
    times = Counter(line[2] for line in log if line[0] == "begin")
    assert (times["0"], times["1"], times["2"]) == (2, 2, 1)
    alone = [line for line in log if line[0] != "factory" and line[1] == "a"]
    second = next(i for i, line in enumerate(alone) if line[2] == "0" and i > 1)
    assert [(line[0], line[2]) for line in alone[second:]] == [
        ("begin", "0"), ("end", "0"), ("begin", "1"), ("begin", "2"), ("end", "2"),
    ]  # fmt: skip


# --- mistakes -------------------------------------------------------------------------------------


def test_bad_input_is_refused(on: Run) -> None:
    with pytest.raises(ValueError, match="engine is 'spark'; it must be auto, inline or ray"):
        on("spark", obedient, [("a", {})])
    with pytest.raises(AssertionError, match="same id"):
        execute(
            Stage(name="s", work=obedient),
            [Ticket(id="1", group="a"), Ticket(id="1", group="b")],
            engine="inline",
        )


# --- Ray ------------------------------------------------------------------------------------------


def reads_a_pipe(job: dict[str, Any]) -> Work:
    """Opens a pipe that nobody writes to, where the payload names one that is there."""

    def work(ticket: Ticket) -> dict[str, Any]:
        note(job, "begins", ticket.id)
        if os.path.exists(pipe := ticket.payload.get("pipe", "")):
            os.open(pipe, os.O_RDONLY)
        return {"pid": os.getpid()}

    return work


@pytest.mark.ray
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_ticket_that_hangs_is_named_and_ended_with_its_worker(
    on: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    comes_back: bool,
) -> None:
    monkeypatch.setattr(stage, "ASK_EVERY_S", 0.5)
    monkeypatch.setattr(waits, "LINE_S", 2.0)
    monkeypatch.setattr(waits, "LIMIT_S", 5.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fail = Outcomes.record

    def record(outcomes: Outcomes, ticket: Ticket, kind: str, text: str) -> bool:
        if kind == "died" and comes_back:
            pipe.unlink()
        return fail(outcomes, ticket, kind, text)

    monkeypatch.setattr(Outcomes, "record", record)
    tickets: list[tuple[str, dict[str, Any]]] = [("a", {"pipe": str(pipe)}), ("b", {}), ("c", {})]
    report, log, results = on("ray", reads_a_pipe, tickets)
    where = rf"s 0 \(test_stage.py:\d+ in work\) on {re.escape(socket.gethostname())}, process \d+"
    assert re.search(rf"s: 0 has done nothing for [2-4] s: {where}", caplog.text), caplog.text
    ended = rf"0 has done nothing for [5-8] s: {where}; its worker was ended"
    assert re.search(f"0 failed in try 1 of 2: {ended}", caplog.text)
    assert log.count(["begins", "0"]) == 2
    assert report.done == len(results) == (3 if comes_back else 2)
    if not comes_back:
        assert re.fullmatch(ended, report.failed["0"])


SHORT = """
import sys
from clipmill.manifests import waits
waits.LINE_S, waits.LIMIT_S = 1.0, 6.0
from clipmill.commands.app import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_whose_own_task_hangs_says_where_and_ends(tmp_path: Path) -> None:
    """In place of a tar there is a pipe."""
    pool = make_pool(tmp_path / "pool", rows(20))
    tar = Path(pool) / "shards" / "00001.tar"
    tar.rename(away := tar.with_suffix(".away"))
    os.mkfifo(tar)
    words = ["score", pool, "--filters", "picture", "--engine", "inline"]
    command = [sys.executable, "-c", SHORT, *words]
    hung = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert hung.returncode == 3
    where = r"score 00001 \(files.py:\d+ in file_sha256\)"
    assert re.search(rf"warning: nothing has been done for \d+ s: {where}", hung.stderr)
    last = hung.stderr.strip().splitlines()[-1]
    ended = rf"error: nothing has been done for \d+ s: {where}; what is committed stays; run .*"
    assert re.fullmatch(ended, last)
    away.replace(tar)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.mark.ray
def test_the_embedded_ray_listens_on_loopback(ray: None) -> None:
    import ray as r

    cluster: Any = r
    assert cluster.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    assert [node["NodeManagerAddress"] for node in cluster.nodes()] == ["127.0.0.1"]


@pytest.mark.ray
def test_a_cluster_that_is_there_is_joined_and_left_running(ray: None, tmp_path: Path) -> None:
    import ray as r

    script = (
        "import json, sys\nfrom clipmill.pipeline.executor.stage import *\n"
        "from clipmill.pipeline.executor.tickets import *\n"
        "from tests.pipeline.executor.test_stage import obedient\n"
        "tickets = [Ticket(id=str(i), group=str(i % 40)) for i in range(80)]\n"
        "work = Stage(name='s', work=obedient, job={'log': sys.argv[1]})\n"
        "print(execute(work, tickets, engine='ray').done)\n"
        "from clipmill.manifests.ray_runtime import disconnect; disconnect()"
    )
    environment = {
        **os.environ,
        "RAY_ADDRESS": r.get_runtime_context().gcs_address,
        "PYTHONPATH": ROOT,
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == 80
    assert done.stderr == ""
    assert r.is_initialized()
    cluster: Any = r
    assert cluster.cluster_resources()["CPU"] == os.cpu_count()
