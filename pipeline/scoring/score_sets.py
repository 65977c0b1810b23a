"""The score sets of a pool, their bundles of a thousand shards, and the rows that filters read."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from clipmill.filters import FILTERS, instances_of, specs_of_recipe
from clipmill.filters.base import FilterBase, PoolFilter, set_id
from clipmill.manifests import disk
from clipmill.manifests.aligned import Bundle, BundleWriter
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.commits import Commits
from clipmill.manifests.layout import (
    BUNDLE_SHARDS,
    PoolLayout,
    bundle_name,
    bundle_number,
    shard_name,
)
from clipmill.manifests.pool import Pool
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.records import ScoreSetDocument, read_document
from clipmill.manifests.schema import FilterSpec, Recipe
from clipmill.manifests.text import printable
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Work
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import staged_file

# --------------------------------------------------------------------------------------------------
# Score sets of a pool: their names, their documents, and the filters that a command asks for.


def name_of_filter(
    filter_: FilterBase, instance: str | None = None, reads: Sequence[str] = ()
) -> str:
    """NAME@ID: the folder that holds a filter's columns, whether it exists or not.

    instance: its name, where the filter has another one. reads: the score sets that it reads.
    """
    ids = [name.partition("@")[2] for name in reads]
    return f"{instance or filter_.name}@{set_id(filter_, ids)}"


def read_score_set(layout: PoolLayout, name: str) -> ScoreSetDocument | None:
    """scores.json of a set, None where it was never complete. ValueError for a damaged file."""
    path = layout.score_set_json(name)
    if not disk.exists(path):
        return None
    try:
        return read_document(path, ScoreSetDocument)
    except ValueError as error:
        raise ValueError(f"{error}; run clipmill score {layout} with the same recipe") from error


def filter_specs(
    recipe: Recipe | None, names: Sequence[str], changes: Mapping[str, object]
) -> list[FilterSpec]:
    """The filters to score by: those of the recipe that are in `names` (default: all), or `names`
    without a recipe.

    changes: "filter.option" -> value. ValueError for a filter that the recipe does not list, or for
    none at all.
    """
    if recipe is None:
        specs = {name: FilterSpec(name=name) for name in names}
    else:
        listed = {spec.name: spec for spec in specs_of_recipe(recipe)}
        for name in names:
            if name not in listed:
                raise ValueError(
                    f"recipe {recipe.name!r} has no filter {name!r}"
                    f"{disk.did_you_mean(name, listed)}; it has {', '.join(listed) or 'none'}"
                )
        specs = {name: listed[name] for name in names or listed}
    for key, value in changes.items():
        name, _, option = key.partition(".")
        if name not in specs or not option:
            raise ValueError(
                f"--set {key}: write FILTER.OPTION=VALUE with a filter of "
                f"{', '.join(specs) or 'none'}"
            )
        specs[name] = replace(specs[name], options={**specs[name].options, option: value})
    if not specs:
        raise ValueError("there is no filter to score by; name some with --filters")
    return list(specs.values())


# --------------------------------------------------------------------------------------------------
# Which score sets of a pool are those of some filters: ids cover the columns that are read.


logger = logging.getLogger(__name__)


class PoolSets:
    """Which score sets of a pool are those of some filters.

    The columns that a filter reads are part of its id, so the sets of a filter are looked up after
    those that it reads: instances of the same list, or else complete sets of the pool.
    """

    def __init__(self, commits: Commits, specs: Sequence[FilterSpec]) -> None:
        self.commits, self.pool, self.table = commits, commits.pool, Pool(commits)
        self.instances = instances_of(specs, self.table.schema.names)
        self._planned: dict[str, str] = {}
        self._known: dict[str, list[tuple[str, ScoreSetDocument]]] = {}

    # --- what a filter reads ----------------------------------------------------------------------

    def sources(self, name: str) -> dict[str, tuple[str, ...]]:
        """What an instance reads, column by column: {owner: its columns that are read}.

        The owner is an instance of the list, NAME@ID of a set of the pool, or "" for the sidecar.
        ValueError for a name that is nowhere.
        """
        filter_ = self.instances[name].filter
        sources: dict[str, tuple[str, ...]] = {}
        for read in filter_.reads:
            owner, columns = self._owner(name, read, columns_too=isinstance(filter_, PoolFilter))
            sources[owner] = tuple(dict.fromkeys([*sources.get(owner, ()), *columns]))
        return sources

    def _owner(self, name: str, read: str, *, columns_too: bool) -> tuple[str, tuple[str, ...]]:
        """(owner, columns) of one name that the instance `name` reads."""
        others = {key: each for key, each in self.instances.items() if key != name}
        if columns_too:  # a column comes before an instance: `caption` is the sidecar's
            if read in self.table.schema.names:
                return "", (read,)
            for other, instance in others.items():
                if read in instance.columns():
                    return other, (read,)
        if read in others:
            return read, tuple(others[read].columns())
        matches = {}
        for set_name, document in self.table.score_sets.items():
            if document.name == read:
                matches[set_name] = document.columns
            elif columns_too and read in document.columns:
                matches[set_name] = (read,)
        if len(matches) == 1:
            return next(iter(matches.items()))
        if matches:
            raise ValueError(
                f"filter {name} reads {read}, and {self.pool} has several score sets of it "
                f"({', '.join(sorted(matches))}); put the filter that is meant into the recipe, "
                f"before {name}"
            )
        what = read if columns_too else f"the columns of filter {read}"
        givers = [other for other, each in FILTERS.items() if read in each.adds]
        giver = f"the filter {givers[0]}" if givers else "the filter that gives it"
        close = disk.did_you_mean(read, self.instances, cutoff=0.7)
        raise ValueError(
            f"filter {name} reads {what}, which {self.pool} does not have; put {giver} into the "
            f"recipe, before {name}, or score it first{close}"
        )

    def depends_on_pool(self, name: str) -> bool:
        """True where the values of a row depend on other rows of the pool."""
        if isinstance(self.instances[name].filter, PoolFilter):
            return True
        for owner in self.sources(name):
            if owner in self.instances and self.depends_on_pool(owner):
                return True
            if "@" in owner and self.table.score_sets[owner].whole_pool:
                return True
        return False

    def reads_of(self, name: str) -> dict[str, str]:
        """{instance that `name` reads: its score set}, there or planned."""
        return {owner: self.set_name(owner) for owner in self.sources(name) if owner}

    def set_name(self, owner: str) -> str:
        """NAME@ID of an instance that is there or planned, or of a set of the pool."""
        if "@" in owner:
            return owner
        if owner in self._planned:
            return self._planned[owner]
        current = self.current(owner)
        if current is None:
            raise ValueError(
                f"the columns of filter {owner}, which another filter reads, are not complete in "
                f"{self.pool}; score both: clipmill score {self.pool} --recipe RECIPE"
            )
        return current[0]

    # --- which sets are there ---------------------------------------------------------------------

    def current(
        self, name: str, *, skip_damaged: bool = False
    ) -> tuple[str, ScoreSetDocument] | None:
        """(NAME@ID, document) of the complete set of an instance, whichever kind of machine scored
        it; None without one.

        skip_damaged: a damaged document counts as none, because it is made again from the columns.
        """
        sets = self._all_current(name, skip_damaged)
        return sets[0] if sets else None

    def _all_current(self, name: str, skip_damaged: bool) -> list[tuple[str, ScoreSetDocument]]:
        if name not in self._known:
            documents = []
            for set_name in self.possible_names(name, skip_damaged):
                try:
                    document = read_score_set(self.commits.layout, set_name)
                except ValueError as error:
                    if not skip_damaged:
                        raise
                    logger.warning("scores.json of %s is made again: %s", set_name, error)
                    continue
                if document is not None and document.fingerprint == self.commits.fingerprint:
                    documents.append((set_name, document))
            if not documents:
                return []
            self._known[name] = documents
        return self._known[name]

    def possible_names(self, name: str, skip_damaged: bool = True) -> Iterator[str]:
        """NAME@ID of the sets that an instance may have, for each kind of machine and for each set
        that there is of what it reads."""
        instance = self.instances[name]
        choices = []
        for owner in self.sources(name):
            if "@" in owner:
                choices.append([owner])
            elif owner in self._planned:
                choices.append([self._planned[owner]])
            elif owner:
                choices.append([each for each, _ in self._all_current(owner, skip_damaged)])
        for reads in itertools.product(*choices):
            for alternative in instance.filter.alternatives():
                yield name_of_filter(alternative, name, reads)

    def plan(self, name: str, filter_: FilterBase) -> str:
        """NAME@ID of the set that is going to be made by an instance, its filter resolved."""
        instance = self.instances[name]
        self.instances[name] = replace(instance, filter=filter_)
        reads = list(self.reads_of(name).values())
        self._planned[name] = name_of_filter(filter_, name, reads)
        return self._planned[name]

    def require(self, name: str) -> tuple[str, ScoreSetDocument]:
        """(NAME@ID, document) of an instance. ValueError with the command to give without one."""
        current = self.current(name)
        if current is not None:
            return current
        read = [owner for owner in self.sources(name) if owner in self.instances]
        missing = [each for each in read if self.current(each) is None]
        if missing:
            self.require(missing[0])
        names = list(self.possible_names(name))
        is_old = any(read_score_set(self.commits.layout, each) for each in names)
        state = "of an older state of the pool" if is_old else "not there"
        raise ValueError(
            f"{self.pool}: the scores of filter {name} ({' or '.join(names)}) are {state}; "
            f"run clipmill score {self.pool} with the same recipe"
        )


# --------------------------------------------------------------------------------------------------
# Committed shards with something to work on; and, where a pool has no stored row, the reasons
# with an example.


TOP_REASONS = 5
EXAMPLE_COLUMNS = ["key", "url", "error_message", "reason"]


def shards_with_rows(commits: Commits) -> Commits:
    """The same commits.

    ValueError where nothing is committed or no row is stored. It names the most frequent reasons
    and an example row.
    """
    if not len(commits):
        raise ValueError(_nothing_committed(commits.layout))
    if not commits.totals.stored:
        raise ValueError(_nothing_stored(commits))
    return commits


def example_row(commits: Commits, reason: str) -> str:
    """One row that ended with `reason`, as a line."""
    shard = commits.first_with(reason)
    assert shard is not None, f"no shard has a row with reason {reason!r}"
    rows = Pool(commits).read(shard, EXAMPLE_COLUMNS)
    row = rows.filter(pc.equal(rows["reason"], reason)).slice(0, 1).to_pylist()[0]
    message = f" ({row['error_message']})" if row["error_message"] else ""
    return printable(f"row {row['key']}: {row['url']}{message}")


def reasons_text(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts."""
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{reason} {count}" for reason, count in most[:TOP_REASONS])
    left = len(most) - TOP_REASONS
    return f"{text} and {left} other reasons" if left > 0 else text


