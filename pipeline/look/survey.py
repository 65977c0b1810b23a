"""Everything that is computed once for the page of a pool."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Context, Decimal
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from clipmill.manifests import disk
from clipmill.manifests.aligned import view_names
from clipmill.manifests.arrays import Array, Bytes, Integers, Mask
from clipmill.manifests.columns import REASONS, SIDECAR, frequencies
from clipmill.manifests.commits import Commits, position_of, read_commits
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.pool import OpenView, Pool
from clipmill.manifests.records import PoolCounts, ScoreSetDocument, ViewDocument, read_document
from clipmill.manifests.text import printable
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.views.choose import rule_outcomes, with_derived
from clipmill.pipeline.views.files import JoinedColumns, list_columns
from clipmill.pipeline.views.rules import DERIVED, columns_on_disk, parse, quoted, step_of

# --------------------------------------------------------------------------------------------------
# The rows of a pool in memory: the columns that the page shows, of all shards or of a sample.
#
# It takes about 400 bytes a row. A pool of more rows than MOST_ROWS is shown by a sample of whole
# shards, those with the smallest hashes of their numbers.


MOST_ROWS = 5_000_000
READERS = 8  # threads that read shards; a store answers each after about 30 ms
# Columns of the sidecar that the page needs or shows, whatever the rules read.
SHOWN = (
    "uid", "url", "caption", "status", "reason", "width", "height", "original_width",
    "original_height", "http_status", "content_type", "image_offset", "image_length",
    "page_url", "page_lang", "elapsed_ms", "attempts",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A view of the pool. `kept`: (rows,) of the rows that were read; None for a stale view."""

    name: str
    document: ViewDocument
    kept: Mask | None = None
    first_rule: pa.ChunkedArray | None = None  # (rows,) that rejects a row first, dictionary


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRows:
    """Some rows of a pool with their columns, in the order of the pool."""

    commits: Commits
    table: pa.Table
    shards: Integers  # (shards,) that were read
    first_rows: Integers  # (shards + 1,) where each begins in the table
    stored: Mask
    views: tuple[PoolView, ...]
    meanings: Mapping[str, tuple[str, str]]  # column -> (source, meaning)
    problems: tuple[str, ...] = ()
    whole: bool = True  # all rows of the pool
    # column -> the score set that it is from
    sets: Mapping[str, ScoreSetDocument] = field(default_factory=dict)

    def location(self, row: int) -> tuple[int, int]:
        """(shard, row of the shard) of a row of the table."""
        position = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        return int(self.shards[position]), row - int(self.first_rows[position])

    def row_at(self, shard: int, row: int) -> int | None:
        """The row of the table; None where it was not read."""
        if (position := position_of(self.shards, shard)) is None:
            return None
        number = int(self.first_rows[position]) + row
        return number if row >= 0 and number < self.first_rows[position + 1] else None


def read_rows(commits: Commits, view: str | None = None, most_rows: int = MOST_ROWS) -> PoolRows:
    """The rows of a pool and what its views say of them.

    view: only this view. ValueError for an unknown view; FileNotFoundError where a shard was
    replaced while it was read.
    """
    pool = commits.pool
    problems: list[str] = []
    documents = _view_documents(commits.layout, view, problems)
    shards = _sample(commits, most_rows)
    current = {n: d for n, d in documents.items() if d.fingerprint == commits.fingerprint}
    scores = _current_scores(commits, problems)
    sets = _chosen_sets(commits, scores, current.values(), problems)
    names = _sidecar_columns(commits, current.values(), sets)
    tables = []
    if len(shards):
        set_of: dict[str, str] = {}
        for name, of_set in sets.items():
            set_of |= dict.fromkeys(of_set, name)
        wanted = [*names, *set_of]
        joined = JoinedColumns(commits, wanted, set_of)
        at = np.searchsorted(commits.shards, shards).tolist()
        with ThreadPoolExecutor(READERS) as threads:
            tables = [_widened(one.select(wanted)) for one in threads.map(joined.read_shard, at)]
    first_rows = np.cumsum([0, *(table.num_rows for table in tables)])
    empty = pa.table({name: pa.array([], SIDECAR.field(name).type) for name in SHOWN})
    table = with_derived(pa.concat_tables(tables) if tables else empty)
    del tables
    stored = np.asarray(pc.equal(table["status"], "success").to_numpy(), np.bool_)
    views = []
    for name, document in documents.items():
        views.append(_view(commits, name, document, shards, name in current, problems))
    meanings = {}
    if commits.totals.stored:
        meanings = {one.name: (one.source, one.meaning) for one in list_columns(pool)}
    of_columns: dict[str, ScoreSetDocument] = {}
    for name, columns in sets.items():
        of_columns |= dict.fromkeys(columns, scores[name])
    return PoolRows(
        commits=commits,
        table=table,
        shards=shards,
        first_rows=np.asarray(first_rows, np.int64),
        stored=stored,
        views=tuple(views),
        meanings=meanings,
        problems=tuple(problems),
        whole=len(shards) == len(commits),
        sets=of_columns,
    )


