"""What views keep of rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import pyarrow as pa

from manifests.records import RuleEffect, Threshold
from manifests.schema import View
from pipeline.views.choose import InMemorySource, choose_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a view keeps. `tables`: shard -> table of schema VIEW, aligned with its rows."""

    thresholds: dict[str, Threshold]
    funnel: tuple[tuple[str, int], ...]
    kept: int
    effects: tuple[RuleEffect, ...]
    tables: dict[str, pa.Table]


def choose(
    tables: Mapping[str, pa.Table],
    views: Sequence[View],
    names: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Chosen]:
    """The rows of each view in `names` (default: all), of the joined columns of shards."""
    masks: dict[str, dict[str, pa.Table]] = {}

    class Sink:
        def __init__(self, view: str) -> None:
            self._masks = masks.setdefault(view, {})

        def add(self, shard: str, mask: pa.Table) -> None:
            self._masks[shard] = mask

    wanted = [view.name for view in views] if names is None else list(names)
    selections = choose_parts(
        InMemorySource(tables), views, wanted, lambda view, _: nullcontext(Sink(view)), sizes
    )
    chosen = {}
    for name, one in selections.items():
        chosen[name] = Chosen(
            thresholds=one.thresholds,
            funnel=one.funnel,
            kept=one.kept,
            effects=one.effects,
            tables=masks[name],
        )
    return chosen