def _nothing_stored(commits: Commits) -> str:
    totals = commits.totals
    if not totals.rows:
        return f"{commits.pool}: its {totals.shards} shards have no row"
    reason = min(totals.reasons, key=lambda name: (-totals.reasons[name], name))
    return (
        f"{commits.pool}: none of the {totals.rows} rows is stored: "
        f"{reasons_text(totals.reasons)}; "
        f"an example of {reason}: {example_row(commits, reason)}"
    )


def _nothing_committed(layout: PoolLayout) -> str:
    links, pairs = 0, 0
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name in disk.list_names(layout.pairs, ".parquet"):
        metadata = disk.read_metadata(disk.join(layout.pairs, name))
        links, pairs = links + metadata["links"], pairs + metadata["pairs"]
        reasons.update(metadata["reasons"])
        examples = {**metadata.get("examples", {}), **examples}
    if links and not pairs:
        reason = min(reasons, key=lambda name: (-reasons[name], name))
        example = f"; an example of {reason}: {examples[reason]}" if reason in examples else ""
        return (
            f"{layout}: none of the {links} rows of the source became a pair: "
            f"{reasons_text(reasons)}{example}; correct the source in the recipe"
        )
    return f"{layout} has no committed shard; build it first: clipmill build RECIPE --out {layout}"


