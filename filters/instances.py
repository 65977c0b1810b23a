"""Instances: the filters of a recipe by the names that the recipe gives them.

The columns of an instance that has another name than its filter carry the instance's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from filters.base import GROUP, FilterBase
from manifests.columns import DERIVED_NAMES, SIDECAR

INSTANCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
# GROUP is a name that a pass gives to a column of its own.
RESERVED = frozenset({*SIDECAR.names, *DERIVED_NAMES, GROUP})


def instance_column(kind: str, instance: str, column: str) -> str:
    """The name of a filter's column in an instance: `clip_score` of the filter clip_score is
    `clip_l14` in the instance clip_l14, and `duplicate_group` is `near_group` in `near`.
    """
    if instance == kind:
        return column
    if column == kind:
        return instance
    return f"{instance}_{column.removeprefix(kind + '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A filter under the name that the recipe gives it."""

    name: str
    kind: str  # a key of FILTERS, or PATH.py:CLASS
    filter: FilterBase

    @property
    def is_own_kind(self) -> bool:
        """True where the recipe names the filter by its own name."""
        return self.name == self.kind

    def column_names(self) -> dict[str, str]:
        """The filter's own name of each column -> its name in this instance."""
        own = self.name if self.is_own_kind else self.filter.name
        names = {}
        for column in self.filter.columns():
            names[column] = instance_column(own, self.name, column)
        return names

    def columns(self) -> dict[str, pa.DataType]:
        """The columns by their names in this instance."""
        names = self.column_names()
        return {names[column]: kind for column, kind in self.filter.columns().items()}

    def meanings(self) -> dict[str, str]:
        """A line for each column that the filter explains."""
        names = self.column_names()
        meanings = self.filter.meanings
        return {names[column]: meanings[column] for column in names if column in meanings}


def check_instance_name(name: str, filters: Mapping[str, type[FilterBase]]) -> None:
    """ValueError for a name that is no name of a column and of a folder, or that is taken."""
    if not INSTANCE_NAME.fullmatch(name):
        raise ValueError(
            f"filters: an instance cannot be named {name!r}: use a letter a-z, then a-z, 0-9 and "
            "'_', at most 60 characters, as in {clip_l14: {clip_score: {…}}}"
        )
    taken = None
    if name in RESERVED:
        taken = "a column of every pool"
    elif name in filters:
        taken = "another filter"
    else:
        for filter_name, filter_class in filters.items():
            if name in filter_class.adds:
                taken = f"a column of the filter {filter_name}"
    if taken is not None:
        raise ValueError(
            f"filters: an instance cannot be named {name!r}, which is {taken}; give it another name"
        )
