"""`execute`: runs all tickets of a stage, in this process, on Ray, or there what is left here.

A ticket carries names and numbers, never pixels; the work leaves committed files. Tickets of one
group start in order and are on one worker at a time, wherever the workers are. A ticket that
raises, or whose worker dies, is tried once more; after that it is in `Report.failed` and the rest
continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from clipmill.manifests import ray_runtime, waits
from clipmill.manifests.ray_runtime import Engine, settled
from clipmill.pipeline.executor.tickets import (
    Outcomes,
    Report,
    Stage,
    Ticket,
    TicketQueue,
    Tickets,
    Worker,
    check_ready,
    seconds_until,
)
from clipmill.pipeline.progress.view import counted_stage

# --------------------------------------------------------------------------------------------------
# A stage on Ray: a pool of actors, each with a worker, and the loop that assigns tickets.


MAX_FAILED_STARTS = 3  # workers in a row that die before they are ready; then the stage gives up
# Workers in a row that are lost with their node before they are ready: a node takes all of its
# workers with it, and a factory that brings down whole nodes must end too.
MAX_LOST_STARTS = 256
# What Ray says of an actor whose node is gone; the error has no field for it.
NODE_DIED = "its node has died"
MAX_WORKERS = 1024  # the largest number of host groups, see pipeline/planning/plan_files.py
CLOSE_S = 10.0  # for a worker to close what it holds
MAX_MESSAGE = 400  # characters of Ray's message about a death that are kept
NO_WORKER_LINE_S = 60.0  # without a worker until a line says so, and between two such lines
STATUS_WAIT_S = 10.0  # for a head that has just started to say whether it has an autoscaler
ASK_EVERY_S = 5.0  # workers are asked what they are doing; also the longest wait for an answer
MAX_ASKED = 32  # of them at a time: an answer costs the driver about 0.6 ms of CPU
TELLS = "tells"  # the group of threads of a worker that answers
NOBODY = "nobody"  # the worker of tickets that are abandoned
RAY_HAS_ENDED = "the Ray of this command has lost its node: its raylet has ended or was killed"
logger = logging.getLogger(__name__)


class ActorPool:
    """The actors of one stage and the tickets that they run.

    The keys of `_starting` and `_running` are Ray's references.
    """

    def __init__(self, stage: Stage, queue: TicketQueue, outcomes: Outcomes, size: int) -> None:
        import ray

        self.stage, self.queue, self.outcomes = stage, queue, outcomes
        # a thread of its own answers while all others run tickets
        remote: Any = ray.remote  # its stubs know no groups
        self._actor_class: Any = remote(concurrency_groups={TELLS: 1})(Worker).options(
            num_cpus=stage.cpus,
            num_gpus=stage.gpus,
            max_restarts=0,
            max_concurrency=stage.concurrency,
            scheduling_strategy="SPREAD",
        )
        self._arguments = Worker.arguments(stage, on_ray=True)
        self._starting: dict[Any, Any] = {}
        self._up: dict[Any, Any] = {}  # of each that is starting: ready when it has a process
        self._running: dict[Any, tuple[Any, Ticket]] = {}
        # actors that were asked what they are doing, and for how long they do not answer
        self._asked: dict[Any, tuple[Any, waits.Stillness]] = {}
        self._line_s: dict[Any, float] = {}  # of actors that do nothing: when the next line is due
        self._asked_at: dict[Any, float] = {}  # the last time
        self._asking_at = time.monotonic()
        self._actors: list[Any] = []  # ready ones; the one that became free last is at the end
        self._failed_starts = self._lost_starts = 0
        self._assigned_at = 0.0
        for _ in range(size):
            self.start_worker()

    @property
    def busy(self) -> bool:
        """Whether a ticket is running."""
        return bool(self._running)

    def start_worker(self) -> None:
        """Start one more worker. It gets tickets once its factory has returned."""
        actor = self._actor_class.remote(*self._arguments)
        self._up[actor] = actor.up.remote()  # before `ready`: an actor does one after the other
        self._starting[actor.ready.remote()] = actor

    def loading_workers(self) -> int:
        """How many workers have a process and are not ready: their factories load something."""
        import ray

        up = [self._up[actor] for actor in self._starting.values()]
        return len(ray.wait(up, num_returns=len(up), timeout=0)[0]) if up else 0

    def assign_tickets(self) -> None:
        """Assign tickets: idle workers first, among them the one that became free last."""
        self._assigned_at = now = time.monotonic()
        if not self.queue.has_unstarted():
            return
        load = self.queue.load
        for _ in range(self.stage.concurrency):
            free = [actor for actor in self._actors[::-1] if load(actor) < self.stage.concurrency]
            for actor in sorted(free, key=load):
                ticket = self.queue.start_next(actor, starting_workers=len(self._starting), now=now)
                if ticket is not None:
                    self.outcomes.counter.started(ticket.id)
                    self._running[actor.run.remote(pickle.dumps(ticket))] = (actor, ticket)

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until a worker has started or a ticket has ended, at most `timeout_s` seconds.

        Returns its reference in a list, or [] where nothing happened in that time.
        """
        import ray

        references = [*self._running, *self._starting, *self._asked]
        pause = seconds_until(self.queue.retry_time(self._assigned_at))
        if pause is not None:
            timeout_s = min(timeout_s, pause)
        if not references:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout_s)
        return list(ready)

    def handle(self, reference: object) -> None:
        """Act on a reference that is ready."""
        if reference in self._starting:
            self._worker_started(reference)
        elif reference in self._asked:
            self._worker_told(reference)
        elif reference in self._running:  # else its worker has died, and it was handled with that
            self._ticket_ended(reference)

    def ask_workers(self) -> None:
        """Every ASK_EVERY_S, ask workers what they are doing: those that were asked longest ago.

        A worker that has not answered yet is not asked again.
        """
        now = time.monotonic()
        if now - self._asking_at < ASK_EVERY_S:
            return
        self._asking_at = now
        for actor, silence in list(self._asked.values()):
            silence.look(None)
            self._end_if_still(actor, silence.seconds, "its worker does not answer")
        waiting = {actor for actor, _ in self._asked.values()}
        asked_at = {actor: self._asked_at.get(actor, 0.0) for actor in self._actors}
        actors = [actor for actor in asked_at if actor not in waiting]
        for actor in sorted(actors, key=asked_at.__getitem__)[:MAX_ASKED]:
            reference = actor.progress.options(concurrency_group=TELLS).remote()
            self._asked[reference] = actor, waits.Stillness(waits.LIMIT_S)
            asked_at[actor] = now
        self._asked_at = asked_at

    def _worker_told(self, reference: Any) -> None:
        import ray

        actor, _ = self._asked.pop(reference)
        try:
            told, still_s, text = ray.get(reference)
        except ray.exceptions.RayError:  # its tickets tell
            return
        if told:
            self.outcomes.counter.reported(repr(actor), told)
        self._end_if_still(actor, still_s, text)

    def _end_if_still(self, actor: Any, still_s: float, text: str) -> None:
        """A line about a worker that does nothing; after the limit its tickets end with it."""
        import ray

        tickets = self.queue.running(actor)
        if not tickets or still_s < waits.LINE_S:
            self._line_s.pop(actor, None)
            return
        text = f"{tickets[0].id} has done nothing for {still_s:.0f} s: {text}"
        if still_s >= waits.LIMIT_S:
            self._line_s.pop(actor, None)
            ray.kill(actor)
            self._actors.remove(actor)
            self._worker_died(actor, ["died", f"{text}; its worker was ended"])
            self.start_worker()
        elif still_s >= self._line_s.get(actor, waits.LINE_S):
            self._line_s[actor] = 2 * still_s
            logger.warning("%s: %s", self.stage.name, text)

    def _worker_started(self, reference: Any) -> None:
        """A factory has returned. Raises what it raised; a worker that died is replaced."""
        import ray

        actor = self._starting.pop(reference)
        del self._up[actor]
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            ray.kill(actor)
            self._start_failed(error)
            self.start_worker()
            return
        self._actors.append(actor)
        check_ready(self.stage, answer)
        self._failed_starts = self._lost_starts = 0

    def _start_failed(self, error: Exception) -> None:
        """Count a worker that died before it was ready. RuntimeError after too many in a row."""
        if how_it_died(error) == "lost":
            self._lost_starts += 1
        else:
            self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS or self._lost_starts >= MAX_LOST_STARTS:
            raise RuntimeError(
                f"stage {self.stage.name}: {self._failed_starts + self._lost_starts} workers in "
                f"a row died before they were ready: {error}"
            ) from error

    def _ticket_ended(self, reference: Any) -> None:
        """Record the end of a try. If the worker died, all its tickets end; it is replaced."""
        import ray

        actor, ticket = self._running.pop(reference)
        try:
            kind, text = ray.get(reference)
        except ray.exceptions.RayError as error:
            ray.kill(actor)  # it may only be out of reach: a ticket must not run twice at a time
            self._actors.remove(actor)
            message = " ".join(str(error).split())[:MAX_MESSAGE]
            self._worker_died(actor, [how_it_died(error), f"the worker died: {message}"])
            self.start_worker()
            return
        ended = self.outcomes.record(ticket, kind, text)
        retry_time = self.outcomes.retry_time(ticket)
        self.queue.finished(actor, ticket, retry=not ended, not_before=retry_time)
        self._actors.remove(actor)
        self._actors.append(actor)

    def _worker_died(self, actor: object, death: list[str]) -> None:
        """Record the end of all tickets of a worker: `death`, unless they ended before."""
        import ray

        retry = []
        not_before = 0.0
        references = {}
        for reference, (owner, ticket) in self._running.items():
            if owner is actor:
                references[ticket.id] = reference
        for ticket in self.queue.running(actor):
            answer = death
            if (reference := references.get(ticket.id)) is not None:
                del self._running[reference]
                with contextlib.suppress(ray.exceptions.RayError):  # it may have ended before
                    answer = ray.get(reference, timeout=CLOSE_S)
            if not self.outcomes.record(ticket, *answer):
                retry.append(ticket)
                not_before = max(not_before, self.outcomes.retry_time(ticket))
        self.queue.worker_died(actor, retry, not_before=not_before)

    def abandon(self, text: str) -> None:
        """End all tickets that have yet to start, without an outcome."""
        while (ticket := self.queue.start_next(NOBODY)) is not None:
            self.outcomes.fail(ticket, text)
            self.queue.finished(NOBODY, ticket, retry=False)

    def release_idle(self) -> None:
        """End the workers that have nothing to do, so that a cluster can shrink."""
        import ray

        idle = [actor for actor in self._actors if not self.queue.running(actor)]
        if closing := [actor.close.remote() for actor in idle]:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in [*idle, *self._starting.values()]:
            ray.kill(actor)
        self._actors = [actor for actor in self._actors if self.queue.running(actor)]
        self._starting, self._up = {}, {}

    def close(self) -> None:
        """End all workers."""
        import ray

        self.release_idle()
        for actor in self._actors:
            ray.kill(actor)