def _view_documents(
    layout: PoolLayout, view: str | None, problems: list[str]
) -> dict[str, ViewDocument]:
    names = view_names(layout)
    if view is not None:
        if view not in names:
            listed = ", ".join(names) or "none"
            suggestion = disk.did_you_mean(view, names)
            raise ValueError(f"{layout} has no view {view!r}{suggestion}; it has {listed}")
        names = [view]
    documents = {}
    for name in sorted(names):
        try:
            documents[name] = read_document(layout.view_json(name), ViewDocument)
        except ValueError as error:
            problems.append(str(error))
    return documents


def _sample(commits: Commits, most_rows: int) -> Integers:
    """All shards, or some with at most `most_rows` rows, and at least one."""
    if commits.totals.rows <= most_rows:
        return commits.shards
    hashes = text_hashes(map(shard_name, commits.shards.tolist()))
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum(commits.column("count").to_numpy()[order])
    return np.sort(commits.shards[order[: max(1, int((ends <= most_rows).sum()))]])


def _current_scores(commits: Commits, problems: list[str]) -> dict[str, ScoreSetDocument]:
    """The score sets of the rows that the pool has now."""
    pool = Pool(commits)
    for name in sorted(pool.all_score_sets.keys() - pool.score_sets.keys()):
        problems.append(f"scores {name} are of an older state of the pool: they are not shown")
    return pool.score_sets


def _chosen_sets(
    commits: Commits,
    current: Mapping[str, ScoreSetDocument],
    documents: Collection[ViewDocument],
    problems: list[str],
) -> dict[str, list[str]]:
    """Current score sets with the columns to read from each: those that views use come first."""
    used: list[str] = []
    for view in documents:
        used += [name for name in view.scores.values() if name in current]
    taken: set[str] = set()
    chosen, pool = {}, Pool(commits)
    for name in dict.fromkeys([*used, *current]):
        columns = [column for column in current[name].columns if column not in taken]
        if len(columns) < len(current[name].columns):
            problems.append(f"columns of scores {name} are in another score set too: one is shown")
        taken |= set(columns)
        # tokens and embeddings are read where needed
        schema = pool.score_schema(name)
        columns = [one for one in columns if not pa.types.is_nested(schema.field(one).type)]
        if columns:
            chosen[name] = columns
    return chosen


def _sidecar_columns(
    commits: Commits, documents: Collection[ViewDocument], sets: Mapping[str, list[str]]
) -> list[str]:
    """SHOWN, the recipe's own columns, and what the rules of the views read."""
    if not len(commits):
        return []
    available = Pool(commits).schema.names
    scored = {column for columns in sets.values() for column in columns}
    wanted = {*SHOWN, *(set(available) - set(SIDECAR.names))}
    for document in documents:
        wanted |= _columns_of_rules(document, [*available, *scored])
    return [name for name in available if name in wanted and name not in scored]


def _columns_of_rules(document: ViewDocument, known: Collection[str]) -> set[str]:
    """The columns that the rules read; of rules that cannot be read any more, none."""
    columns: set[str] = set()
    for step in map(step_of, document.rules):
        if step.where is not None:
            # Not prose of a selected view, nor a column that is not there any more.
            with suppress(ValueError):
                columns |= columns_on_disk(parse(step, [*known, *DERIVED]).columns)
    return columns