# --------------------------------------------------------------------------------------------------
# Score columns: a file for each shard while they are scored, then a bundle for a thousand of them.
#
# A bundle is published whole before the files in it are removed, so that a process that is killed
# in between costs nothing but the work of making it again.


READERS = 16  # footers that are read at a time: a remote store answers each after about 30 ms
FEW_BUNDLES = 8  # that are made in this process: workers would take longer to start


def scored_shards(commits: Commits, name: str, fingerprint: str | None = None) -> Mask:
    """(shards,) True where the set has columns of the shard as it is committed now.

    fingerprint: of columns that depend on the whole pool, that of the pool that they must be of.
    """
    sidecars = commits.column("sidecar_sha256")
    scored = np.zeros(len(commits), np.bool_)
    for positions, by_shard in _metadata(commits, name):
        for position in positions:
            metadata = by_shard.get(int(commits.shards[position]))
            if metadata is not None:
                is_same = metadata.get("sidecar") == sidecars[position].as_py().hex()
                scored[position] = is_same and metadata.get("pool") == fingerprint
    return scored


def count_scores(commits: Commits, name: str) -> Counter[str]:
    """The sums over a complete set: rows, stored, scored, seconds."""
    counts: Counter[str] = Counter()
    for positions, by_shard in _metadata(commits, name):
        for position in positions:
            metadata = by_shard[int(commits.shards[position])]
            counts.update({key: metadata[key] for key in ("rows", "stored", "scored", "seconds")})
    return counts


Metadata = Mapping[int, Mapping[str, Any]]  # shard -> what is written about its rows