def how_it_died(error: Exception) -> str:
    """How a worker died: "lost" where its node was the cause (the node died or was taken away, it
    is out of reach, or Ray freed memory there), else "died".
    """
    import ray

    errors = ray.exceptions
    if isinstance(
        error, (errors.NodeDiedError, errors.OutOfMemoryError, errors.ActorUnavailableError)
    ):
        return "lost"
    if getattr(error, "preempted", False) or NODE_DIED in str(error):
        return "lost"
    return "died"


def pool_size(stage: Stage, groups: int, workers: int | None) -> int:
    """Number of workers to ask for, at most one per group.

    On one machine: as many as fit, because groups would be kept free for workers that never start.
    On a cluster: all, because it may grow to that. ValueError where no worker can ever start.
    """
    import ray

    if not ray_runtime.is_one_machine():
        _check_gpus(stage)
        return min(groups, workers or MAX_WORKERS)
    available: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    limits = [groups]
    if workers is not None:
        limits.append(workers)
    for resource, needed in (("CPU", stage.cpus), ("GPU", stage.gpus)):
        amount = available.get(resource, 0)
        if needed > amount:
            raise ValueError(
                f"stage {stage.name} asks for "
                f"{needed:g} {resource} per worker and this machine has {amount:g}"
            )
        if needed:
            limits.append(int(amount // needed))
    return min(limits)


def _check_gpus(stage: Stage) -> None:
    """ValueError where a worker needs a GPU that the nodes do not have, without an autoscaler.

    A cluster that has only its head yet may be starting.
    """
    import ray

    until = time.monotonic() + STATUS_WAIT_S
    while stage.gpus:
        with_cpus = with_gpus = 0
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            resources = node["Resources"] if node["Alive"] else {}
            if resources.get("CPU", 0) >= max(stage.cpus, 1):
                with_cpus += 1
                with_gpus += resources.get("GPU", 0) >= stage.gpus
        if with_gpus or not with_cpus:
            return
        if not ray_runtime.has_autoscaler():
            raise ValueError(
                f"stage {stage.name} asks for {stage.gpus:g} GPU per worker; the cluster has "
                f"{with_cpus} nodes with CPUs, none of them with {stage.gpus:g} GPU, and no "
                "autoscaler: start a node that has it, or run the stage on CPUs"
            )
        if time.monotonic() > until:
            return
        time.sleep(0.5)


def _say_what_is_missing(stage: Stage, waited_s: float, loading: int) -> None:
    """A line about a stage that waits for its first worker, or for the next one.

    loading: workers that have a process and are not ready.
    """
    import ray

    if loading:
        logger.warning(
            "%s: %d workers have loaded for %.0f min what they work with, and none is ready yet",
            stage.name, loading, waited_s / 60,
        )  # fmt: skip
        return
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    amounts = [f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in ("CPU", "GPU")]
    logger.warning(
        "%s: no worker could start for %.0f min; a worker needs %g CPU and %g GPU on one node, and "
        "the cluster has %s free",
        stage.name, waited_s / 60, stage.cpus, stage.gpus, " and ".join(amounts),
    )  # fmt: skip


def _ray_has_ended() -> bool:
    """Whether Ray had this machine only, and has it no more: no other node will come."""
    import ray

    nodes: list[dict[str, object]] = ray.nodes()  # type: ignore[no-untyped-call]
    return ray_runtime.is_one_machine() and not any(node["Alive"] for node in nodes)


def _now() -> float:
    return time.monotonic()


def run_on_ray(stage: Stage, queue: TicketQueue, workers: int | None, outcomes: Outcomes) -> None:
    """Run every ticket of the queue to its end on at most `workers` actors."""
    ray_runtime.connect()
    pool = ActorPool(stage, queue, outcomes, pool_size(stage, queue.free_groups, workers))
    idle_since = said_at = _now()
    try:
        while queue.has_unstarted() or pool.busy:
            pool.assign_tickets()
            if not queue.has_unstarted():
                pool.release_idle()
            pool.ask_workers()
            with waits.doing(f"workers of {stage.name}"):  # often: this process waits for nothing
                ready = pool.wait(ASK_EVERY_S)
            now = _now()
            if ready or pool.busy or queue.retry_time(now) is not None:
                idle_since = said_at = now
            elif _ray_has_ended():
                pool.abandon(RAY_HAS_ENDED)
            elif now - said_at >= NO_WORKER_LINE_S:
                said_at = now
                _say_what_is_missing(stage, now - idle_since, pool.loading_workers())
            for reference in ready:
                pool.handle(reference)
    finally:
        pool.close()


# --------------------------------------------------------------------------------------------------


THIS_PROCESS = "this process"  # the name of the only worker of an inline stage
ALONE_S = 20.0  # a stage of `auto` runs so long in this process before it may go to Ray
WORTH_S = 60.0  # of work that is left are worth the start of Ray and of its workers: 5 to 20 s


def execute(
    stage: Stage,
    tickets: Iterable[Ticket],
    *,
    engine: Engine,
    workers: int | None = None,
    on_done: Callable[[str, Any], None] | None = None,
) -> Report:
    """Run every ticket once, to its end. ValueError where the factory refuses its job.

    `tickets` may be `Tickets`, which are made one at a time. `on_done` gets the id and the result
    of each ticket that is done; the report only counts them.

    inline: in this process, `stage.concurrency` at a time.
    ray: on at most `workers` actors (default: as many as there is room for), the longest group
    first, `stage.concurrency` tickets at a time on each.
    auto: on a Ray that this process was given or has joined; else in this process, and what is left
    after ALONE_S on a Ray of this machine, where that is more than WORTH_S of work.
    """
    todo = Tickets.of(tickets)
    if engine not in ("auto", "inline", "ray"):
        raise ValueError(f"engine is {engine!r}; it must be auto, inline or ray")
    if not len(todo):
        return Report()
    engine = settled(engine)
    with counted_stage(stage.name, len(todo)) as counter:
        outcomes = Outcomes(stage.name, counter, on_done, stage.result)
        queue = TicketQueue(todo, stage.concurrency)
        if engine != "ray":
            run_inline(stage, queue, outcomes, _WorthRay(stage.name, len(todo), engine))
        if queue.has_unstarted():
            run_on_ray(stage, queue, workers, outcomes)
    return outcomes.report


class _WorthRay:
    """Whether the rest of a stage that runs in this process is worth a Ray."""

    def __init__(self, name: str, tickets: int, engine: Engine) -> None:
        self._name, self._tickets = name, tickets
        self._is_open = engine == "auto" and (os.cpu_count() or 1) > 1 and ray_runtime.is_there()
        self._began, self._is_decided = _now(), False

    def __call__(self, ended: int) -> bool:
        """ended: how many tickets have. A line says so once, and it stays so."""
        if self._is_decided:
            return True
        seconds = _now() - self._began
        left = self._tickets - ended
        if not self._is_open or seconds < ALONE_S or not ended or not left:
            return False
        if seconds / ended * left < WORTH_S:
            return False
        logger.info(
            "%s: %d of %d tickets took %.0f s in this process; the others go to a Ray of this "
            "machine (--engine inline: all of them here)", self._name, ended, self._tickets, seconds
        )  # fmt: skip
        self._is_decided = True
        return True


def run_inline(
    stage: Stage, queue: TicketQueue, outcomes: Outcomes, is_enough: Callable[[int], bool]
) -> None:
    """Run tickets in this process until all have ended, or `is_enough(tickets that have ended)`."""
    worker = Worker(*Worker.arguments(stage))
    check_ready(stage, worker.ready())

    def ask() -> list[tuple[str, str]]:
        told = worker.progress()[0]
        return [(THIS_PROCESS, told)] if told else []

    outcomes.counter.ask_workers = ask
    try:
        if stage.concurrency == 1:
            _run_one_by_one(worker, queue, outcomes, is_enough)
        else:
            _run_in_threads(worker, queue, outcomes, is_enough)
    finally:
        outcomes.counter.ask_workers = None
        worker.close()


def _run_one_by_one(
    worker: Worker, queue: TicketQueue, outcomes: Outcomes, is_enough: Callable[[int], bool]
) -> None:
    """Run tickets in this thread: libraries and signals of a work may need the main one."""
    while queue.has_unstarted() and not is_enough(outcomes.ended):
        now = time.monotonic()
        ticket = queue.start_next(THIS_PROCESS, now=now)
        if ticket is None:
            time.sleep(seconds_until(queue.retry_time(now)) or 0)
            continue
        outcomes.counter.started(ticket.id)
        ended = outcomes.record(ticket, *worker.run(pickle.dumps(ticket)))
        retry_time = outcomes.retry_time(ticket)
        queue.finished(THIS_PROCESS, ticket, retry=not ended, not_before=retry_time)


def _run_in_threads(
    worker: Worker, queue: TicketQueue, outcomes: Outcomes, is_enough: Callable[[int], bool]
) -> None:
    """Run tickets, as many at once as the queue allows; those that have begun end."""
    running: dict[Future[list[str]], Ticket] = {}
    threads = ThreadPoolExecutor(queue.concurrency, thread_name_prefix="ticket")
    try:
        while running or (queue.has_unstarted() and not is_enough(outcomes.ended)):
            now = time.monotonic()
            while not is_enough(outcomes.ended) and (
                ticket := queue.start_next(THIS_PROCESS, now=now)
            ):
                outcomes.counter.started(ticket.id)
                running[threads.submit(worker.run, pickle.dumps(ticket))] = ticket
            pause = seconds_until(queue.retry_time(now))
            if not running:
                time.sleep(pause or 0)
            for future in wait(running, pause, return_when=FIRST_COMPLETED).done:
                ticket = running.pop(future)
                kind, text = future.result()
                ended = outcomes.record(ticket, kind, text)
                queue.finished(
                    THIS_PROCESS, ticket, retry=not ended, not_before=outcomes.retry_time(ticket)
                )
    finally:
        # After an interruption, running tickets wait for what the worker closes next: do not wait
        # for them here.
        threads.shutdown(wait=not running, cancel_futures=True)
