"""The actors of a stage: how many, what happens when they die. Ray itself is replaced here.

test_stage.py runs stages on a real Ray.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from clipmill.manifests import ray_runtime
from clipmill.pipeline.executor import stage as executor
from clipmill.pipeline.executor import tickets as outcomes
from clipmill.pipeline.executor.stage import MAX_FAILED_STARTS, ActorPool, how_it_died, pool_size
from clipmill.pipeline.executor.tickets import (
    Outcomes,
    Report,
    Stage,
    Ticket,
    TicketQueue,
    Work,
    Worker,
)
from clipmill.pipeline.progress.state import Measure, StageCounter, WorkerReport


class RayError(Exception):
    """Takes the place of ray.exceptions.RayError."""


class NodeDiedError(RayError): ...


class OutOfMemoryError(RayError): ...


class ActorUnavailableError(RayError): ...


class ActorDiedError(RayError):
    preempted = False


EXCEPTIONS = types.SimpleNamespace(
    RayError=RayError,
    NodeDiedError=NodeDiedError,
    OutOfMemoryError=OutOfMemoryError,
    ActorUnavailableError=ActorUnavailableError,
)
NODE_IS_GONE = ActorDiedError("The actor died because its node has died. Node Id: 3f")


class Reference:
    """An answer that is there already, or the death of its actor."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Method:
    """`actor.method.remote(...)`, run at once."""

    def __init__(self, function: Callable[..., Any], death: RayError | None) -> None:
        self.function, self.death = function, death

    def options(self, concurrency_group: str) -> Method:
        return self

    def remote(self, *arguments: Any) -> Reference:
        return Reference(self.death or self.function(*arguments))


class FakeRay:
    """Ray in one thread: `deaths` names the methods whose next calls end in the actor's death."""

    def __init__(self) -> None:
        self.deaths: list[str] = []
        self.death: RayError = ActorDiedError("killed")
        self.killed: list[Any] = []
        self.resources: dict[str, float] = {"CPU": 4.0}
        self.node_resources: list[dict[str, float]] = []
        self.exceptions = EXCEPTIONS

    def remote(self, concurrency_groups: dict[str, int]) -> Any:
        ray = self

        class Actor:
            def __init__(self, *arguments: Any) -> None:
                self.worker = Worker(*arguments)

            def __getattr__(self, name: str) -> Method:
                dies = name in ray.deaths
                if dies:
                    ray.deaths.remove(name)
                return Method(getattr(self.worker, name), ray.death if dies else None)

        actor_class = types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=Actor))
        return lambda worker_class: actor_class

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def wait(
        self, references: list[Reference], num_returns: int, timeout: float
    ) -> tuple[list[Reference], list[Reference]]:
        return references[:num_returns], references[num_returns:]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {}}
        return [dead, *({"Alive": True, "Resources": each} for each in self.node_resources)]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def echo(job: Any) -> Work:
    """A factory: the work returns the payload."""
    return lambda ticket: ticket.payload


class Telling:
    """Work that tells of a running ticket and a slow host."""

    def __init__(self, job: Any) -> None:
        self.report = WorkerReport({"t0": Measure(total=4, rows=1, stored=1)})
        self.report.losses.add("slow.example", 9.0, "deadline")

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        return {}

    def progress(self) -> str:
        return self.report.to_json()


def actor_pool(work: Any = echo, tickets: int = 1) -> ActorPool:
    stage = Stage(name="s", work=work)
    queue = TicketQueue([Ticket(id=f"t{i}", group=f"g{i}") for i in range(tickets)])
    return ActorPool(stage, queue, Outcomes("s", StageCounter("s", tickets)), 1)


def step(pool: ActorPool) -> None:
    """One turn of the loop in run_on_ray."""
    pool.assign_tickets()
    for reference in pool.wait(0.0):
        pool.handle(reference)


def test_this_machine_gets_as_many_workers_as_fit(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_runtime, "is_one_machine", lambda: True)
    assert pool_size(Stage(name="s", work=echo), 9, None) == 4
    assert pool_size(Stage(name="s", work=echo, cpus=1.5), 9, None) == 2
    assert pool_size(Stage(name="s", work=echo, cpus=0), 9, None) == 9
    assert pool_size(Stage(name="s", work=echo), 9, 3) == 3
    with pytest.raises(ValueError, match="asks for 1 GPU per worker and this machine has 0"):
        pool_size(Stage(name="s", work=echo, gpus=1), 9, None)


