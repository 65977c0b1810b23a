"""Views on disk: columns that rules may read, masks, hashes, and the document written last."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters import FILTERS, Instance, check_filters, instances_of, specs_of_recipe
from clipmill.filters.columns import instance_column
from clipmill.manifests import disk
from clipmill.manifests.aligned import (
    BundlesWriter,
    remove_view_shards,
    view_names,
    write_view_shards,
)
from clipmill.manifests.arrays import Bytes, Mask
from clipmill.manifests.columns import MASK, SIDECAR, SIDECAR_MEANINGS, shared_name, with_extra
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.layout import (
    NOT_STORED,
    PoolLayout,
    bundle_name,
    part_view_name,
    random_view_name,
    shard_name,
)
from clipmill.manifests.pool import OpenView, Pool
from clipmill.manifests.records import (
    ScoreSetDocument,
    ViewDocument,
    ViewRule,
    ViewRulesDocument,
    read_document,
)
from clipmill.manifests.schema import Recipe, Rule, View
from clipmill.pipeline.database import (
    KEY_BYTES,
    create_keyed,
    database,
    hash_flagged,
    insert,
    is_sha256,
    key_columns,
    of_flags,
    row_keys,
)
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.score_sets import PoolSets, bundle_runs, shards_with_rows
from clipmill.pipeline.views.choose import (
    RowBlock,
    Selection,
    check,
    choose_parts,
    map_units,
    mask_of,
    sample_limit,
    stored_rows_of,
)
from clipmill.pipeline.views.rules import (
    DERIVED,
    SELECTED,
    columns_of,
    is_selected,
    rule_text,
    rules_of,
    selected_rules,
)

# --------------------------------------------------------------------------------------------------
# The columns that a rule may read in a pool, with their types and meanings.


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that a rule may read."""

    name: str
    type: str
    source: str  # sidecar, recipe, derived, or the score set that holds it
    meaning: str
    filter_kind: str = ""  # of a score set: a key of FILTERS, or PATH.py:CLASS


