"""The rows of some views divided into groups, by host, by the rule that drops them or by columns;
each group becomes a view of the pool.

A column of numbers is divided into ranges of equally many rows, one of embeddings into clusters,
and any other, or one of few whole numbers, by its most frequent values. Every further division is
made inside of each group of those before it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters import clusters
from clipmill.filters.columns import unit_vectors
from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Integers, Mask
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.pool import Pool
from clipmill.pipeline.archives.urls import host_of
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.score_sets import shards_with_rows
from clipmill.pipeline.views.files import (
    selected_view,
    write_selected_view,
)

HOST, RULE = "host", "rule"  # what a group may be by, beside columns
OTHERS, NOTHING = "others", "no value"
SHOWN = 60  # characters of a value in the name of a group
SAMPLE_ROWS = 50_000  # of embeddings that clusters are trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Rows of a pool in groups. of_row: (rows,) the number of each one's group, -1: in none."""

    names: tuple[str, ...]
    of_row: Integers


def group_views(
    out: PoolWriter,
    views: Sequence[str],
    by: Sequence[str],
    most: int,
    rule_view: str,
) -> dict[str, str]:
    """Make a view of each group of the rows that one of `views` keeps: view -> what it is. Those
    that are there stay as they are.

    by: HOST, RULE (of `rule_view`) or columns of the pool. most: groups at most. ValueError for a
    column that the pool does not have, and where there is one group only.
    """
    commits = shards_with_rows(read_commits(out.pool))
    division = divide_rows(commits, views, by, most, rule_view)
    rows = hashlib.sha256(division.of_row.tobytes()).hexdigest()  # rules and scores may change
    prefix = f"why_{disk.content_hash([commits.fingerprint, division.names, rows], 8)}"
    made = {}
    for number, name in enumerate(division.names):
        view = f"{prefix}_{number:02}"
        if selected_view(commits, view, f"in {name}") is None:
            selects = functools.partial(_rows_of, division.of_row == number)
            write_selected_view(out, commits, view, f"in {name}", selects)
        made[view] = name
    return made


def _rows_of(members: Mask, start: int, stop: int) -> Mask:
    return members[start:stop]


def divide_rows(
    commits: Commits, views: Sequence[str], by: Sequence[str], most: int, rule_view: str
) -> Division:
    """The groups of the rows that one of `views` keeps, the largest first."""
    inside = np.any([_mask(commits, view, "kept") for view in views], axis=0)
    division = Division(names=("",), of_row=np.where(inside, 0, -1))
    for key in by:
        cells = most // len(division.names)
        if cells < 2:
            raise ValueError(
                f"{len(division.names)} groups cannot be divided by {key!r} into at most {most}; "
                "name fewer columns, or allow more groups"
            )
        division = _divided(commits, division, key, cells, rule_view)
    if len(division.names) < 2:
        raise ValueError(f"all rows are in one group, {division.names[0]!r}; divide by another")
    return division


def _divided(
    commits: Commits, division: Division, key: str, cells: int, rule_view: str
) -> Division:
    """Every group divided into at most `cells`."""
    if key == RULE:
        return _by_values(division, RULE, _mask(commits, rule_view, "rule"), cells)
    view = Pool(commits).view(rule_view).document
    column = _column(commits, "url" if key == HOST else key, view.scores.values())
    if key == HOST:
        hosts = pa.array([host_of(url) for url in column.to_pylist()])
        return _by_values(division, HOST, hosts, cells)
    if pa.types.is_fixed_size_list(column.type):
        return _by_values(division, key, _clusters(column, division.of_row >= 0, cells), cells)
    kind = column.type
    many = pa.types.is_integer(kind) and pc.count_distinct(column).as_py() > cells
    if pa.types.is_floating(kind) or many:
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        thresholds = [
            float(one.value) for call, one in view.thresholds.items() if _column_of(call) == key
        ]
        return _by_ranges(division, key, values, cells, thresholds)
    return _by_values(division, key, column, cells)


def _column_of(call: str) -> str:
    """COLUMN of a call top(COLUMN, SHARE), as a rule spells it."""
    return call.partition("(")[2].rpartition(",")[0].strip().strip('"')


def _by_values(division: Division, key: str, column: pa.Array, cells: int) -> Division:
    """By the most frequent values; all others are one group, and so are rows without a value."""
    inside = division.of_row >= 0
    texts = pc.fill_null(column.cast(pa.string()), NOTHING).dictionary_encode()
    codes = texts.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(codes[inside], minlength=len(texts.dictionary))
    order = [code for code in np.argsort(-counts, kind="stable").tolist() if counts[code]]
    names = [f"{key} = {texts.dictionary[code].as_py()[:SHOWN]}" for code in order[:cells]]
    if len(order) > cells:
        names[-1] = f"{key}: {OTHERS}"
    number = np.full(len(texts.dictionary), len(names) - 1, np.int64)
    number[order[: len(names)]] = np.arange(len(names))
    return _crossed(division, number[codes], [names] * len(division.names))


