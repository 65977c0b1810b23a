"""Score sets of a pool: their names, their documents, and the filters that a command asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from filters import specs_of_recipe
from filters.base import FilterBase, set_id
from manifests import disk
from manifests.documents import ScoreSetDocument, read_document
from manifests.pool_layout import PoolLayout
from manifests.schema import FilterSpec, Recipe


def name_of_filter(
    filter_: FilterBase, instance: str | None = None, reads: Sequence[str] = ()
) -> str:
    """NAME@ID: the folder that holds a filter's columns, whether it exists or not.

    instance: its name, where the filter has another one. reads: the score sets that it reads.
    """
    ids = [name.partition("@")[2] for name in reads]
    return f"{instance or filter_.name}@{set_id(filter_, ids)}"


def read_score_set(pool: str, name: str) -> ScoreSetDocument | None:
    """scores.json of a set, None where it was never complete. ValueError for a damaged file."""
    path = PoolLayout(pool).score_set_json(name)
    if not disk.exists(path):
        return None
    try:
        return read_document(path, ScoreSetDocument)
    except ValueError as error:
        raise ValueError(
            f"{error}; run python pipeline/score.py {pool} with the same recipe"
        ) from error


def score_set_names(pool: str) -> list[str]:
    """The complete score sets of a pool."""
    layout = PoolLayout(pool)
    names = [name for name in disk.list_names(layout.scores) if "@" in name]
    return [name for name in names if disk.exists(layout.score_set_json(name))]


def complete_score_sets(pool: str) -> dict[str, ScoreSetDocument]:
    """The documents of all complete score sets, by name. ValueError for a damaged one."""
    layout = PoolLayout(pool)
    return {
        name: read_document(layout.score_set_json(name), ScoreSetDocument)
        for name in score_set_names(pool)
    }


def filter_specs(
    recipe: Recipe | None, names: Sequence[str], changes: Mapping[str, Any]
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