class ScoredColumns:
    """Columns of the instances of a recipe. Those of filters that it does not list are known too,
    so that a rule that reads one is told which filter gives it."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self.instances = instances
        self.owners: dict[str, str] = {}  # column -> instance, or filter that is not listed
        self.kinds: dict[str, pa.DataType] = {}
        for name, filter_class in FILTERS.items():
            if name not in instances:
                self.owners.update(dict.fromkeys(filter_class.adds, name))
                self.kinds.update(filter_class.adds)
        for name, instance in instances.items():
            columns = instance.columns()
            self.owners.update(dict.fromkeys(columns, name))
            self.kinds.update(columns)

    def columns_of_view(
        self, recipe: Recipe, view: str, in_sidecars: Sequence[str]
    ) -> tuple[set[str], list[str]]:
        """(columns that a view reads, names of the instances that give some of them).

        ValueError for a column of a filter that the recipe does not list.
        """
        columns = columns_of(recipe.views, view, [*in_sidecars, *self.owners])
        used = set()
        for column in sorted(columns & self.owners.keys()):
            owner = self.owners[column]
            if owner not in self.instances:
                raise ValueError(
                    f"view {view!r} uses column {column!r} of filter {owner}, "
                    f"which recipe {recipe.name!r} does not list"
                )
            used.add(owner)
        return columns, sorted(used)

    def owners_named(self, sql: str) -> set[str]:
        """Those of whom a column may be read by some SQL: its name is among the words. DuckDB,
        whose parser knows it, takes longer to load than all that is done for a view that is there.
        """
        text = sql.lower()
        words = set(re.findall(r"\w+", text))
        unquoted = text.replace('""', '"')
        owners = set()
        for column, owner in self.owners.items():
            name = column.lower()
            is_word = re.fullmatch(r"\w+", name) is not None
            if name in words if is_word else name in text or name in unquoted:
                owners.add(owner)
        return owners


def list_columns(pool: str) -> list[Column]:
    """The columns of the sidecars, what is derived from them, and the columns of each current score
    set.

    ValueError for a pool without stored rows.
    """
    opened = Pool(shards_with_rows(read_commits(pool)))
    columns = []
    for field in opened.schema:
        from_recipe = field.name not in SIDECAR.names
        columns.append(
            Column(
                name=field.name,
                type=str(field.type),
                source="recipe" if from_recipe else "sidecar",
                meaning=SIDECAR_MEANINGS.get(field.name, "an extra column of the recipe"),
            )
        )
    for name, one in DERIVED.items():
        columns.append(Column(name=name, type=str(one.type), source="derived", meaning=one.meaning))
    for set_name, document in opened.score_sets.items():
        columns += _columns_of_set(opened.score_schema(set_name), set_name, document)
    return columns


def _columns_of_set(
    schema: pa.Schema, set_name: str, document: ScoreSetDocument
) -> Iterator[Column]:
    """The columns of a score set, of these types."""
    meanings = document.meanings or {}
    if document.filter_kind in FILTERS:
        filter_class = FILTERS[document.filter_kind]
        for name, meaning in filter_class.meanings.items():
            column = instance_column(document.filter_kind, document.name, name)
            meanings = {**meanings, column: meaning}
    for name in document.columns:
        yield Column(
            name=name,
            type=str(schema.field(name).type),
            source=set_name,
            meaning=meanings.get(name, f"a column of the filter {document.filter_kind}"),
            filter_kind=document.filter_kind,
        )


def column_lines(columns: Iterable[Column]) -> Iterator[str]:
    """A line for each column under a line for each source."""
    columns = list(columns)
    width = max(len(column.name) for column in columns)
    kind_width = max(len(column.type) for column in columns)
    source = ""
    for column in columns:
        if column.source != source:
            source = column.source
            yield f"{source}:"
        yield f"  {column.name:<{width}}  {column.type:<{kind_width}}  {column.meaning}"
    scored = {column.filter_kind for column in columns}
    if missing := [name for name in FILTERS if name not in scored]:
        yield "filters that are not scored in this pool, and the columns that they would add:"
        width = max(map(len, missing))
        for name in missing:
            added = ", ".join(FILTERS[name].adds) or "those that its options name"
            yield f"  {name:<{width}}  {added}"


# --------------------------------------------------------------------------------------------------
# The columns of a pool's shards, from sidecars and score sets, in parts of bounded size.


UNIT_SHARDS = 100  # that one thread works on, at most
UNIT_ROWS = 100_000  # rows of those shards: a million rows give work to ten threads
PART_ROWS = 200_000  # rows that a thread has in memory, and at least one shard
KEPT_ROWS = 1_000_000  # a pool of at most so many rows is read once, whatever the passes over it


class JoinedColumns:
    """A pool as the source of `choose_parts`, in units of at most 100 shards. sets, encoded: see
    `Pool.read`."""

    def __init__(
        self,
        commits: Commits,
        columns: Collection[str],
        sets: Mapping[str, str],
        *,
        encoded: bool = False,
    ) -> None:
        self.commits, self._pool, self._encoded = commits, Pool(commits), encoded
        self._sets, wanted = sets, set(columns)
        self._columns = [*sorted(wanted - sets.keys()), *(name for name in sets if name in wanted)]
        self._bounds = _unit_bounds(commits)
        self.units = len(self._bounds) - 1
        self._row_ends = np.cumsum(commits.column("count").to_numpy())
        self.rows = int(self._row_ends[-1])
        self._kept: dict[int, list[RowBlock]] | None = {} if self.rows <= KEPT_ROWS else None
        self._lock = threading.Lock()
        self.schema = pa.schema([])
        self.schema = self.read_shard(0).schema

    def shards_of(self, unit: int) -> range:
        """Positions in `commits` of the shards of a unit."""
        return range(int(self._bounds[unit]), int(self._bounds[unit + 1]))

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[RowBlock]:
        """The parts of a unit, with some columns (default: all).

        ValueError for score columns of other rows than those of their shard.
        """
        if self._kept is None:
            yield from self._read_unit(unit, columns)
            return
        with self._lock:
            parts = self._kept.get(unit)
        if parts is None:
            parts = list(self._read_unit(unit, None))
            with self._lock:
                self._kept[unit] = parts
        yield from parts

    def _read_unit(self, unit: int, columns: Sequence[str] | None) -> Iterator[RowBlock]:
        tables: list[pa.Table] = []
        first = self.shards_of(unit).start
        rows = 0
        for position in self.shards_of(unit):
            tables.append(self.read_shard(position, columns))
            rows += tables[-1].num_rows
            if rows >= PART_ROWS:
                yield self._part(first, tables)
                first, tables, rows = position + 1, [], 0
        if tables:
            yield self._part(first, tables)

    def _part(self, first: int, tables: Sequence[pa.Table]) -> RowBlock:
        shards = self.commits.shards[first : first + len(tables)].tolist()
        names = [shard_name(shard) for shard in shards]
        sizes = [table.num_rows for table in tables]
        before = int(self._row_ends[first]) - sizes[0]
        return RowBlock(
            table=pa.concat_tables(tables),
            first_row=before,
            sizes=dict(zip(names, sizes, strict=True)),
        )

    def read_shard(self, position: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns of the shard at a position of `commits`, side by side."""
        shard = int(self.commits.shards[position])
        names = [name for name in self._columns if columns is None or name in columns]
        table = self._pool.read(shard, names, self._sets, encoded=self._encoded)
        for field in table.schema if len(self.schema) else ():
            if field.type != self.schema.field(field.name).type:
                raise ValueError(
                    f"shard {shard_name(shard)} has {field.name!r} as {field.type}, unlike the "
                    "first shard of the pool; its shards are of different recipes: build them "
                    "again, or leave the column out of the rules"
                )
        return table