@pytest.mark.parametrize(
    ("nodes", "autoscaler", "refused"),
    [
        ([{}, {"CPU": 2}], False, True),
        ([{}, {"CPU": 2}], True, False),
        ([{}, {"CPU": 2}, {"CPU": 8, "GPU": 1}], False, False),
        ([{}, {"CPU": 2}, {"GPU": 1}], False, True),  # a worker has no room on one node
        ([{}], False, False),  # the nodes have yet to join
    ],
)
def test_a_gpu_that_no_cluster_will_ever_have_is_refused(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, float]],
    autoscaler: bool,
    refused: bool,
) -> None:
    monkeypatch.setattr(ray_runtime, "is_one_machine", lambda: False)
    monkeypatch.setattr(ray_runtime, "has_autoscaler", lambda: autoscaler)
    monkeypatch.setattr(executor, "STATUS_WAIT_S", 0.0)
    ray.node_resources = nodes
    stage = Stage(name="score", work=echo, gpus=1)
    if refused:
        message = "stage score asks for 1 GPU per worker; the cluster has 1 nodes with CPUs, none"
        with pytest.raises(ValueError, match=message):
            pool_size(stage, 7, None)
    else:
        assert pool_size(stage, 7, None) == 7
    assert pool_size(Stage(name="score", work=echo), 7, None) == 7


def test_tickets_end_where_ray_has_lost_its_only_node(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_runtime, "connect", lambda: None)
    monkeypatch.setattr(ray_runtime, "is_one_machine", lambda: True)
    monkeypatch.setattr(ActorPool, "wait", lambda pool, timeout_s: [])
    tickets = [Ticket(id=f"t{i:03d}", group=f"g{i % 7}") for i in range(250)]
    outcomes = Outcomes("s", StageCounter("s", 250))
    executor.run_on_ray(Stage(name="s", work=echo), TicketQueue(tickets), None, outcomes)
    assert (outcomes.report.done, outcomes.report.failures) == (0, 250)
    assert set(outcomes.report.failed.values()) == {executor.RAY_HAS_ENDED}


@pytest.mark.parametrize(
    ("loading", "line"),
    [
        (0, "score: no worker could start for 2 min; a worker needs 1 CPU and 1 GPU on one node, "
            "and the cluster has 1 of 4 CPU and 0 of 0 GPU free"),
        (1, "score: 1 workers have loaded for 2 min what they work with, and none is ready yet"),
    ],
)  # fmt: skip
def test_a_stage_that_waits_says_every_minute_for_what(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    loading: int,
    line: str,
) -> None:
    clock = iter(range(0, 10_000, 10))
    lines: list[int] = []

    def wait(pool: ActorPool, timeout_s: float) -> list[Any]:
        lines.append(len(caplog.records))
        if len(lines) > 26:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(ray_runtime, "connect", lambda: None)
    monkeypatch.setattr(ray_runtime, "is_one_machine", lambda: False)
    monkeypatch.setattr(executor, "_check_gpus", lambda stage: None)
    monkeypatch.setattr(executor, "_now", lambda: float(next(clock)))
    monkeypatch.setattr(ActorPool, "wait", wait)
    if not loading:
        monkeypatch.setattr(ActorPool, "loading_workers", lambda pool: 0)
    stage = Stage(name="score", work=echo, gpus=1)
    outcomes = Outcomes("score", StageCounter("score", 1))
    with pytest.raises(KeyboardInterrupt):
        executor.run_on_ray(stage, TicketQueue([Ticket(id="t", group="g")]), None, outcomes)
    assert [i for i in range(1, len(lines)) if lines[i] > lines[i - 1]] == [6, 12, 18, 24]
    assert caplog.messages[1] == line