def _by_ranges(
    division: Division,
    key: str,
    values: FloatArray,
    cells: int,
    thresholds: Sequence[float],
) -> Division:
    """By ranges of equally many rows inside of each group, the smallest values first. A border
    moves to each threshold, so that no group has rows on both sides of it. ValueError where there
    are more thresholds than borders.
    """
    number = np.zeros(len(values), np.int64)
    names = []
    for group in range(len(division.names)):
        rows = np.flatnonzero(division.of_row == group)
        there = np.isfinite(values[rows])
        parts = max(1, cells - (not there.all()))
        inner = np.zeros(0)
        if parts > 1 and there.any():
            inner = np.quantile(values[rows][there], np.linspace(0, 1, parts + 1)[1:-1])
        if there.any():
            least, largest = values[rows][there].min(), values[rows][there].max()
            parting = {one for one in thresholds if least < one <= largest}
            if len(parting) > len(inner):
                raise ValueError(
                    f"{key} has {len(parting)} thresholds, which make more than {cells} groups of "
                    f"{division.names[group] or 'the rows'}; allow more groups"
                )
            free = np.full(len(inner), True)
            for threshold in sorted(parting):
                place = np.argmin(np.where(free, abs(inner - threshold), np.inf))
                inner[place], free[place] = threshold, False
        borders = np.unique(inner)
        number[rows] = np.searchsorted(borders, values[rows], "right")
        number[rows[~there]] = len(borders) + 1
        ends = ["", *(f"{one:g}" if one in thresholds else f"{one:.4g}" for one in borders), ""]
        of_group = []
        for low, high in itertools.pairwise(ends):
            of_group.append(f"{low or '…'} <= {key} < {high or '…'}")
        names.append([*of_group, f"{key}: {NOTHING}"])
    return _crossed(division, number, names)


def _clusters(column: pa.Array, inside: Mask, cells: int) -> pa.Array:
    """The cluster of each row by spherical k-means; NULL for rows without an embedding."""
    vectors, usable = unit_vectors(column)
    rows = np.flatnonzero(usable & inside)
    cells -= int(len(rows) < inside.sum())  # those without one are a group
    sample = np.random.default_rng(0).permutation(rows)[:SAMPLE_ROWS]
    centroids = clusters.train(vectors[sample], len(rows), max(1, cells), 0, "cpu")
    return pa.array(clusters.assign(vectors, centroids), mask=~usable)


def _crossed(division: Division, number: Integers, names: Sequence[Sequence[str]]) -> Division:
    """The groups by `number` inside of each group; empty ones are left out. names: of the numbers,
    for each group.
    """
    of_row = np.full(len(number), -1, np.int64)
    crossed: list[str] = []
    for group, name in enumerate(division.names):
        for part, text in enumerate(names[group]):
            rows = (division.of_row == group) & (number == part)
            if rows.any():
                of_row[rows] = len(crossed)
                crossed.append(f"{name}, {text}" if name else text)
    return Division(names=tuple(crossed), of_row=of_row)


def _mask(commits: Commits, view: str, column: str) -> Mask | pa.Array:
    """A column of the masks of a view: `kept`, or `rule` with NULL as "kept"."""
    masks = Pool(commits).view(view)
    if masks.document.fingerprint != commits.fingerprint:
        raise ValueError(
            f"view {view!r} of {commits.pool} is frozen and of some of its shards; groups are made "
            "of views of the whole pool"
        )
    parts = [masks.mask(int(shard), [column])[column] for shard in commits.shards]
    array = pa.chunked_array([chunk for part in parts for chunk in part.chunks]).combine_chunks()
    if column == "kept":
        return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
    return pc.fill_null(array.cast(pa.string()), "kept")


def _column(commits: Commits, name: str, preferred: Collection[str] = ()) -> pa.Array:
    """A column of the sidecars or of a current score set, of a preferred one where several have it.
    ValueError where there is none, and where it is not known which.
    """
    pool = Pool(commits)
    known, sets = list(pool.schema.names), []
    for set_name, document in pool.score_sets.items():
        known += document.columns
        if name in document.columns:
            sets.append(set_name)
    if name not in known:
        near = disk.did_you_mean(name, [HOST, RULE, *known])
        raise ValueError(
            f"{commits.pool} has no column {name!r}{near}; clipmill filter columns "
            f"{commits.pool} lists them"
        )
    if len(sets) > 1:
        used = [set_name for set_name in sets if set_name in preferred]
        if len(used) != 1:
            raise ValueError(
                f"the score sets {' and '.join(sorted(sets))} of {commits.pool} have a column "
                f"{name!r}, and the arm's view does not say which; let a rule of it read the column"
            )
        sets = used
    set_of = dict.fromkeys([name], sets[0]) if sets else {}
    parts = [pool.read(int(shard), [name], set_of)[name] for shard in commits.shards]
    chunks = [chunk for part in parts for chunk in part.chunks]
    return pa.chunked_array(chunks, parts[0].type).combine_chunks()