def _metadata(commits: Commits, name: str) -> Iterator[tuple[range, Metadata]]:
    """For each bundle: positions of its shards, and what is written about those that it has."""
    layout = commits.layout
    there = set(disk.list_names(layout.score_set(name)))

    def look(positions: range) -> Metadata:
        return _metadata_of(layout, name, commits.shards[positions.start : positions.stop], there)

    runs = bundle_runs(commits)
    with ThreadPoolExecutor(READERS) as threads:
        yield from zip(runs, threads.map(look, runs), strict=True)


def bundle_runs(commits: Commits) -> list[range]:
    """The positions of the shards of each bundle."""
    starts = np.flatnonzero(np.diff(commits.shards // BUNDLE_SHARDS, prepend=-1)).tolist()
    return [range(*ends) for ends in itertools.pairwise([*starts, len(commits)])]


def _metadata_of(layout: PoolLayout, name: str, shards: Integers, there: set[str]) -> Metadata:
    """The same of one bundle. A file of its own is newer than the bundle. `there`: the files of
    the set."""
    first = int(shards[0])
    by_shard: dict[int, Mapping[str, object]] = {}
    if bundle_name(first) in there:
        bundle = Bundle(layout.score_bundle(name, first))
        by_shard |= {int(shard): metadata for shard, metadata in bundle.shards.items()}
    if f"{bundle_number(first):05d}" in there:
        files = set(disk.list_names(layout.score_parts(name, first), ".parquet"))
        waiting = [s for s in shards.tolist() if f"{shard_name(s)}.parquet" in files]
        paths = [layout.score_part(name, shard) for shard in waiting]
        with ThreadPoolExecutor(READERS) as threads:
            by_shard |= dict(zip(waiting, threads.map(disk.read_metadata, paths), strict=True))
    return by_shard


# --- bundles ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BundleOf:
    """The payload of a ticket: a set and the shards of one bundle."""

    set_name: str
    shards: Integers  # a part of those of the pool, not a copy


def make_bundles(
    out: PoolWriter, commits: Commits, sets: Sequence[str], engine: Engine
) -> dict[str, str]:
    """Put the files of each thousand shards into a bundle; returns {bundle: reason} of those that
    failed. Every shard must be scored.
    """
    tickets = []
    for name in sets:
        there = set(disk.list_names(out.layout.score_set(name)))
        for positions in bundle_runs(commits):
            shards = commits.shards[positions.start : positions.stop]
            number = f"{bundle_number(int(shards[0])):05d}"
            if number in there or bundle_name(int(shards[0])) not in there:
                bundle = BundleOf(set_name=name, shards=shards)
                tickets.append(Ticket(id=f"{name}/{number}", group=number, payload=bundle))
    if not tickets:
        return {}
    logger.info("%d bundles of a thousand shards to make", len(tickets))
    stage = Stage(name="bundle", work=make_bundle_worker, job=out)
    if len(tickets) <= FEW_BUNDLES:
        engine = "inline"
    return dict(execute(stage, tickets, engine=engine).failed)


def make_bundle_worker(out: PoolWriter) -> Work:
    """Factory of the stage."""

    def work(ticket: Ticket) -> None:
        bundle: BundleOf = ticket.payload
        write_bundle(out, bundle.set_name, bundle.shards.tolist())

    return work


def write_bundle(out: PoolWriter, name: str, shards: Sequence[int]) -> None:
    """Make the bundle of some shards of a set from their files and from the bundle of before.

    LeaseLost where another command has taken the lease over.
    """
    path = out.layout.score_bundle(name, shards[0])
    folder = out.layout.score_parts(name, shards[0])
    singles = set(disk.list_names(folder, ".parquet"))
    before = Bundle(path) if disk.exists(path) else None
    with staged_file(path, alone=True) as staged:
        writer: BundleWriter | None = None
        with contextlib.ExitStack() as stack:
            for shard in shards:
                file = f"{shard_name(shard)}.parquet"
                if file in singles:
                    single = disk.join(folder, file)
                    table, metadata = disk.read_with_metadata(single)
                    table = table.replace_schema_metadata(None)
                else:
                    if before is None:
                        raise ValueError(f"{path}: there are no columns of shard {shard}")
                    table, metadata = before.read(shard), before.metadata(shard)
                if writer is None:
                    writer = stack.enter_context(BundleWriter(staged, table.schema))
                writer.add(shard, table, metadata)
        out.publish(staged, path)
    out.remove(*(disk.join(folder, file) for file in sorted(singles)))
    if not disk.is_url(folder):
        with contextlib.suppress(OSError):
            disk.local_path(folder).rmdir()
