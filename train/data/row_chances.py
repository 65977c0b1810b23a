"""The chances of the rows of balanced views: min(1, limit / column).

The column is read shard by shard, as rows are drawn: 8 bytes for each kept row of the shards that
are being drawn from. How many candidates a draw looks at follows from a sample of shards, which is
the same in every start of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.disk import to_plain
from manifests.pool_layout import shard_name
from manifests.schema import Balance
from train.data.row_numbers import values_of_rows
from train.data.view_rows import ViewRows
from train.mixing import Chances, candidates_for, expected_unique
from train.rng import Ints
from train.store import ShardCache

SAMPLED_SHARDS = 16


class ViewChances:
    """The chances of kept rows of balanced views; `train.mixing.RowChances`.

    rules: view -> its rule. cached: shards of a view whose chances stay in memory. ValueError for a
    column that is missing, or has no number above 0 in a kept row.
    """

    def __init__(
        self,
        views: Sequence[ViewRows],
        names: Sequence[str],
        rules: Mapping[str, Balance],
        cached: int,
    ) -> None:
        self._rules = dict(rules)
        self._caches: dict[int, ShardCache[Chances]] = {}
        self._samples: dict[int, Chances] = {}
        self.candidates: dict[int, int] = {}
        for s, (view, name) in enumerate(zip(views, names, strict=True)):
            if name in rules:
                self._caches[s] = ShardCache(cached, self._reader(view, name))
                self._samples[s] = self._sample(s, view)
                self.candidates[s] = candidates_for(float(self._samples[s].mean()))

    def __call__(self, source: int, shard: Ints, row: Ints) -> Chances:
        """(rows,) the chances of kept rows of a balanced source, above 0 and up to 1."""
        return values_of_rows(self._caches[source], shard, row, np.float64)

    def unique(self, source: int, rows: int, drawn: int) -> int:
        """About how many different rows come in so many draws."""
        return min(rows, drawn, round(expected_unique(self._samples[source], rows, drawn)))

    def identity(self) -> dict[str, Any]:
        """What decides the chances: {name of the source: its rule}."""
        rules: dict[str, Any] = to_plain(self._rules)
        return rules

    def _sample(self, source: int, view: ViewRows) -> Chances:
        """The chances of all kept rows of some shards."""
        with_rows = np.flatnonzero(np.asarray(view.shard_rows))
        chosen = np.linspace(0, len(with_rows) - 1, min(SAMPLED_SHARDS, len(with_rows)))
        read = self._caches[source]
        parts = [read(int(with_rows[int(k)])) for k in chosen]
        return np.concatenate([np.zeros(0), *parts])

    def _reader(self, view: ViewRows, name: str) -> Any:
        rule = self._rules[name]

        def read(number: int) -> Chances:
            counts = view.masks.kept_columns(number, [rule.column])[rule.column]
            values = _numbers(counts)
            if values is None or not bool((values > 0).all()):
                shard = shard_name(int(view.shards[number]))
                raise ValueError(
                    f"balance of {name}: column {rule.column!r} has no number above 0 in a kept "
                    f"row of shard {shard}; add the rule {rule.column} > 0 to the view"
                )
            chances: Chances = np.minimum(1.0, rule.limit / values)
            return chances

        return read


def _numbers(column: pa.ChunkedArray) -> Chances | None:
    """A column of numbers; None for one of another type. NULL is NaN."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)
