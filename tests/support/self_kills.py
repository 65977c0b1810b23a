"""Workers of a pool-level filter that kill themselves at a named point, once for each mark.

A filter's file of a user installs this: it is executed in every worker of a job.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clipmill.pipeline import cross_row
from clipmill.pipeline.executor.tickets import Stage, Ticket
from clipmill.pipeline.pool import lease

METHODS = ("summarise", "combine", "route", "judge", "links", "judge_groups")
# Before a ticket of a phase has written anything; before and behind a file of an exchange; before
# and behind the columns of the first shard.
POINTS = (*METHODS, "publish", "written", "gather", "committed")
FILE = """
{text}
import os, sys
sys.path.insert(0, {root!r})
if os.getpid() != {driver}:
    from tests.support.self_kills import install
    install({marks!r}, Often, Near)
"""
ROOT = Path(__file__).resolve().parents[2]


def of_linked_filters(point: str) -> bool:
    """True for a point that only a filter with links reaches."""
    return point in ("links", "judge_groups")


def write_filters(path: Path, text: str, marks: Path) -> None:
    """The file of the toy filters with these kills."""
    driver = os.getpid()
    path.write_text(FILE.format(text=text, root=str(ROOT), driver=driver, marks=str(marks)))


def mark(marks: Path, point: str, times: int) -> None:
    """Let the next `times` workers that reach a point die there."""
    marks.mkdir(exist_ok=True)
    for number in range(times):
        (marks / f"{point}.{number}").touch()


def die_at(marks: str, point: str) -> None:
    """Kill this process where the point has a mark."""
    for path in sorted(Path(marks).glob(f"{point}.*")):
        try:
            path.unlink()
        except FileNotFoundError:  # another worker was faster
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def dying_stage(marks: str, *, name: str, work: Any, job: Any, **options: Any) -> Stage:
    """A stage whose workers die at a ticket, once for each mark with the name of its factory."""
    factory = [work.__module__, work.__qualname__]
    dying_job = {"of": factory, "marks": marks, "job": job}
    return Stage(name=name, work=dying, job=dying_job, **options)


def dying(job: dict[str, Any]) -> Callable[[Ticket], Any]:
    """Factory of `dying_stage`."""
    module, name = job["of"]
    work = getattr(importlib.import_module(module), name)(job["job"])

    def die_or_work(ticket: Ticket) -> Any:
        die_at(job["marks"], name)
        return work(ticket)

    return die_or_work


def install(marks: str, *classes: type) -> None:
    """Kill this process at the points that have a mark."""

    def die(point: str) -> None:
        die_at(marks, point)

    for each in classes:
        for name in METHODS:
            if name in vars(each):
                setattr(each, name, _before(name, vars(each)[name], die))
    modules: list[Any] = [lease, cross_row]
    modules[0].disk = _Disk(modules[0].disk, die)
    commit = modules[1].commit_columns

    def commit_columns(*arguments: Any) -> int:
        die("gather")
        scored: int = commit(*arguments)
        die("committed")
        return scored

    modules[1].commit_columns = commit_columns


def _before(
    name: str, method: Callable[..., Any], die: Callable[[str], None]
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        die(name)
        return method(*arguments)

    return call


class _Disk:
    """`manifests.disk` where the process dies before or behind a file that it publishes."""

    def __init__(self, disk: Any, die: Callable[[str], None]) -> None:
        self._disk, self._die = disk, die

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def publish(self, staged: Any, path: str) -> None:
        """Publish a file, unless a mark says that the process dies."""
        self._die("publish")
        self._disk.publish(staged, path)
        self._die("written")
