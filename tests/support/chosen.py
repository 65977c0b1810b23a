"""Views and recipes in few words, and what views keep of rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from clipmill.manifests.records import RuleEffect, Threshold
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.views import choose as choosing


def view(name: str, *rules: tuple[str, str] | Rule) -> View:
    """A view of rules; those that are pairs are (name, SQL)."""
    made = [rule if isinstance(rule, Rule) else Rule(name=rule[0], where=rule[1]) for rule in rules]
    return View(name=name, rules=tuple(made))


def recipe(*views: View, filters: tuple[FilterSpec, ...] = ()) -> Recipe:
    """A recipe whose source does not matter."""
    source = Source(kind="files", paths=("x.csv",))
    return Recipe(name="r", source=source, filters=filters, views=views)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a view keeps. `tables`: shard -> table of schema MASK, aligned with its rows."""

    thresholds: dict[str, Threshold]
    funnel: tuple[tuple[str, int], ...]
    kept: int
    effects: tuple[RuleEffect, ...]
    tables: dict[str, pa.Table]

    def column(self, name: str) -> list[object]:
        """`kept` or `rule` of all rows."""
        return [value for table in self.tables.values() for value in table[name].to_pylist()]


def choose(
    rows: Mapping[str, pa.Table] | choosing.RowSource,
    views: Sequence[View],
    names: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Chosen]:
    """The rows of each view in `names` (default: all), of the joined columns of shards."""
    masks: dict[str, dict[str, pa.Table]] = {}

    def take(view: str, shard: str, mask: pa.Table) -> None:
        masks.setdefault(view, {})[shard] = mask

    wanted = [view.name for view in views] if names is None else list(names)
    source = choosing.InMemorySource(rows) if isinstance(rows, Mapping) else rows
    selections = choosing.choose_parts(source, views, wanted, take, sizes)
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
