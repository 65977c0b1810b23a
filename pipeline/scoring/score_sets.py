"""Score sets of a pool: their names, their documents, and the filters that a command asks for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from filters import make, specs_of_recipe
from filters.base import FilterBase, set_id
from manifests import disk
from manifests.commits import read_commits
from manifests.documents import ScoreSetDocument, read_document
from manifests.pool_layout import PoolLayout
from manifests.schema import FilterSpec, Recipe

logger = logging.getLogger(__name__)


def name_of_filter(filter_: FilterBase) -> str:
    """NAME@ID: the folder that holds a filter's columns, whether it exists or not."""
    return f"{filter_.name}@{set_id(filter_)}"


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


def score_set(
    pool: str, spec: FilterSpec, fingerprint: str | None = None
) -> tuple[str, ScoreSetDocument]:
    """(NAME@ID, document) of a filter's columns in `pool`.

    fingerprint: the pool's, if the caller knows it. ValueError with the command to give where
    columns are missing.
    """
    if fingerprint is None:
        fingerprint = read_commits(pool).fingerprint
    filter_ = make(spec)
    current = current_score_set(pool, filter_, fingerprint)
    if current is not None:
        return current
    names = [name_of_filter(alternative) for alternative in filter_.alternatives()]
    is_old = any(read_score_set(pool, name) for name in names)
    state = "of an older state of the pool" if is_old else "not there"
    raise ValueError(
        f"{pool}: the scores of filter {spec.name} ({' or '.join(names)}) are {state}; "
        f"run pipeline/score.py {pool} with the same recipe"
    )


def current_score_set(
    pool: str, filter_: FilterBase, fingerprint: str, *, skip_damaged: bool = False
) -> tuple[str, ScoreSetDocument] | None:
    """(NAME@ID, document) of the complete set of a filter, whichever kind of machine scored it;
    None without one.

    skip_damaged: a damaged document counts as none, because it is made again from the columns.
    """
    for alternative in filter_.alternatives():
        name = name_of_filter(alternative)
        try:
            document = read_score_set(pool, name)
        except ValueError as error:
            if not skip_damaged:
                raise
            logger.warning("scores.json of %s is made again: %s", name, error)
            continue
        if document is not None and document.fingerprint == fingerprint:
            return name, document
    return None


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