def test_workers_that_die_before_they_are_ready_are_replaced_a_few_times(ray: FakeRay) -> None:
    ray.deaths = ["ready"] * (MAX_FAILED_STARTS - 1)
    pool = actor_pool()
    for _ in range(MAX_FAILED_STARTS + 1):
        step(pool)
    assert pool.outcomes.report == Report(done=1)
    ray.deaths = ["ready"] * MAX_FAILED_STARTS
    pool = actor_pool()
    for _ in range(MAX_FAILED_STARTS - 1):
        step(pool)
    with pytest.raises(RuntimeError, match="3 workers in a row died before they were ready: kil"):
        step(pool)


def test_a_worker_that_dies_is_replaced_and_its_ticket_is_tried_again(
    ray: FakeRay, caplog: pytest.LogCaptureFixture
) -> None:
    ray.deaths = ["run"]
    pool = actor_pool()
    for _ in range(4):
        step(pool)
    assert len(ray.killed) == 1
    assert pool.outcomes.report == Report(done=1)
    assert "t0 failed in try 1 of 2: the worker died: killed" in caplog.text
    ray.deaths = ["run", "run"]
    pool = actor_pool()
    for _ in range(4):
        step(pool)
    assert pool.outcomes.report.failed == {"t0": "the worker died: killed"}
    assert not pool.busy


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ActorDiedError("The worker was killed by signal 9"), "died"),
        (NODE_IS_GONE, "lost"),
        (NodeDiedError("x"), "lost"),
        (OutOfMemoryError("x"), "lost"),
        (ActorUnavailableError("x"), "lost"),
    ],
)
def test_what_a_node_took_away_is_told_from_what_died(
    ray: FakeRay, error: RayError, kind: str
) -> None:
    assert how_it_died(error) == kind
    error.preempted = True  # type: ignore[attr-defined]
    assert how_it_died(error) == "lost"


def test_workers_that_start_on_a_node_that_dies_do_not_end_the_stage(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of 16 cores takes 16 starting workers with it."""
    ray.death = NODE_IS_GONE
    ray.deaths = ["ready"] * 16
    pool = actor_pool()
    for _ in range(18):
        step(pool)
    assert pool.outcomes.report == Report(done=1)
    monkeypatch.setattr(executor, "MAX_LOST_STARTS", 5)
    ray.deaths = ["ready"] * 5
    pool = actor_pool()
    for _ in range(4):
        step(pool)
    with pytest.raises(RuntimeError, match="5 workers in a row died before they were ready"):
        step(pool)


def test_a_ticket_whose_worker_died_waits_like_one_that_raised(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "RETRY_PAUSE_S", 0.4)
    ray.deaths = ["run"]
    pool = actor_pool(tickets=2)
    started = time.monotonic()
    ended = []
    while pool.queue.has_unstarted() or pool.busy:
        pool.assign_tickets()
        for reference in pool.wait(0.05):
            pool.handle(reference)
        ended.append((pool.outcomes.report.done, time.monotonic() - started))
    assert pool.outcomes.report == Report(done=2)
    assert ended[-1][1] >= 0.3
    first = next(moment for done, moment in ended if done == 1)
    assert first < 0.3, "the other group does not wait"


def telling_pool(size: int, monkeypatch: pytest.MonkeyPatch) -> ActorPool:
    """Ready workers that may be asked at any time; the ticket t0 is running."""
    monkeypatch.setattr(executor, "ASK_EVERY_S", 0.0)
    counter = StageCounter("s", 2)
    queue = TicketQueue([Ticket(id="t0", group="a")])
    stage = Stage(name="s", work=Telling)
    pool = ActorPool(stage, queue, Outcomes("s", counter), size)
    for reference in list(pool._starting):
        pool.handle(reference)
    counter.started("t0")
    return pool


def test_workers_tell_what_they_are_doing(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = telling_pool(2, monkeypatch)
    pool.ask_workers()
    pool.ask_workers()
    assert len(pool._asked) == 2, "a worker that has not answered is not asked again"
    for reference in list(pool._asked):
        pool.handle(reference)
    state = pool.outcomes.counter.state()
    assert (state.rows, state.stored) == (1, 1), "two workers tell of one ticket"
    assert [(host.host, host.rows) for host in state.hosts] == [("slow.example", 2)]
