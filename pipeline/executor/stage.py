"""`execute`: runs all tickets of a stage, in this process or on Ray.

A ticket carries names and numbers, never pixels; the work leaves committed files. Tickets of one
group start in order and are on one worker at a time, wherever the workers are. A ticket that
raises, or whose worker dies, is tried once more; after that it is in `Report.failed` and the rest
continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Literal

from pipeline.executor.ray_actors import run_on_ray
from pipeline.executor.tickets import (
    Outcomes,
    Report,
    Stage,
    Ticket,
    TicketQueue,
    Tickets,
    Worker,
    check_ready,
    seconds_until,
    ticket_json,
)
from pipeline.progress.view import counted_stage

Engine = Literal["inline", "ray"]
THIS_PROCESS = "this process"  # the name of the only worker of an inline stage


def execute(
    stage: Stage,
    tickets: Iterable[Ticket],
    *,
    engine: Engine,
    workers: int | None = None,
    on_done: Callable[[str, dict[str, Any]], None] | None = None,
) -> Report:
    """Run every ticket once, to its end. ValueError where the factory refuses its config.

    `tickets` may be `Tickets`, which are made one at a time. `on_done` gets the id and the result
    of each ticket that is done; the report only counts them.

    inline: in this process, in order, `stage.concurrency` at a time.
    ray: on at most `workers` actors (default: as many as there is room for), the longest group
    first, `stage.concurrency` tickets at a time on each.
    """
    todo = Tickets.of(tickets)
    if engine not in ("inline", "ray"):
        raise ValueError(f"engine is {engine!r}; it must be inline or ray")
    if not len(todo):
        return Report()
    with counted_stage(stage.name, len(todo), stage.measure) as counter:
        outcomes = Outcomes(stage.name, counter, on_done)
        if engine == "inline":
            run_inline(stage, todo, outcomes)
        else:
            run_on_ray(stage, todo, workers, outcomes)
    return outcomes.report


def run_inline(stage: Stage, tickets: Tickets, outcomes: Outcomes) -> None:
    """Run every ticket in this process."""
    worker = Worker(*Worker.arguments(stage))
    check_ready(stage, worker.ready())
    if stage.tells:
        outcomes.counter.ask_workers = lambda: [(THIS_PROCESS, worker.progress())]
    try:
        if stage.concurrency == 1:
            for ticket in tickets:
                outcomes.counter.started(ticket.id)
                while not outcomes.record(ticket, *worker.run(ticket_json(ticket))):
                    time.sleep(max(0.0, outcomes.retry_time(ticket) - time.monotonic()))
        else:
            _run_in_threads(worker, TicketQueue(tickets, stage.concurrency), outcomes)
    finally:
        outcomes.counter.ask_workers = None
        worker.close()


def _run_in_threads(worker: Worker, queue: TicketQueue, outcomes: Outcomes) -> None:
    """Run every ticket, as many at once as the queue allows."""
    running: dict[Future[list[str]], Ticket] = {}
    threads = ThreadPoolExecutor(queue.concurrency, thread_name_prefix="ticket")
    try:
        while queue.has_unstarted() or running:
            now = time.monotonic()
            while (ticket := queue.start_next(THIS_PROCESS, now=now)) is not None:
                outcomes.counter.started(ticket.id)
                running[threads.submit(worker.run, ticket_json(ticket))] = ticket
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
