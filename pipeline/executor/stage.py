"""Tickets to commits: runs a stage's work over small records, in this process or on Ray, and counts what ended how.

A ticket carries names and numbers, never pixels; what the work leaves behind are committed files. Tickets of one group
are begun in order and are on one worker at a time, wherever the workers are; a stage that allows it has several of them
under way there. A ticket that raises, or whose worker dies, is tried once more; after that it is in `Report.failed` and
the rest goes on. Nothing but plain JSON values crosses.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from pipeline.executor.schedule import Deal, Ticket

__all__ = ["Engine", "Report", "Stage", "Ticket", "Work", "connect", "disconnect", "execute"]

ROOT = (
    Path(__file__).resolve().parents[2]
)  # named: `import ray` puts a folder of its own at sys.path[0]
TRIES = 2
STILLBORN = 3  # workers in a row that die before they are ready, after which the stage gives up
MOST_WORKERS = 1024  # host groups, see plan.py
CLOSE_S = 10.0  # for a worker to put away what it holds
MESSAGE = 400  # characters of what Ray says about a death that are kept
PATIENCE_S = 60.0  # without a worker before a line says so
LOG_EVERY_S = 10.0
Engine = Literal["inline", "ray"]
Work = Callable[[Ticket], dict[str, Any]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is done to a ticket.

    `work` names a factory, "package.module:factory": factory(config) is called once per worker (models are loaded
    there) and returns the function that turns a ticket into a dict; if that has a `close()`, it is called when the
    stage ends. `cpus` and `gpus` are what a worker asks of Ray. `ahead` is how many tickets a worker may have under
    way, each in a thread of its own: above 1, the function must bear that.
    """

    name: str
    work: str
    config: dict[str, Any] = field(default_factory=dict)
    gpus: float = 0
    cpus: float = 1
    ahead: int = 1

    def __post_init__(self) -> None:
        if self.ahead < 1:
            raise ValueError(f"ahead is {self.ahead}; a worker must be able to hold a ticket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What each ticket returned, or how its last try ended."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def execute(
    stage: Stage, tickets: Iterable[Ticket], *, engine: Engine, workers: int | None = None
) -> Report:
    """Every ticket once, to its end. ValueError where the factory refuses its config.

    inline: in this process, in order, `stage.ahead` at a time. ray: on at most `workers` actors (default: as many as
    there is room for), `stage.ahead` each at a time, the longest group first.
    """
    todo = list(tickets)
    assert len({ticket.id for ticket in todo}) == len(todo), (
        f"two tickets of stage {stage.name} have the same id"
    )
    if engine not in ("inline", "ray"):
        raise ValueError(f"engine is {engine!r}; it must be inline or ray")
    if not todo:
        return Report()
    with _progress(stage.name, len(todo)) as progress:
        return (
            _inline(stage, todo, progress)
            if engine == "inline"
            else _on_ray(stage, todo, workers, progress)
        )


# --- a worker ------------------------------------------------------------------------------------------------------


class Worker:
    """Holds what the factory loaded. Exceptions do not cross: an answer is [kind, JSON or text]."""

    def __init__(self, stage: str) -> None:
        """`stage` is the stage as JSON."""
        fields = json.loads(stage)
        self.stage = Stage(**fields)
        self.work: Work | None = None

    def ready(self) -> list[str]:
        """Call the factory. ["ready", ""], or ["refused" | "broken", what it raised]."""
        try:
            module, _, name = self.stage.work.partition(":")
            self.work = getattr(importlib.import_module(module), name)(self.stage.config)
        except ValueError as error:
            return ["refused", str(error)]
        except Exception as error:
            logger.exception("the factory %s raised", self.stage.work)
            return ["broken", _told(error)]
        return ["ready", ""]

    def run(self, ticket: str) -> list[str]:
        """Work off one ticket (JSON). ["done", result as JSON] or ["raised", what it raised]."""
        assert self.work is not None
        try:
            return ["done", json.dumps(self.work(Ticket(**json.loads(ticket))))]
        except Exception as error:
            logger.exception("stage %s: a ticket raised", self.stage.name)
            return ["raised", _told(error)]

    def close(self) -> None:
        """Let the work put away what it holds."""
        if self.work is not None and hasattr(self.work, "close"):
            self.work.close()


def _told(error: Exception) -> str:
    """The error in one line, with the place in our files where it came up: a worker's traceback stays in Ray's logs."""
    text = f"{type(error).__name__}: {error}"
    ours = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(ROOT)
    ]
    return (
        text
        if isinstance(error, ValueError)
        else f"{text} ({Path(ours[-1].filename).name}:{ours[-1].lineno})"
    )


def _plain(thing: Stage | Ticket) -> str:
    return json.dumps({name: getattr(thing, name) for name in thing.__slots__})


def _started(stage: Stage, answer: list[str]) -> None:
    """Raise what a factory raised: a person's mistake as ValueError."""
    kind, text = answer
    if kind == "refused":
        raise ValueError(text)
    if kind == "broken":
        raise RuntimeError(f"stage {stage.name}: {stage.work} raised {text}")


