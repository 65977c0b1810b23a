"""`compute`: a filter that looks at the whole pool, stage by stage.

    shards ──summarise, combine──▶ state
    shards ──route──▶ partitions ──judge──▶ values ──gather──▶ columns of shards
    shards ──route──▶ partitions ──links──▶ near pairs ──rounds of stars──▶ components
           ──group──▶ partitions of groups ──judge_groups──▶ values ──gather──▶ columns of shards

A ticket reads and writes files in a folder of the job; each is complete when its index is there, so
a command that was stopped begins with the first ticket that left none. Columns of shards are
written last and the folder is removed when all are there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifests import disk
from manifests.commits import Commits
from manifests.pool_layout import PoolLayout
from pipeline.executor import Engine, Stage, Ticket, Tickets, Work, execute
from pipeline.pool import check_fence
from pipeline.pool_scores import partitions_to_values as values
from pipeline.pool_scores import rows_to_partitions as rows
from pipeline.pool_scores.job import PoolJob, filter_of
from pipeline.pool_scores.values_to_shards import gather
from pipeline.progress import measure_scored

MOST_ROUNDS = 100  # of stars: a chain of a million rows takes about ten
Mask = NDArray[np.bool_]
Factory = Callable[[dict[str, Any]], Work]
logger = logging.getLogger(__name__)


class _Failed(Exception):
    """A stage has failed tickets."""

    def __init__(self, failed: dict[str, str]) -> None:
        super().__init__(failed)
        self.failed = failed


def compute(
    commits: Commits, job: PoolJob, lacking: Mask, *, engine: Engine, gpus: float = 0
) -> dict[str, str]:
    """Write the columns of the shards of a mask; returns {ticket: reason} of those that failed.

    gpus: that each worker of a filter with a model asks of Ray. LeaseLost where another command has
    taken the pool over.
    """
    run = _Compute(commits, job, engine, gpus)
    try:
        run.begin()
        run.rows_to_partitions()
        if run.filter.linked:
            run.groups(run.stars())
        else:
            run.judge()
        run.gather(lacking)
    except _Failed as stopped:
        return stopped.failed
    run.remove_scratch()
    return {}


def remove_transient(pool: str, fence: int | None, prefix: str = "") -> None:
    """Remove what the tickets of jobs left, of those whose folders begin with `prefix`."""
    layout = PoolLayout(pool)
    for job in disk.list_names(layout.transient):
        if not job.startswith(prefix):
            continue
        check_fence(pool, fence)
        _remove_folder(disk.join(layout.transient, job))
    if not disk.is_url(layout.transient):
        with contextlib.suppress(OSError):  # another job has files in it
            disk.local_path(layout.transient).rmdir()


def _remove_folder(folder: str) -> None:
    """Remove a folder, with the partial files that killed commands left in it."""
    if not disk.is_url(folder):
        shutil.rmtree(disk.local_path(folder), ignore_errors=True)
        return
    for name in disk.list_names(folder):
        disk.remove(disk.join(folder, name))


class _Compute:
    """The stages of one job."""

    def __init__(self, commits: Commits, job: PoolJob, engine: Engine, gpus: float) -> None:
        self.commits, self.job, self.engine, self.gpus = commits, job, engine, gpus
        _, self.filter = filter_of(job)

    def begin(self) -> None:
        """Remove the files of another job for this set: of the pool as it was, or divided
        otherwise."""
        path = disk.join(self.job.folder, "job.json")
        identity = self.job.identity()
        if disk.exists(path):
            with contextlib.suppress(ValueError):
                if disk.read_json(path) == identity:
                    return
        self.remove_scratch()
        check_fence(self.job.pool, self.job.fence)
        disk.write_json(path, identity)

    def remove_scratch(self) -> None:
        """Remove what the tickets of this set left."""
        remove_transient(self.job.pool, self.job.fence, f"scores-{self.job.set_name}-")

    def rows_to_partitions(self) -> None:
        """Summarise, combine and route."""
        units = self.job.units
        if self.filter.summarised:
            written = self._there(rows.summary_path(self.job, n) for n in range(units))
            is_combined = self._there([rows.state_path(self.job)])
            if not is_combined.all():
                self._over_shards("summarise", rows.summarise, ~written)
                self._run("combine", rows.combine, [{}], is_model=True)
        routed = self.job.exchange(rows.ROUTED, from_shards=True).written()
        if self.filter.linked:
            routed &= self.job.exchange(rows.MEMBERS, from_shards=True).written()
        self._over_shards("route", rows.route, ~routed)

    def judge(self) -> None:
        """The values of all partitions."""
        written = self.job.exchange(values.VALUES, to_shards=True).written()
        self._over_partitions("judge", values.judge, ~written, is_model=True)

    def stars(self) -> int:
        """Near pairs as stars: the round whose edges they are."""
        written = self.job.exchange(values.large_input(0)).written()
        self._over_partitions("links", values.links, ~written, is_model=True)
        for number in range(MOST_ROUNDS):
            if not self._unfinished(number):
                return number
            stages = [
                ("large stars", values.large_stars, values.small_input(number)),
                ("small stars", values.small_stars, values.large_input(number + 1)),
            ]
            for name, work, exchange in stages:
                written = self.job.exchange(exchange).written()
                self._over_partitions(name, work, ~written, round=number)
        raise AssertionError(f"components did not end in {MOST_ROUNDS} rounds")

    def _unfinished(self, number: int) -> int:
        """Rows that are not yet in a star at the beginning of a round."""
        paths = []
        for partition in range(self.job.partitions):
            paths.append(values.unfinished_path(self.job, number, partition))
        written = self._there(paths)
        self._over_partitions("count stars", values.count_stars, ~written, round=number)
        total = 0
        for path in paths:
            total += disk.read_json(path)["unfinished"]
        logger.info("%s: round %d: %d rows not in a star", self.job.set_name, number, total)
        return total

    def groups(self, stars: int) -> None:
        """The values of all groups."""
        written = self.job.exchange(values.GROUPED).written()
        self._over_partitions("group", values.group, ~written, round=stars)
        written = self.job.exchange(values.VALUES, to_shards=True).written()
        self._over_partitions("judge groups", values.judge_groups, ~written, is_model=True)

    def gather(self, lacking: Mask) -> None:
        """The columns of the shards that lack them."""
        bounds = self.job.bounds
        is_todo = [bool(lacking[a:b].any()) for a, b in itertools.pairwise(bounds)]
        self._over_shards("gather", gather, np.array(is_todo, np.bool_), measured=True)

    # --- stages -----------------------------------------------------------------------------------

    def _there(self, paths: Any) -> Mask:
        """Which of some files of the job are there. One listing."""
        names = set(disk.list_names(self.job.folder))
        return np.array([path.rpartition("/")[2] in names for path in paths], np.bool_)

    def _over_shards(self, name: str, work: Factory, todo: Mask, *, measured: bool = False) -> None:
        numbers = np.flatnonzero(todo)

        def payload(position: int) -> dict[str, Any]:
            return rows.unit_payload(self.job, self.commits, int(numbers[position]))

        self._run(name, work, _Payloads(len(numbers), payload), measured=measured)

    def _over_partitions(
        self, name: str, work: Factory, todo: Mask, *, is_model: bool = False, **payload: Any
    ) -> None:
        numbers = np.flatnonzero(todo)
        payloads = _Payloads(
            len(numbers), lambda position: {"number": int(numbers[position]), **payload}
        )
        self._run(name, work, payloads, is_model=is_model)

    def _run(
        self,
        name: str,
        work: Factory,
        payloads: Any,
        *,
        is_model: bool = False,
        measured: bool = False,
    ) -> None:
        """Run the tickets of a stage. _Failed where one failed."""

        def make(position: int) -> Ticket:
            payload = payloads[position]
            number = payload.get("number", 0)
            ticket_id = f"{name} {number}"
            return Ticket(id=ticket_id, group=ticket_id, payload=payload)

        stage = Stage(
            name=f"{self.job.filter['name']}: {name}",
            work=work,
            config={"job": disk.to_plain(self.job)},
            gpus=self.gpus if is_model else 0,
            measure=measure_scored if measured else None,
        )
        tickets = Tickets(np.arange(len(payloads)), make)
        report = execute(stage, tickets, engine=self.engine)
        if report.failed:
            raise _Failed(dict(report.failed))


class _Payloads:
    """The payloads of tickets, made one at a time."""

    def __init__(self, count: int, make: Callable[[int], dict[str, Any]]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self._make(position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._make(position) for position in range(self._count))
