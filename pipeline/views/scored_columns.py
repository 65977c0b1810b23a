"""The columns that the filters of a recipe give to its rules, by the names of their instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from filters import FILTERS, Instance
from manifests.schema import Recipe
from pipeline.views.rules import columns_of


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