def _inline(stage: Stage, tickets: Sequence[Ticket], progress: Callable[[bool], None]) -> Report:
    report = Report()
    worker = Worker(_plain(stage))
    _started(stage, worker.ready())
    book = _books(report, stage, tickets, progress)
    try:
        if stage.ahead == 1:
            for ticket in tickets:
                while not book(ticket, *worker.run(_plain(ticket))):
                    pass
        else:
            _in_threads(worker, Deal(tickets, stage.ahead), book)
    finally:
        worker.close()
    return report


def _in_threads(worker: Worker, deal: Deal, book: Callable[[Ticket, str, str], bool]) -> None:
    """Every ticket, as many under way as the deal allows."""
    running: dict[Future[list[str]], Ticket] = {}
    threads = ThreadPoolExecutor(deal.ahead, thread_name_prefix="ticket")
    try:
        while deal.left() or running:
            while (ticket := deal.next("here")) is not None:
                running[threads.submit(worker.run, _plain(ticket))] = ticket
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ticket = running.pop(future)
                kind, text = future.result()
                deal.ended("here", ticket, again=not book(ticket, kind, text))
    finally:
        threads.shutdown(
            wait=not running, cancel_futures=True
        )  # interrupted: what it waits for is put away next


def _books(
    report: Report, stage: Stage, tickets: Sequence[Ticket], progress: Callable[[bool], None]
) -> Callable[[Ticket, str, str], bool]:
    """book(ticket, kind, text), to be called with the end of each try; False where the ticket is to be tried again."""
    tried = dict.fromkeys((ticket.id for ticket in tickets), 0)

    def book(ticket: Ticket, kind: str, text: str) -> bool:
        tried[ticket.id] += 1
        ended = _book(report, stage, ticket, kind, text, tried[ticket.id])
        if ended:
            progress(ticket.id in report.done)
        return ended

    return book


def _book(report: Report, stage: Stage, ticket: Ticket, kind: str, text: str, tried: int) -> bool:
    """Write down how a try ended; False where the ticket is to be tried again."""
    if kind == "done":
        report.done[ticket.id] = json.loads(text)
        return True
    logger.warning(
        "stage %s: %s failed in try %d of %d: %s", stage.name, ticket.id, tried, TRIES, text
    )
    if tried < TRIES:
        return False
    report.failed[ticket.id] = text
    return True


# --- Ray -----------------------------------------------------------------------------------------------------------

_embedded: str | None = None  # folder of the Ray that this process started