def _unit_bounds(commits: Commits) -> list[int]:
    """Where the units begin and end in the list of shards."""
    shards, rows = len(commits), commits.sum("count")
    step = max(1, min(UNIT_SHARDS, UNIT_ROWS * shards // max(1, rows)))
    return [*range(0, shards, step), shards]


# --------------------------------------------------------------------------------------------------
# The masks of a view as files: written into a folder that nobody reads, then published.


class MaskFiles:
    """The masks of some views in the making, each in a folder of its own."""

    def __init__(self, out: PoolWriter, commits: Commits, views: Iterable[str]) -> None:
        self.out, self.commits = out, commits
        parent = None
        if not disk.is_url(out.pool):
            parent = disk.local_path(out.layout.views)
            parent.mkdir(parents=True, exist_ok=True)
        self._scratch = disk.scratch_folder(".masks.partial-", parent)
        folder = self._scratch.__enter__()
        self._folders = {view: folder / str(number) for number, view in enumerate(views)}
        for each in self._folders.values():
            each.mkdir()
        self._writers = {view: BundlesWriter(one, MASK) for view, one in self._folders.items()}
        self.kept: dict[str, list[int]] = {view: [] for view in self._folders}  # by shard
        # One bit a row, by shard: what the hash of the rows is made from.
        self._bits: dict[str, list[Bytes]] = {view: [] for view in self._folders}
        self._rows = commits.column("count").to_pylist()

    def add(self, view: str, shard: str, mask: pa.Table) -> None:
        """The mask of the next shard of a view, of schema MASK."""
        kept_rows = mask["kept"].to_numpy()
        kept = int(kept_rows.sum())
        self.kept[view].append(kept)
        self._bits[view].append(np.packbits(kept_rows))
        # Whose rows these are: masks of two shards or views may keep as many.
        self._writers[view].add(shard, mask, {"kept": kept, "shard": shard, "view": view})

    def kept_rows(self, view: str, position: int) -> Mask:
        """(rows,) which rows of the shard at a position of `commits` a view keeps."""
        bits = self._bits[view][position]
        return np.unpackbits(bits, count=self._rows[position]).astype(np.bool_)

    def publish(self, view: str) -> None:
        """Move the masks of a view to their place. The document must not be there yet.

        Masks of the view as it was before, or of a kill, are replaced. LeaseLost where another
        command has taken the lease over: its masks stay.
        """
        folder = self._folders[view]
        self._writers[view].close()
        target = disk.join(self.out.layout.views, view)
        for name in sorted(os.listdir(folder)):
            self.out.publish(folder / name, disk.join(target, name))

    def remove(self) -> None:
        """Remove what was not published."""
        for writer in self._writers.values():
            writer.close(whole=False)
        self._scratch.__exit__(None, None, None)


def has_masks(commits: Commits, document: ViewDocument) -> bool:
    """True where every file of a view is there, so that it need not be made again."""
    names = set(disk.list_names(disk.join(commits.layout.views, document.name)))
    needed = {bundle_name(int(commits.shards[run.start])) for run in bundle_runs(commits)}
    return needed | {document.shards.file} <= names


# --------------------------------------------------------------------------------------------------
# The hash of the rows that a view keeps: equal hashes mean the same pairs with the same bytes.
#
# It is the hash of a lock's views and of common rows (`pipeline/shuffle.py`): sha256 over uid and
# sha256 of the received bytes of each kept row, in ascending order, each once. So it depends
# neither on shards and their order, nor on workers, folders, image sizes or the rules that chose
# the rows. A row whose sha256 is not known has 32 zero bytes there.


HASH_UNIT_SHARDS = 16  # that a thread reads at a time: 8 MB where all rows are kept
UNKNOWN = "0" * 64
KeptRows = Callable[[int], Mask]  # position of a shard -> (rows,) which of its rows are kept


def hash_rows(commits: Commits, kept_rows: Mapping[str, KeptRows]) -> dict[str, str]:
    """The hash of each of some views, in one pass over the sidecars and in bounded memory.

    ValueError for a sidecar of other rows.
    """
    views = list(kept_rows.values())

    def read(unit: int) -> Bytes:
        end = min(len(commits), (unit + 1) * HASH_UNIT_SHARDS)
        parts = []
        for position in range(unit * HASH_UNIT_SHARDS, end):
            parts.append(_records(commits, position, [kept(position) for kept in views]))
        return np.concatenate(parts)

    with database() as connection:
        create_keyed(connection, "kept", of_flags("{} BOOLEAN", len(views)))
        for rows in map_units(-(-len(commits) // HASH_UNIT_SHARDS), read, "hash views"):
            insert(connection, "kept", *key_columns(rows[:, :KEY_BYTES]), *rows[:, KEY_BYTES:].T)
        hashes = hash_flagged(connection, "kept", len(views))
    return {name: digest for name, (_, digest) in zip(kept_rows, hashes, strict=True)}


def _records(commits: Commits, position: int, masks: list[Mask]) -> Bytes:
    """(rows that a view keeps, bytes of a record) of a shard: keys, then one flag a view."""
    flags = np.stack(masks, axis=1).astype(np.uint8)
    chosen: Mask = np.any(flags, axis=1)
    if not chosen.any():
        return np.zeros((0, KEY_BYTES + len(masks)), np.uint8)
    table = Pool(commits).read(int(commits.shards[position]), ["uid", "sha256"])
    if not chosen.all():
        table = table.filter(pa.array(chosen))
    try:
        keys = row_keys(table["uid"], table["sha256"])
    except ValueError:  # some are not known
        known = pc.if_else(is_sha256(table["sha256"]), table["sha256"], UNKNOWN)
        keys = row_keys(table["uid"], known)
    return np.hstack([keys, flags[chosen]])


# --------------------------------------------------------------------------------------------------
# Views as files: reads the columns that the rules need, lets `choose` decide, and writes masks
# beside the shards.
#
# NAME.json is written last and says everything that the masks were made from. A view that exists
# already, from the same rules, scores and shards, is not made again. One that changed is named in
# a log line with what changed.


# Stored rows up to which a build writes the hash of the rows of its views: a microsecond of CPU a
# row, more than the rules cost. `clipmill filter hash` computes it in any pool.
HASHED_ROWS = 5_000_000
# What ends the name of a random view of one seed, and that of a part of a view.
RANDOM_SEED = re.compile(r"(?<=.)(\.seed-\d+)?(\.part-[\d.e-]+\.seed-\d+)?$")
PART = "random_part"  # the name of the rule
PART_SEED = 2**40  # added to a seed, so that no `sample` or `random_like` draws the same rows
VIEW_NAME = re.compile(r"[\w-][\w.-]{0,99}")  # not "..", not hidden, fits a file name
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a view is made from. A view with equal inputs is not made again."""

    rules: tuple[ViewRule, ...]
    scores: dict[str, str]  # filter -> NAME@ID
    fingerprint: str
    frozen: bool | None = None

    def made(self, document: ViewDocument | None) -> bool:
        """True if `document` was made from these inputs."""
        return document is not None and self == Inputs(
            rules=document.rules,
            scores=document.scores,
            fingerprint=document.fingerprint,
            frozen=document.frozen,
        )


# Adds the masks of the views of these names, beside views that are made already.
Select = Callable[[MaskFiles, Sequence[str], Mapping[str, ViewDocument]], Mapping[str, Selection]]


def check_views(recipe: Recipe) -> dict[str, Instance]:
    """The filters of a recipe. ValueError for filters, options, models, rules and views that cannot
    work. Neither pool nor weights are read."""
    scored = ScoredColumns(instances := instances_of(specs_of_recipe(recipe)))
    if taken := shared_name(recipe.sidecar_extra, scored.owners):
        raise ValueError(
            f"extra_columns names {taken[0]!r}, which is a filter's column; give it another name, "
            f'as in {{my_{taken[0]}: "{taken[0]}:TYPE"}}'
        )
    check_filters(instances, recipe.sidecar_extra.keys())
    added = [pa.field(column, kind) for column, kind in scored.kinds.items()]
    check(recipe.views, pa.schema([*with_extra(SIDECAR, recipe.sidecar_extra), *added]))
    columns = [*SIDECAR.names, *recipe.sidecar_extra]
    for view in recipe.views:
        check_view_name(view.name)
        scored.columns_of_view(recipe, view.name, columns)
    return instances


def choose_views(
    out: PoolWriter,
    recipe: Recipe,
    names: Sequence[str] | None = None,
    commits: Commits | None = None,
    *,
    hashed: bool = False,
) -> dict[str, ViewDocument]:
    """Make the views of a recipe (default: all), and return their documents.

    commits: what is committed, if the caller has read it. hashed: those that are made have the
    hash of the rows. LeaseLost where another command has taken the lease over. ValueError for
    unknown views and columns, rules that are no rules, filters that are not scored yet, a pool
    without stored rows, and a view that keeps nothing.
    """
    commits = shards_with_rows(read_commits(out.pool) if commits is None else commits)
    wanted = [view.name for view in recipe.views] if names is None else list(names)
    inputs: dict[str, Inputs] = {}
    columns: dict[str, set[str]] = {}
    sets: dict[str, str] = {}  # column -> NAME@ID
    # What clipmill filter columns lists: extra columns are the pool's, whatever this recipe names.
    pool_sets = PoolSets(commits, specs_of_recipe(recipe))
    in_sidecars = pool_sets.table.schema.names
    scored = ScoredColumns(pool_sets.instances)
    for name in wanted:
        recipe.view(name)
        rules = rules_of(recipe.views, name)
        if (same := _inputs_of_made(pool_sets, scored, name, rules)) is not None:
            inputs[name] = same
            continue
        columns[name], instances = scored.columns_of_view(recipe, name, in_sidecars)
        required = {instance: pool_sets.require(instance) for instance in instances}
        for set_name, document in required.values():
            sets |= dict.fromkeys(sorted(document.columns), set_name)
        scores = {instance: set_name for instance, (set_name, _) in required.items()}
        inputs[name] = Inputs(rules=rules, scores=scores, fingerprint=commits.fingerprint)
    select = _by_rules(commits, recipe.views, columns, sets, {})
    documents = _make(out, commits, inputs, select, hashed)
    if names is None and (unlisted := views_not_in(recipe, out.layout)):
        logger.warning("%s", unlisted_views_line(recipe, unlisted))
    return documents


def _inputs_of_made(
    pool_sets: PoolSets, scored: ScoredColumns, name: str, rules: tuple[ViewRule, ...]
) -> Inputs | None:
    """What a view is made from that is there already; None where its rules are to be parsed.

    Equal rules read the same columns. Where the words of the rules may name no others than columns
    of the score sets of before, and these are still the current ones, nothing else has changed.
    """
    document = read_view(pool_sets.commits.layout, name)
    if document is None or document.rules != rules or any(rule.random_like for rule in rules):
        return None
    owners = scored.owners_named(" ".join(rule.where or "" for rule in rules))
    if owners != document.scores.keys() or not owners <= scored.instances.keys():
        return None
    current = {owner: pool_sets.current(owner) for owner in document.scores}
    inputs = Inputs(
        rules=rules,
        scores={owner: of_owner[0] for owner, of_owner in current.items() if of_owner},
        fingerprint=pool_sets.commits.fingerprint,
    )
    is_made = inputs.made(document) and has_masks(pool_sets.commits, document)
    return inputs if is_made else None


def random_like(
    out: PoolWriter, view: str, seeds: Sequence[int] | None = None
) -> dict[str, ViewDocument]:
    """Make random views: as many stored rows as `view` keeps, drawn by xxh3(uid, seed).

    There is one `random_like_VIEW.seed-N` for each of the seeds; without seeds it is
    `random_like_VIEW`, which is drawn with seed 0. They have a hash where `view` has. ValueError
    if the pool has no view of that name, or one that is older than its shards.
    """
    whole = Pool(shards_with_rows(read_commits(out.pool))).view(view)
    model, commits = whole.document, whole.commits
    inputs: dict[str, Inputs] = {}
    views = []
    for seed in [None] if seeds is None else seeds:
        name = random_view_name(view, seed)
        rule = Rule(name="random", random_like=view, seed=seed or 0)
        views.append(View(name=name, rules=(rule,)))
        like = disk.content_hash(model.rules)
        inputs[name] = Inputs(
            rules=(ViewRule(name="random", random_like=view, seed=seed or 0, like=like),),
            scores=model.scores,
            fingerprint=commits.fingerprint,
            frozen=model.frozen,
        )
    columns = {name: {"status", "uid"} for name in inputs}
    select = _by_rules(commits, views, columns, {}, {view: model.kept})
    return _make(out, commits, inputs, select, model.rows_sha256 is not None)


def parts_of_views(
    out: PoolWriter, views: Sequence[str], share: float, seeds: Sequence[int]
) -> dict[str, ViewDocument]:
    """Make VIEW.part-SHARE.seed-N of each view and seed: the rows of the view whose xxh3(uid, seed)
    is below the share, so that two views go on to have as much in common. They have a hash where
    all of `views` have.

    ValueError for a view that is not there, is older than the shards or has no row in its part.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share is {share:g}; it must lie between 0 and 1")
    if not views:
        raise ValueError("name the views that a part is to be made of")
    if not all(0 <= seed < PART_SEED for seed in seeds):
        raise ValueError(f"the seeds are {list(seeds)}; each must lie in [0, 2^40)")
    commits = shards_with_rows(read_commits(out.pool))
    opened = {view: Pool(commits).view(view) for view in views}
    wholes = {view: each.document for view, each in opened.items()}
    if len(states := {(whole.fingerprint, whole.frozen) for whole in wholes.values()}) > 1:
        made: dict[str, ViewDocument] = {}  # frozen ones are of shards of their own
        for state in sorted(states, key=str):
            some = [v for v in views if (wholes[v].fingerprint, wholes[v].frozen) == state]
            made |= parts_of_views(out, some, share, seeds)
        return made
    commits = opened[views[0]].commits
    inputs: dict[str, Inputs] = {}
    parts: dict[str, tuple[ViewDocument, int]] = {}  # name -> of which view, the seed of the hash
    for view, whole in wholes.items():
        if any(rule.name == PART for rule in whole.rules):
            raise ValueError(f"view {view!r} is a part itself; make one of the view that it is of")
        for seed in seeds:
            name = part_view_name(view, share, seed)
            check_view_name(name)
            parts[name] = whole, PART_SEED + seed
            rule = ViewRule(name=PART, sample=share, seed=PART_SEED + seed)
            inputs[name] = Inputs(
                rules=(*whole.rules, rule),
                scores=whole.scores,
                fingerprint=commits.fingerprint,
                frozen=whole.frozen,
            )

    def select(
        masks: MaskFiles, names: Sequence[str], _: Mapping[str, ViewDocument]
    ) -> dict[str, Selection]:
        for shard in commits.shards.tolist():
            _add_parts(masks, shard, {name: parts[name] for name in names}, opened, share)
        selections = {}
        for name in names:
            whole, kept = parts[name][0], sum(masks.kept[name])
            if not kept:
                raise ValueError(
                    f"view {name!r} keeps nothing: none of the {whole.kept:,} rows of {whole.name} "
                    f"is in a part of {share:g}"
                )
            funnel = (*whole.funnel, (PART, kept))
            selections[name] = Selection(thresholds=whole.thresholds, funnel=funnel, kept=kept)
        return selections

    hashed = all(whole.rows_sha256 is not None for whole in wholes.values())
    return _make(out, commits, inputs, select, hashed)


def _add_parts(
    masks: MaskFiles,
    shard: int,
    parts: Mapping[str, tuple[ViewDocument, int]],
    files: Mapping[str, OpenView],
    share: float,
) -> None:
    """The masks of a shard for parts, by name: of which view, and the seed of the hash. files: the
    masks of the views.
    """
    uids = Pool(masks.commits).read(shard, ["uid"])["uid"].to_numpy()
    views = {view: files[view].mask(shard) for view in {whole.name for whole, _ in parts.values()}}
    kept_by = {view: mask["kept"].to_numpy() for view, mask in views.items()}
    some = np.logical_or.reduce(list(kept_by.values()))
    drawn = {}
    for seed in {seed for _, seed in parts.values()}:
        drawn[seed] = np.zeros(len(uids), np.bool_)
        drawn[seed][some] = text_hashes(uids[some], seed) < np.uint64(sample_limit(share))
    for name, (whole, seed) in parts.items():
        kept, is_drawn = kept_by[whole.name], drawn[seed]
        left_out = pa.array(kept & ~is_drawn)
        rule = pc.if_else(left_out, pa.scalar(PART), views[whole.name]["rule"])
        mask = pa.table({"kept": kept & is_drawn, "rule": rule.dictionary_encode()})
        masks.add(name, shard_name(shard), mask)


def read_view(layout: PoolLayout, name: str) -> ViewDocument | None:
    """NAME.json of a view, None where it does not exist or is damaged. ValueError for an
    impossible name."""
    check_view_name(name)
    path = layout.view_json(name)
    if not disk.exists(path):
        return None
    try:
        return read_document(path, ViewDocument)
    except ValueError as error:
        logger.warning("view %s is made again: %s", name, error)
        return None


def freeze(out: PoolWriter, view: str, name: str) -> dict[str, ViewDocument]:
    """Make the view `name` of the rows that `view` keeps now. It stays as it is when shards are
    added to the pool or rules change, and so does the order in which a run draws from it.

    ValueError for a view that is not there or is older than the shards, and for a name that another
    view has.
    """
    pool, whole = out.pool, Pool(shards_with_rows(read_commits(out.pool))).view(view)
    model, commits = whole.document, whole.commits
    check_view_name(name)
    inputs = Inputs(
        rules=model.rules, scores=model.scores, fingerprint=commits.fingerprint, frozen=True
    )
    if (taken := read_view(out.layout, name)) is not None and not inputs.made(taken):
        raise ValueError(f"{pool} has a view {name!r} already; freeze {view!r} under another name")

    def select(
        masks: MaskFiles, _: Sequence[str], __: Mapping[str, ViewDocument]
    ) -> dict[str, Selection]:
        for shard in commits.shards.tolist():
            masks.add(name, shard_name(shard), whole.mask(shard).cast(MASK))
        selection = Selection(thresholds=model.thresholds, funnel=model.funnel, kept=model.kept)
        return {name: selection}

    return _make(out, commits, {name: inputs}, select, model.rows_sha256 is not None)


def hash_view(pool: str, view: str) -> str:
    """The hash of a view from its masks, whether its document has one or not.

    ValueError where there is no such view, or it is older than the shards.
    """
    return hash_of(Pool.open(pool).view(view))


def hash_of(view: OpenView) -> str:
    """The hash of an open view."""
    return hash_rows(view.commits, {"": functools.partial(_kept_rows, view)})[""]


def _kept_rows(masks: OpenView, position: int) -> Mask:
    """(rows,) which rows of the shard at a position of its commits a view keeps."""
    return masks.kept_mask(int(masks.commits.shards[position]))


def check_view_name(name: str) -> None:
    """ValueError for a name that cannot be that of a file in the pool."""
    if not VIEW_NAME.fullmatch(name) or name.endswith(".json"):
        raise ValueError(
            f"a view cannot be named {name!r}: use letters, digits, '_', '-' and '.', at most "
            "100 of them, and do not begin with '.' or end with '.json'"
        )


def views_not_in(recipe: Recipe, layout: PoolLayout) -> list[str]:
    """Views of the pool that the recipe does not have. Random views of its own views, and views
    that are frozen or of selected rows, which come from no recipe, are not among them."""
    listed = {view.name for view in recipe.views}
    listed |= {random_view_name(name) for name in listed}
    names = []
    for name in view_names(layout):
        if RANDOM_SEED.sub("", name) in listed or not VIEW_NAME.fullmatch(name):
            continue  # of another name: a file that a person left there
        document = read_view(layout, name)
        if document is None or not (document.frozen or is_selected(document.rules)):
            names.append(name)
    return names


def differing_views(recipe: Recipe, layout: PoolLayout) -> dict[str, str]:
    """Views of the pool that were made with other rules than the recipe has for them, and what
    differs.
    """
    differing = {}
    for view in recipe.views:
        document = read_view(layout, view.name)
        if document is None:
            continue
        rules = rules_of(recipe.views, view.name)
        if rules != document.rules:
            differing[view.name] = "; ".join(_rule_changes(rules, document.rules))
    return differing


def unlisted_views_line(recipe: Recipe, names: Sequence[str]) -> str:
    """What to know about the views of `views_not_in`."""
    return (
        f"views that recipe {recipe.name!r} does not have stay in the pool: {', '.join(names)}; "
        "a view is removed by deleting views/NAME.json and then the folder views/NAME"
    )


def funnel_lines(documents: Mapping[str, ViewDocument]) -> list[str]:
    """Each view's funnel, thresholds and hash, if it has one, for a person to read."""
    lines = []
    for name, document in documents.items():
        total = document.funnel[0][1]
        lines.append(f"view {name}: {document.kept:,} of {total:,} rows kept")
        for step, left in document.funnel:
            lines.append(f"  {step:<32} {left:>12,} {left / total:>8.2%}")
        for call, threshold in document.thresholds.items():
            lines.append(
                f"  {call} = {threshold.value:.6g}, "
                f"which keeps {threshold.share:.4%} of {threshold.rows} rows"
            )
        if document.rows_sha256 is not None:
            lines.append(f"  hash of the rows {document.rows_sha256}")
    return lines


def _make(
    out: PoolWriter,
    commits: Commits,
    inputs: Mapping[str, Inputs],
    select: Select,
    hashed: bool,
    hashes: Mapping[str, str] | None = None,
    *,
    again: bool = False,
) -> dict[str, ViewDocument]:
    """The documents of the views in `inputs`. Those that were made from other inputs, or lack a
    file, are made: `select` adds their masks, then NAME.json is written. hashed: with their hashes,
    `hashes` where these are known. again: what is there is made too.

    After a crash in between a view does not exist. Where a rule cannot work, or leaves no row, the
    views of before stay as they are.
    """
    documents: dict[str, ViewDocument] = {}
    before: dict[str, ViewDocument | None] = {}  # of the views to make
    for name, given in inputs.items():
        document = read_view(commits.layout, name)
        is_made = document is not None and given.made(document) and has_masks(commits, document)
        if document is not None and is_made and not again:
            documents[name] = document
        else:
            _refuse_frozen(document, given)
            before[name] = document
    if before:
        masks = MaskFiles(out, commits, before)
        try:
            selections = select(masks, list(before), documents)
            kept_by = {name: functools.partial(masks.kept_rows, name) for name in before}
            # Before any document: one that a crash leaves behind is whole, and is not made again.
            hashes = hashes or (hash_rows(commits, kept_by) if hashed else {})
            for name, old in before.items():
                documents[name] = write_view(
                    masks, name, selections[name], inputs[name], old, hashes.get(name)
                )
        finally:
            masks.remove()
    return {name: documents[name] for name in inputs}


def add_hashes(out: PoolWriter, documents: Mapping[str, ViewDocument]) -> dict[str, ViewDocument]:
    """Write the hash of the rows into those documents that lack it; all as they are then."""
    pool, hashed = Pool(read_commits(out.pool)), dict(documents)
    kept_by = {
        name: functools.partial(_kept_rows, OpenView(pool, document))
        for name, document in documents.items()
        if document.rows_sha256 is None
    }
    for name, digest in hash_rows(pool.commits, kept_by).items() if kept_by else ():
        hashed[name] = replace(documents[name], rows_sha256=digest)
        out.write_json(out.layout.view_json(name), hashed[name], sealed=True)
    return hashed


def _refuse_frozen(document: ViewDocument | None, inputs: Inputs) -> None:
    """ValueError where a view is to be made in the place of one that is frozen."""
    if document is not None and document.frozen and not inputs.made(document):
        raise ValueError(
            f"view {document.name!r} is frozen: give the new one another name, or remove "
            f"views/{document.name}.json and then the folder views/{document.name}"
        )


def _by_rules(
    commits: Commits,
    views: Sequence[View],
    columns: Mapping[str, set[str]],
    sets: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Select:
    """What selects by the rules of `views`. columns: to read for each. sets: as of `Pool.read`.
    sizes: rows that views keep, if known.
    """

    def select(
        masks: MaskFiles, names: Sequence[str], made: Mapping[str, ViewDocument]
    ) -> Mapping[str, Selection]:
        known = {**sizes, **{name: document.kept for name, document in made.items()}}
        used = set[str]().union(*(columns[name] for name in names))
        source = JoinedColumns(commits, used, sets, encoded=True)
        return choose_parts(source, views, names, masks.add, known)

    return select


def write_view(
    masks: MaskFiles,
    name: str,
    selection: Selection,
    inputs: Inputs,
    before: ViewDocument | None,
    rows_sha256: str | None,
) -> ViewDocument:
    """Publish the masks of a view, then its document. before: the document of an earlier one.
    rows_sha256: hash of its rows, if it is known."""
    out, commits = masks.out, masks.commits
    layout, kept = out.layout, np.array(masks.kept[name], np.int64)
    moved = "" if before is None else _moved_text(masks, before)
    out.remove(layout.view_json(name))  # an old document must never describe new masks
    disk.sync_folder(layout.views)
    masks.publish(name)
    out.check()
    remove_view_shards(commits.layout, name)
    shards = write_view_shards(commits.layout, name, commits.shards, kept)
    disk.remove(layout.view_rules(name))
    if selection.effects:
        effects = ViewRulesDocument(
            fingerprint=inputs.fingerprint,
            stored=selection.funnel[1][1],
            rules=selection.effects,
        )
        out.write_json(layout.view_rules(name), effects, sealed=True)
    document = ViewDocument(
        name=name,
        rules=inputs.rules,
        thresholds=selection.thresholds,
        funnel=selection.funnel,
        kept=selection.kept,
        fingerprint=inputs.fingerprint,
        scores=inputs.scores,
        rows_sha256=rows_sha256,
        shards=shards,
        frozen=inputs.frozen,
    )
    out.write_json(layout.view_json(name), document, sealed=True)
    if before is None:
        logger.info("view %s keeps %d of %d rows", name, document.kept, document.funnel[0][1])
    else:
        logger.warning("%s%s", _change_line(before, document), moved)
    return document


def _moved_text(masks: MaskFiles, before: ViewDocument) -> str:
    """How many rows of the shards that an earlier view had are on the other side now: survivors of
    duplicates and thresholds of the whole pool change where a pool grows. "" where they cannot be
    read.
    """
    came = went = 0
    try:
        view = OpenView(Pool(masks.commits), before)
        for shard in view.shards.tolist():
            position = masks.commits.position(shard)
            if position is None:
                return ""
            old, new = view.kept_mask(shard), masks.kept_rows(before.name, position)
            came, went = came + int((new & ~old).sum()), went + int((old & ~new).sum())
    except (OSError, ValueError):  # damaged or gone: what is new is whole
        return ""
    return f"; of the rows that were there {went:,} went out and {came:,} came in"


def _change_line(before: ViewDocument, after: ViewDocument) -> str:
    """What changed in a view that was made again."""
    changes = []
    if before.rules != after.rules:
        changes += _rule_changes(before.rules, after.rules)
    if before.scores != after.scores:
        old, new = sorted(before.scores.values()), sorted(after.scores.values())
        changes.append(f"scores were {', '.join(old)} and are {', '.join(new)}")
    if before.fingerprint != after.fingerprint:
        changes.append(f"the pool had {before.shards.count} shards and has {after.shards.count}")
    return (
        f"view {after.name} changed: {'; '.join(changes)}; "
        f"it kept {before.kept} rows and keeps {after.kept}"
    )


def _rule_changes(before: Sequence[ViewRule], after: Sequence[ViewRule]) -> list[str]:
    """The rules that differ, each with what it was and what it is."""
    old = {rule.name: rule_text(rule) for rule in before}
    new = {rule.name: rule_text(rule) for rule in after}
    changes = []
    for name in {**old, **new}:
        if name not in new:
            changes.append(f"rule {name} ({old[name]}) is gone")
        elif name not in old:
            changes.append(f"rule {name} ({new[name]}) is new")
        elif old[name] != new[name]:
            changes.append(f"rule {name} was ({old[name]}) and is ({new[name]})")
    if not changes and list(old) != list(new):
        return ["the order of its rules"]
    return changes or ["the view that it is random_like has other rules"]


# --------------------------------------------------------------------------------------------------
# Views of rows that a program selects: those that locks have in common, or that a list names.


def selected_view(commits: Commits, name: str, where: str) -> ViewDocument | None:
    """The view `name` where `write_selected_view` made it of these shards for this `where`."""
    inputs = _selected_inputs(commits, where)
    document = read_view(commits.layout, name)
    if document is None or document.rows_sha256 is None or not inputs.made(document):
        return None  # a purge has removed some of its rows
    return document if has_masks(commits, document) else None


def write_selected_view(
    out: PoolWriter,
    commits: Commits,
    name: str,
    where: str,
    selects: Callable[[int, int], Mask],
    rows_sha256: str | None = None,
) -> ViewDocument:
    """Write the view of the stored rows that a program selects.

    where: what the rows are, in words that begin with "in "; it stands for the rule. selects:
    for rows `start` to `stop` of the pool, counted over all shards, which of them. rows_sha256:
    hash of the rows that it selects, if it is known. ValueError where none of them is stored.
    """

    def select(
        masks: MaskFiles, _: Sequence[str], __: Mapping[str, ViewDocument]
    ) -> dict[str, Selection]:
        source, stored_rows = JoinedColumns(commits, {"status"}, {}, encoded=True), 0
        for unit in range(source.units):
            for part in source.parts(unit):
                stored = stored_rows_of(part.table)
                stop = part.first_row + part.table.num_rows
                kept = stored & selects(part.first_row, stop)
                stored_rows += int(stored.sum())
                mask = mask_of(kept, (~stored).astype(np.int32), [SELECTED, NOT_STORED])
                start = 0
                for shard, size in part.sizes.items():
                    masks.add(name, shard, mask.slice(start, size))
                    start += size
        kept_rows = sum(masks.kept[name])
        if not kept_rows:
            raise ValueError(f"view {name!r} keeps nothing: no row of the pool is {where}")
        steps = (("attempted", source.rows), ("stored", stored_rows), (SELECTED, kept_rows))
        return {name: Selection(thresholds={}, funnel=steps, kept=kept_rows)}

    inputs = {name: _selected_inputs(commits, where)}
    hashes = {} if rows_sha256 is None else {name: rows_sha256}
    return _make(out, commits, inputs, select, True, hashes, again=True)[name]


def _selected_inputs(commits: Commits, where: str) -> Inputs:
    return Inputs(rules=selected_rules(where), scores={}, fingerprint=commits.fingerprint)