def _widened(table: pa.Table) -> pa.Table:
    """16-bit floats with 32 bits: DuckDB does not read them, nor does JSON hold them."""
    kinds = [pa.float32() if kind == pa.float16() else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _view(
    commits: Commits,
    name: str,
    document: ViewDocument,
    shards: Integers,
    is_current: bool,
    problems: list[str],
) -> PoolView:
    """A view with its masks, where they are those of the pool's shards."""
    unread = PoolView(name=name, document=document)
    if not is_current:
        if document.frozen:
            state = (
                f"is frozen, of {document.shards.count} of {len(commits)} shards: it is not shown"
            )
        else:
            state = "is older than the pool's shards: choose it again"
        problems.append(f"view {name} {state}")
        return unread
    try:
        view = OpenView(Pool(commits), document)
        masks = [_with_codes(view.mask(shard)) for shard in shards.tolist()]
    except (OSError, ValueError) as error:
        problems.append(f"the masks of view {name} cannot be read: {error}")
        return unread
    if not masks:
        return unread
    whole = pa.concat_tables(masks)
    kept = np.asarray(whole["kept"].to_numpy(), np.bool_)
    first_rule = whole["rule"].unify_dictionaries()
    return PoolView(name=name, document=document, kept=kept, first_rule=first_rule)


def _with_codes(mask: pa.Table) -> pa.Table:
    return pa.table({"kept": mask["kept"], "rule": mask["rule"].dictionary_encode()})


# --------------------------------------------------------------------------------------------------
# Columns of numbers in sorted order: exact counts above and below any threshold.
#
# NULL and NaN are in no order: rules take both as a missing value.


# Numbers of the sidecar that say where bytes lie, and nothing about a sample. Neither does the
# order of hashes, the columns *phash.
NUMBERS_NOT_SHOWN = frozenset(
    {"image_offset", "text_offset", "json_offset", "text_length", "json_length", "warc_offset"}
)
EXACT = Context(prec=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """A column of numbers of the stored rows. `rows`: (n,) numbers of rows in the order of the
    values, equal values in the order of the pool; `values`: (n,) sorted, without NULL and NaN."""

    name: str
    type: pa.DataType
    rows: NDArray[np.int32]
    values: Array
    nulls: int
    nans: int

    def below(self, threshold: str) -> int:
        """How many values are less than a decimal number. ValueError for what is no number."""
        return int(np.searchsorted(self.values, self.as_value(threshold), side="left"))

    def as_value(self, text: str) -> Any:
        """A decimal number as DuckDB compares it with the values of the column."""
        value = Decimal(text)
        if not value.is_finite():
            raise ValueError(f"{text!r} is not a finite number")
        if pa.types.is_integer(self.type):
            return int(value.to_integral_value("ROUND_CEILING", EXACT))
        return np.float64(text)


def sql_name(column: str) -> str:
    """A column in a rule, quoted where it is no plain word."""
    if column.isascii() and column.isidentifier():
        return column
    return quoted(column)


def number_columns(rows: PoolRows) -> Iterator[NumberColumn]:
    """The columns of numbers of a pool, sorted. One without a value is among them."""
    stored = pa.array(rows.stored)
    numbers = np.flatnonzero(rows.stored).astype(np.int32)
    for of_schema in rows.table.schema:
        kind = of_schema.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if (
            is_number
            and of_schema.name not in NUMBERS_NOT_SHOWN
            and not of_schema.name.endswith("phash")
        ):
            column = rows.table[of_schema.name].filter(stored)
            yield number_column(of_schema.name, column, numbers)


def number_column(name: str, column: pa.ChunkedArray, numbers: NDArray[np.int32]) -> NumberColumn:
    """column: the values of the stored rows; numbers: their row numbers."""
    valid = np.asarray(column.is_valid().to_numpy(), np.bool_)
    values: Array = pc.drop_null(column).to_numpy()
    of_values = numbers[valid]
    nans = 0
    if pa.types.is_floating(column.type):
        values = values.astype(np.float64)
        is_nan = np.isnan(values)
        nans = int(is_nan.sum())
        if nans:
            values, of_values = values[~is_nan], of_values[~is_nan]
    order = np.argsort(values, kind="stable")
    return NumberColumn(
        name=name,
        type=column.type,
        rows=of_values[order],
        values=values[order],
        nulls=int(column.null_count),
        nans=nans,
    )


def positions(column: NumberColumn, most: int) -> Integers:
    """Places in the sorted values where another value begins: all, or `most` of them at about
    equal distances in rank. An infinite value is no threshold."""
    values = column.values
    if not len(values):
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    if len(starts) > most:
        wanted = np.linspace(0, len(values) - 1, most)
        nearest = np.searchsorted(starts, wanted, side="right") - 1
        starts = starts[np.unique(nearest)]
    if values.dtype.kind == "f":
        starts = starts[np.isfinite(values[starts])]
    return starts.astype(np.int64)


def threshold_at(column: NumberColumn, position: int) -> str:
    """The shortest decimal number above the value before a position, and not above its own: as a
    threshold it divides the values exactly there. The value at the position is finite."""
    value = column.values[position]
    before = column.values[position - 1] if position else None
    if column.values.dtype.kind != "f":
        low = None if before is None else Decimal(int(before))
        return _shortest(low, Decimal(int(value)))
    low = None if before is None or not isfinite(before) else Decimal(float(before))
    text = _shortest(low, Decimal(float(value)))
    if _divides(column, text, before, value):
        return text
    return repr(float(value))


def _divides(column: NumberColumn, text: str, before: Any, value: Any) -> bool:
    """Whether a threshold lies between two values, however many bits it is compared with."""
    kinds: list[Any] = [np.float64]
    if column.type == pa.float32():
        kinds.append(np.float32)
    elif column.type == pa.float16():
        kinds += [np.float32, np.float16]
    for kind in kinds:
        threshold = float(kind(text))
        if threshold > value or (before is not None and threshold <= before):
            return False
    return True


def _shortest(low: Decimal | None, high: Decimal) -> str:
    """The number in (low, high] with the fewest digits; below `high` by at most 10 % without
    `low`."""
    if low is None:
        low = EXACT.subtract(high, EXACT.divide(abs(high), Decimal(10)) if high else Decimal(1))
    if low < 0 <= high:
        return "0"
    exponent = EXACT.subtract(high, low).adjusted() + 1
    while True:
        step = Decimal(1).scaleb(exponent)
        steps = EXACT.divide(high, step).to_integral_value(ROUND_FLOOR, EXACT)
        candidate = EXACT.multiply(steps, step)
        if candidate > low:
            return f"{candidate:f}"
        exponent -= 1


def counts_below(column: NumberColumn, scope: Mask, places: Integers) -> Integers:
    """(places,) rows of a scope with a value before each place. scope: (rows of the table,)."""
    ends = np.concatenate([[0], np.cumsum(scope[column.rows], dtype=np.int64)])
    return np.asarray(ends[places], np.int64)


# --------------------------------------------------------------------------------------------------
# Which rows the page shows as images. The choice depends on the uids alone, and is never by hand:
# of the candidates those with the smallest hashes of their uids.


# A rule that compares one column with one number.
COMPARISON = re.compile(r'\s*"?(\w+)"?\s*(?:>=|>|<=|<)\s*(-?\d+(?:\.\d+)?|top\([^()]*\))\s*', re.I)
SEED = 20240229
GROUP = 12  # images of a group
RULE_GROUP = 8  # of the rows that one rule rejects
RULES = 24  # rules of a view with a group of their own: those that reject most first
COPY_GROUPS = 12  # groups of copies of each filter
COPIES = 8  # images of a group of copies
LADDER = 24  # images per column of numbers, over its whole range
CANDIDATES = 64  # rows of which one is chosen: a hash of every uid of a large pool takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one kind. `view` is "" for all stored rows; `rule` is set for rejected rows."""

    view: str
    title: str
    rows: tuple[int, ...]
    of: int  # rows of this kind
    rule: str = ""
    survivors: tuple[int, ...] = ()  # of copies


class RowDraw:
    """Draws rows by the hash of their uids, the same ones whatever the order of the calls."""

    def __init__(self, rows: PoolRows) -> None:
        self._uids = rows.table["uid"]
        self._hashes: dict[int, int] = {}

    def draw(self, mask: Mask, count: int) -> tuple[int, ...]:
        """Up to `count` rows of a mask, in the order of their hashes. Of many rows it looks at
        some in equal distances."""
        numbers = np.flatnonzero(mask)
        return self.of_numbers(numbers, count)

    def of_numbers(self, numbers: Array, count: int) -> tuple[int, ...]:
        """The same for row numbers."""
        most = count * CANDIDATES
        if len(numbers) > most:
            numbers = numbers[np.linspace(0, len(numbers) - 1, most).astype(np.int64)]
        return tuple(sorted(numbers.tolist(), key=self._hash)[:count])

    def _hash(self, row: int) -> int:
        if row not in self._hashes:
            uid = self._uids[row].as_py() or ""
            self._hashes[row] = xxhash.xxh3_64_intdigest(uid.encode(), SEED)
        return self._hashes[row]


def example_groups(rows: PoolRows, views: Sequence[PoolView]) -> list[Group]:
    """Groups of stored rows: of the whole pool, and kept and rejected by each rule of each view."""
    draw = RowDraw(rows)
    stored = int(rows.stored.sum())
    groups = []
    if stored:
        drawn = draw.draw(rows.stored, GROUP)
        groups.append(Group(view="", title="stored", rows=drawn, of=stored))
    for view in views:
        if view.kept is None or view.first_rule is None:
            continue
        kept = draw.draw(view.kept, GROUP)
        groups.append(Group(view=view.name, title="kept", rows=kept, of=int(view.kept.sum())))
        groups += _rejected(rows, view, draw)
    return groups


def _rejected(rows: PoolRows, view: PoolView, draw: RowDraw) -> list[Group]:
    """Rows by the rule that rejects them first, the rule that rejects most first."""
    assert view.first_rule is not None
    counts = frequencies(view.first_rule.filter(rows.stored))
    groups = []
    for rule in sorted(counts, key=lambda name: (-counts[name], name))[:RULES]:
        mask = pc.fill_null(pc.equal(view.first_rule, rule), False).to_numpy()
        drawn = draw.draw(np.asarray(mask, np.bool_) & rows.stored, RULE_GROUP)
        title = f"rejected by {rule}"
        groups.append(Group(view=view.name, title=title, rows=drawn, of=counts[rule], rule=rule))
    return groups


def view_thresholds(view: PoolView, columns: Collection[str]) -> list[tuple[str, float]]:
    """(column, number) of each rule that compares one of some columns with a number or a top()."""
    resolved = {}
    for call, threshold in view.document.thresholds.items():
        resolved["".join(call.split()).lower()] = float(threshold.value)
    limits: dict[tuple[str, float], None] = {}
    for rule in view.document.rules:
        match = COMPARISON.fullmatch(rule.where or "")
        if match is None or match[1] not in columns:
            continue
        text = "".join(match[2].split()).lower()
        value = resolved.get(text) if text.startswith("top(") else float(text)
        if value is not None:
            limits[match[1], value] = None
    return list(limits)


def beside_thresholds(
    rows: PoolRows, views: Sequence[PoolView], columns: Mapping[str, NumberColumn]
) -> list[Group]:
    """The stored rows nearest to each threshold of each view, on both sides."""
    groups = []
    for view in views:
        for name, value in view_thresholds(view, columns):
            column = columns[name]
            rank = int(np.searchsorted(column.values, value, side="left"))
            low, high = nearest(column, rows.stored, rank, RULE_GROUP)
            above = len(column.values) - rank
            title = f"{name} = {value:.6g}"
            groups.append(Group(view=view.name, title=f"below {title}", rows=low, of=rank))
            groups.append(Group(view=view.name, title=f"from {title} on", rows=high, of=above))
    return groups


def copies(rows: PoolRows) -> list[Group]:
    """The largest groups of copies of each column NAME_group that a filter left, of two stored
    rows or more: the largest first, equal ones by name. The survivor of a group comes first."""
    groups = []
    for column in rows.table.column_names:
        name = column.removesuffix("_group")
        if column == name or f"{name}_size" not in rows.table.column_names:
            continue
        survives = None
        if f"{name}_survivor" in rows.table.column_names:
            survives = pc.fill_null(rows.table[f"{name}_survivor"], False).to_numpy()
        values = rows.table[column].combine_chunks()
        counts = pc.value_counts(values.filter(pa.array(rows.stored)).drop_null())
        sizes = np.asarray(counts.field("counts"))
        several = pa.array(sizes > 1)
        names = counts.field("values").filter(several).to_pylist()
        pairs = zip(names, sizes[sizes > 1].tolist(), strict=True)
        largest = sorted(pairs, key=lambda pair: (-pair[1], str(pair[0])))[:COPY_GROUPS]
        for number, (group, size) in enumerate(largest, start=1):
            same = np.asarray(pc.fill_null(pc.equal(values, group), False), np.bool_)
            of_group = np.flatnonzero(same & rows.stored)
            if survives is not None:
                of_group = of_group[np.argsort(~survives[of_group], kind="stable")]
            drawn = tuple(of_group[:COPIES].tolist())
            title = f"{name}: group {number}"
            kept = tuple(row for row in drawn if survives[row]) if survives is not None else ()
            groups.append(Group(view="", title=title, rows=drawn, of=size, survivors=kept))
    return groups


def ladder(rows: PoolRows, column: NumberColumn, steps: int = LADDER) -> tuple[int, ...]:
    """Rows spread evenly over the order of a column: one of each stretch, by hash."""
    draw = RowDraw(rows)
    chosen: list[int] = []
    for part in np.array_split(column.rows, steps):
        if len(part):
            chosen += draw.of_numbers(part, 1)
    return tuple(chosen)


def nearest(
    column: NumberColumn, scope: Mask, rank: int, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(rows of a scope just below a rank in the order of a column, rows from it on), each the
    nearest first."""
    below, above = column.rows[:rank][::-1], column.rows[rank:]
    low, high = (numbers[scope[numbers]][:count].tolist() for numbers in (below, above))
    return tuple(low), tuple(high)


# --------------------------------------------------------------------------------------------------
# Histograms of columns of numbers: every value is in exactly one bin.


BINS = 40
TAIL = 0.005  # of the values on each side that may lie in one bin
LONG_TAIL = 4.0  # times the range without the tails: above it, tails are put into the end bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """`places`: (bins + 1,) where each bin begins in the sorted values. The first bin holds
    everything below its upper edge, the last one everything from its lower edge on."""

    edges: tuple[float, ...]  # (bins + 1,) finite
    places: Integers
    cut_below: bool  # values lie below the first edge
    cut_above: bool


def histogram(column: NumberColumn, bins: int = BINS) -> Bins | None:
    """The bins of a column; None where it has no finite value."""
    values = column.values
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(finite):
        return None
    low, high = float(finite[0]), float(finite[-1])
    inner_low = float(finite[int(TAIL * (len(finite) - 1))])
    inner_high = float(finite[int((1 - TAIL) * (len(finite) - 1))])
    if inner_high > inner_low and high / LONG_TAIL - low / LONG_TAIL > inner_high - inner_low:
        low, high = inner_low, inner_high
    edges = _edges(low, high, bins, whole=values.dtype.kind != "f")
    inner = np.searchsorted(values, np.asarray(edges[1:-1]), side="left")
    places = np.concatenate([[0], inner, [len(values)]]).astype(np.int64)
    return Bins(
        edges=tuple(edges),
        places=places,
        cut_below=bool(values[0] < edges[0]),
        cut_above=bool(values[-1] > edges[-1]),
    )


def _edges(low: float, high: float, bins: int, *, whole: bool) -> list[float]:
    if high <= low:
        return [low - 0.5, low + 0.5]
    if whole:  # bins of whole numbers, each as wide as the others
        width = max(1, -(-int(high - low + 1) // bins))
        count = -(-int(high - low + 1) // width)
        return [low + width * i for i in range(count + 1)]
    return [low * (1 - i / bins) + high * (i / bins) for i in range(bins)] + [high]


def bin_counts(column: NumberColumn, shown: Bins, scope: Mask) -> list[int]:
    """Rows of a scope in each bin. scope: (rows of the table,)."""
    counts: list[int] = np.diff(counts_below(column, scope, shown.places)).tolist()
    return counts


# --------------------------------------------------------------------------------------------------
# The totals of a pool as the page shows them: its funnel, its reasons with an example of each.


CRAWL = "crawl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonLine:
    """Why links or rows are not stored."""

    reason: str
    kind: str  # CRAWL, or a class of REASONS
    count: int
    example: str = ""


def pool_funnel(counts: PoolCounts) -> list[tuple[str, int]]:
    """Links, pairs, attempted and stored rows."""
    steps = []
    if counts.crawl is not None:
        steps += [("links", counts.crawl.links), ("pairs", counts.crawl.pairs)]
    return [*steps, ("attempted", counts.fetch.attempted), ("stored", counts.fetch.stored)]


def reason_lines(counts: PoolCounts, table: pa.Table) -> list[ReasonLine]:
    """The reasons by their counts; the examples are from the rows that were read.

    links = pairs + crawl's reasons; attempted = stored + the other reasons.
    """
    lines = []
    if counts.crawl is not None:
        for reason, count in sorted(counts.crawl.reasons.items(), key=_by_count):
            lines.append(ReasonLine(reason=reason, kind=CRAWL, count=count))
    examples = _examples(table)
    for reason, count in sorted(counts.fetch.reasons.items(), key=_by_count):
        example = examples.get(reason, "")
        kind = REASONS.get(reason, "unknown")
        lines.append(ReasonLine(reason=reason, kind=kind, count=count, example=example))
    return lines


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _examples(table: pa.Table) -> dict[str, str]:
    """An address for each reason: the first row of the table that still has one."""
    columns = table.select(["reason", "url"])
    mask = pc.and_(columns["reason"].is_valid(), columns["url"].is_valid())
    columns = columns.filter(mask)
    grouped = columns.group_by("reason", use_threads=False).aggregate([("url", "first")])
    pairs = zip(grouped["reason"].to_pylist(), grouped["url_first"].to_pylist(), strict=True)
    return {reason: printable(url) for reason, url in pairs}


# --------------------------------------------------------------------------------------------------
# The most frequent values of columns of text: domains, languages, whatever a recipe adds.


SHOWN_VALUES = 25
FIRST = ("url_host", "page_host", "page_lang", "language")  # columns that stand first
# Columns of text that are different in nearly every row, or that another section shows.
VALUES_NOT_SHOWN = frozenset(
    {
        "url", "caption", "uid", "page_url", "status", "reason", "title", "anchor", "exif",
        "sha256", "final_url", "optout", "wat", "error_message", "image_name", "key", "class",
        "retry_of", "robots",
    }
)  # fmt: skip


def value_tables(rows: PoolRows, kept: Mapping[str, Mask]) -> Iterator[dict[str, Any]]:
    """A table of each column of text or of truth values that has a stored value: {column,
    distinct, lines}, each line {name, rows, stored, kept: by view}. The lines sum to all rows.

    kept: (rows,) by view.
    """
    names = [name for name in FIRST if name in rows.table.column_names]
    names += [name for name in rows.table.column_names if name not in names]
    for name in names:
        kind = rows.table.schema.field(name).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_shown = name not in VALUES_NOT_SHOWN and not name.endswith("_group")
        if is_shown and (is_text or pa.types.is_boolean(kind)):
            table = _value_table(rows, name, kept)
            if table["distinct"] and table["lines"][0]["stored"]:
                yield table


def _value_table(rows: PoolRows, name: str, kept: Mapping[str, Mask]) -> dict[str, Any]:
    column = rows.table[name]
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.string())
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)

    def counts(of_scope: Array) -> Integers:
        return np.bincount(of_scope, minlength=len(values) + 1)

    total, stored = counts(codes), counts(codes[rows.stored])
    of_views = {view: counts(codes[mask]) for view, mask in kept.items()}
    order = np.lexsort((np.arange(len(values)), -total[:-1], -stored[:-1])).tolist()
    listed, others = order[:SHOWN_VALUES], order[SHOWN_VALUES:]

    def line(name: str, places: list[int]) -> dict[str, Any]:
        return {
            "name": name,
            "rows": int(total[places].sum()),
            "stored": int(stored[places].sum()),
            "kept": {view: int(of_view[places].sum()) for view, of_view in of_views.items()},
        }

    lines = [line(printable(str(values[number])), [number]) for number in listed]
    lines.append(line("(no value)", [len(values)]))
    lines.append(line(f"({len(others):,} other values)", others))
    shown = [one for one in lines if one["rows"]]
    return {"column": name, "distinct": len(values), "lines": shown}


# --------------------------------------------------------------------------------------------------
# What the rules of a view do together and alone, over the rows that were read.


MATRIX_RULES = 30  # rules of which each pair is compared: those that reject most


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """Rows that one rule rejects. `rejected`, `missing` and `alone` are None where it cannot be
    evaluated on all stored rows."""

    name: str
    text: str
    columns: frozenset[str]
    first: int  # rows that this rule rejects and none before it
    rejected: int | None = None
    missing: int | None = None  # of them those with a NULL in a column that it reads
    alone: int | None = None  # rows that the view would keep without it


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEffects:
    """`overlap[i][j]`: rows that both rules reject, of the rules `compared`. `others[column]`:
    (rows,) rows that pass the rules that do not read a column; of other columns it is `kept`."""

    name: str
    stored: int
    kept: int
    rules: tuple[RuleLine, ...]
    compared: tuple[str, ...] = ()
    overlap: tuple[tuple[int, ...], ...] = ()
    others: Mapping[str, Mask] = field(default_factory=dict)
    disagrees: bool = False  # the rules, evaluated again, keep other rows than the masks

    def replaced(self, column: str) -> tuple[str, ...]:
        """The rules that read a column, which a new threshold takes the place of."""
        if not self.others:
            return ()
        return tuple(rule.name for rule in self.rules if column in rule.columns)


def view_effects(
    rows: PoolRows, view: PoolView, columns: Collection[str], sizes: Mapping[str, int]
) -> ViewEffects:
    """The effects of each rule of a current view.

    columns: for which `others` is wanted. sizes: rows that each view keeps.
    """
    assert view.kept is not None
    assert view.first_rule is not None
    times = np.zeros(rows.table.num_rows, np.int16)
    only = np.zeros(rows.table.num_rows, np.int16)  # number of the rule that rejected a row last
    without: dict[str, Mask] = {}
    packed: list[tuple[int, int, Bytes]] = []  # (rejected, -rule, bits)
    first = frequencies(view.first_rule)
    lines: list[RuleLine] = []
    known = True
    for number, outcome in enumerate(
        rule_outcomes(rows.table, view.document, sizes if rows.whole else None)
    ):
        line = RuleLine(
            name=outcome.name,
            text=outcome.text,
            columns=outcome.columns,
            first=first.get(outcome.name, 0) + first.get(f"{outcome.name}:missing", 0),
        )
        if outcome.rejected is None or outcome.missing is None:
            known = False
            lines.append(line)
            continue
        for column in (outcome.columns & set(columns)) - without.keys():
            without[column] = rows.stored & (times == 0)
        times += outcome.rejected
        only[outcome.rejected] = number
        for column in without:
            if column not in outcome.columns:
                without[column] &= ~outcome.rejected
        rejected = int(outcome.rejected.sum())
        missing = int(outcome.missing.sum())
        lines.append(replace(line, rejected=rejected, missing=missing))
        packed.append((rejected, -number, np.packbits(outcome.rejected)))
        packed = sorted(packed, reverse=True, key=lambda item: item[:2])[:MATRIX_RULES]
    if known:
        alone = np.bincount(only[times == 1], minlength=len(lines)).tolist()
        lines = [replace(one, alone=count) for one, count in zip(lines, alone, strict=True)]
    compared = sorted(packed, key=lambda item: -item[1])
    bits = [item[2] for item in compared]
    return ViewEffects(
        name=view.name,
        stored=int(rows.stored.sum()),
        kept=int(view.kept.sum()),
        rules=tuple(lines),
        compared=tuple(lines[-number].name for _, number, _ in compared),
        overlap=tuple(
            tuple(int(np.bitwise_count(one & other).sum()) for other in bits) for one in bits
        ),
        others=without if known else {},
        disagrees=known and not np.array_equal(view.kept, rows.stored & (times == 0)),
    )


# --------------------------------------------------------------------------------------------------
# Everything that is computed once for a page: columns in order, effects of rules, example rows.


DETAILED_VIEWS = 12  # views of which the page has every rule; of the others it has the funnel
ATTEMPTS = 3  # to read a pool in which a shard is replaced meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A pool as the page shows it. `detailed`: the views with effects, by name."""

    pool: str
    counts: PoolCounts
    rows: PoolRows
    columns: Mapping[str, NumberColumn]
    detailed: Mapping[str, PoolView]
    effects: Mapping[str, ViewEffects]

    def scope(self, view: str, column: str) -> Mask:
        """(rows,) stored rows that pass the rules of a view that do not read a column; all stored
        rows for view "". KeyError for a view that is not detailed."""
        if not view:
            return self.rows.stored
        mask = self.effects[view].others.get(column)
        if mask is not None:
            return mask
        kept = self.detailed[view].kept
        assert kept is not None
        return kept


def survey_pool(pool: str, view: str | None = None) -> Survey:
    """Read a pool. view: only this one. ValueError where there is no pool or no such view."""
    for attempt in range(ATTEMPTS):
        try:
            return _survey(pool, view)
        except FileNotFoundError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _survey(pool: str, view: str | None) -> Survey:
    commits = read_commits(pool)
    counts = count_pool(commits)
    rows = read_rows(commits, view)
    columns = {column.name: column for column in number_columns(rows)}
    sizes = {one.name: one.document.kept for one in rows.views}
    detailed: dict[str, PoolView] = {}
    effects: dict[str, ViewEffects] = {}
    for one in rows.views:
        if one.kept is not None and len(detailed) < DETAILED_VIEWS:
            detailed[one.name] = one
            effects[one.name] = view_effects(rows, one, columns.keys(), sizes)
    return Survey(
        pool=pool,
        counts=counts,
        rows=rows,
        columns=columns,
        detailed=detailed,
        effects=effects,
    )