def connect() -> None:
    """Join the cluster named by RAY_ADDRESS (`ray job submit` sets it), or start a Ray inside this process.

    The embedded one has this machine's cores, no dashboard, listens on 127.0.0.1 and keeps its files in a temporary
    folder of its own, so that it neither sees nor disturbs another Ray on the machine.
    """
    global _embedded
    joining = bool(os.environ.get("RAY_ADDRESS"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's coming default; without it Ray warns
    if (
        not joining
    ):  # read when ray is imported: keeps its servers on 127.0.0.1, as Ray does where firewalls ask
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    if ray.is_initialized():
        return
    shared: dict[str, Any] = {
        "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
        "log_to_driver": False,
        "logging_level": "error",
    }
    if joining:
        ray.init(**shared)
        return
    _embedded = tempfile.mkdtemp(
        prefix="mill-", dir="/tmp"
    )  # short: a socket's path has at most 107 characters
    atexit.register(disconnect)
    ray.init(
        address="local",
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        object_store_memory=128 * 2**20,  # tickets only
        _temp_dir=_embedded,
        **shared,
    )


def disconnect() -> None:
    """Shut down the Ray that `connect` started; a cluster that was joined goes on."""
    global _embedded
    if _embedded is None:
        return
    import ray

    ray.shutdown()
    shutil.rmtree(_embedded, ignore_errors=True)
    _embedded = None


class Pool:
    """Actors of one stage and what each of them is doing; `started` and `running` are keyed by Ray's references."""

    def __init__(self, stage: Stage, deal: Deal, size: int) -> None:
        import ray

        self.stage, self.deal = stage, deal
        self.kind: Any = ray.remote(Worker).options(
            num_cpus=stage.cpus,
            num_gpus=stage.gpus,
            max_restarts=0,
            max_concurrency=stage.ahead,
            scheduling_strategy="SPREAD",
        )
        self.started: dict[Any, Any] = {}
        self.running: dict[Any, tuple[Any, Ticket]] = {}
        self.actors: list[Any] = []  # ready, the one that became free last at the end
        self.stillborn = 0
        for _ in range(size):
            self.start()

    def start(self) -> None:
        """One more worker; it gets tickets once its factory has returned."""
        actor = self.kind.remote(_plain(self.stage))
        self.started[actor.ready.remote()] = actor

    def give(self) -> None:
        """Tickets to whoever may have one: a first one to everybody, the one that became free last before others."""
        for _ in range(self.stage.ahead):
            line = self.actors[::-1]
            line.sort(key=lambda actor: len(self.deal.of(actor)))
            for actor in line:
                if (ticket := self.deal.next(actor, coming=len(self.started))) is not None:
                    self.running[actor.run.remote(_plain(ticket))] = (actor, ticket)

    def arrived(self, reference: Any) -> None:
        """A worker's factory has returned. Raises what it raised; a worker that died is replaced."""
        import ray

        actor = self.started.pop(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            ray.kill(actor)
            self.stillborn += 1
            if self.stillborn >= STILLBORN:
                raise RuntimeError(
                    f"stage {self.stage.name}: {STILLBORN} workers in a row died before they were ready: {error}"
                ) from error
            self.start()
            return
        self.actors.append(actor)
        _started(self.stage, answer)
        self.stillborn = 0

    def answered(self, reference: Any, book: Callable[[Ticket, str, str], bool]) -> None:
        """A ticket has ended; book(ticket, kind, text) is False where it is to be tried again. A worker that died is
        replaced, and what else it had under way has ended with it."""
        import ray

        if reference not in self.running:
            return  # its worker has died already
        actor, ticket = self.running.pop(reference)
        try:
            kind, text = ray.get(reference)
        except ray.exceptions.RayError as error:
            ray.kill(actor)  # it may only be out of reach: a ticket must not run twice at a time
            self.actors.remove(actor)
            self._lost(actor, f"the worker died: {' '.join(str(error).split())[:MESSAGE]}", book)
            self.start()
            return
        self.deal.ended(actor, ticket, again=not book(ticket, kind, text))
        self.actors.remove(actor)
        self.actors.append(actor)

    def _lost(self, actor: Any, text: str, book: Callable[[Ticket, str, str], bool]) -> None:
        import ray

        again = []
        others = {
            ticket.id: reference
            for reference, (holder, ticket) in self.running.items()
            if holder is actor
        }
        for ticket in self.deal.of(actor):
            answer = ["died", text]
            if (reference := others.get(ticket.id)) is not None:
                del self.running[reference]
                with contextlib.suppress(
                    ray.exceptions.RayError
                ):  # it may have ended before its worker did
                    answer = ray.get(reference, timeout=CLOSE_S)
            if not book(ticket, *answer):
                again.append(ticket)
        self.deal.lost(actor, again)

    def release(self) -> None:
        """End the workers that have nothing to do, so that a cluster may shrink."""
        import ray

        idle = [actor for actor in self.actors if not self.deal.of(actor)]
        if closing := [actor.close.remote() for actor in idle]:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in [*idle, *self.started.values()]:
            ray.kill(actor)
        self.actors = [actor for actor in self.actors if self.deal.of(actor)]
        self.started = {}

    def close(self) -> None:
        """End all workers."""
        import ray

        self.release()
        for actor in self.actors:
            ray.kill(actor)


def _size(stage: Stage, groups: int, workers: int | None) -> int:
    """How many workers to ask for: on an embedded Ray what fits; on a cluster one per group, as it may grow to that."""
    import ray

    if _embedded is None:
        return min(groups, workers or MOST_WORKERS)
    have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for name, need in (("CPU", stage.cpus), ("GPU", stage.gpus)):
        if need > have.get(name, 0):
            raise ValueError(
                f"stage {stage.name} asks for {need:g} {name} per worker and this machine has {have.get(name, 0):g}"
            )
    fits = [have[name] // need for name, need in (("CPU", stage.cpus), ("GPU", stage.gpus)) if need]
    return min(groups, workers or int(min(fits)), int(min(fits)))


def _on_ray(
    stage: Stage, tickets: Sequence[Ticket], workers: int | None, progress: Callable[[bool], None]
) -> Report:
    connect()
    import ray

    report = Report()
    deal = Deal(tickets, stage.ahead)
    book = _books(report, stage, tickets, progress)
    pool = Pool(stage, deal, _size(stage, deal.groups, workers))
    try:
        while deal.left() or pool.running:
            pool.give()
            if not deal.left():
                pool.release()
            ready, _ = ray.wait([*pool.running, *pool.started], num_returns=1, timeout=PATIENCE_S)
            if not ready and not pool.running:
                logger.warning(
                    "%s: no worker (%g CPU, %g GPU) could start yet",
                    stage.name,
                    stage.cpus,
                    stage.gpus,
                )
            for reference in ready:
                if reference in pool.started:
                    pool.arrived(reference)
                else:
                    pool.answered(reference, book)
    finally:
        pool.close()
    return report


# --- progress ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[bool], None]]:
    """A bar on a terminal, a log line now and then elsewhere."""
    started = told = time.monotonic()
    ended = failed = 0
    bar = tqdm(
        total=total, desc=name, unit="task", disable=not sys.stderr.isatty(), file=sys.stderr
    )

    def step(fine: bool) -> None:
        nonlocal ended, failed, told
        ended, failed = ended + 1, failed + (not fine)
        bar.update(1)
        now = time.monotonic()
        if bar.disable and (now - told >= LOG_EVERY_S or ended == total):
            told = now
            logger.info(
                "%s: %d of %d tasks, %d failed, %.1f s", name, ended, total, failed, now - started
            )

    with bar:
        yield step
