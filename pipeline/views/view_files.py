"""Views as files: reads the columns that the rules use, lets `choose` decide, and writes masks beside the shards.

NAME.json is written last and says everything the mask was made from; a view that is there already, from the same
rules, scores and shards, is not made again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from filters import FILTERS, make
from manifests import disk
from manifests.columns import SIDECAR, with_extra
from manifests.pool_layout import PoolLayout
from manifests.schema import FilterSpec, Recipe, Rule, View
from pipeline.pool import shard_writer
from pipeline.scoring import score_set
from pipeline.views.choose import Selection, check, choose, columns_of, like, rules_of

READERS = 8  # files that are opened at once: small ones, and far away ones wait for the network
NAME = re.compile(r"[\w.-]+")
SOURCE = {
    column: name for name, kind in FILTERS.items() for column in kind.adds
}  # score column -> filter
logger = logging.getLogger(__name__)


def check_views(recipe: Recipe) -> None:
    """ValueError for filters, options, rules and views that could not work, before anything is fetched for them."""
    for spec in recipe.filters:
        make(spec)
    added = [
        pa.field(column, kind.adds[column]) for kind in FILTERS.values() for column in kind.adds
    ]
    if taken := sorted(recipe.sidecar_extra.keys() & {field.name for field in added}):
        raise ValueError(f"extra_columns names {taken[0]!r}, which is a filter's column")
    check(recipe.views, pa.schema([*with_extra(SIDECAR, recipe.sidecar_extra), *added]))
    for view in recipe.views:
        _filters_used(recipe, view.name)


def choose_views(
    pool: str, recipe: Recipe, names: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Make the views of a recipe (default: all), and return what their NAME.json say.

    ValueError for unknown views and columns, rules that are none, filters that are not scored yet, and a view that
    keeps nothing.
    """
    fingerprint = _fingerprint(pool)
    wanted = [view.name for view in recipe.views] if names is None else list(names)
    for name in wanted:
        recipe.view(name)
    documents: dict[str, dict[str, Any]] = {}
    todo: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {}
    columns: set[str] = set()
    for name in wanted:
        rules = rules_of(recipe.views, name)
        used, specs = _filters_used(recipe, name)
        scores = {spec.name: score_set(pool, spec, fingerprint) for spec in specs}
        found = _document(pool, name)
        if (found.get("rules"), found.get("scores"), found.get("fingerprint")) == (
            rules,
            scores,
            fingerprint,
        ):
            documents[name] = found
        else:
            todo[name] = rules, scores
            columns |= used
    if todo:
        sets = {name: folder for _, scores in todo.values() for name, folder in scores.items()}
        sizes = {name: document["kept"] for name, document in documents.items()}
        selections = choose(_tables(pool, columns, sets), recipe.views, list(todo), sizes=sizes)
        for name, (rules, scores) in todo.items():
            documents[name] = _write(pool, name, selections[name], rules, scores, fingerprint)
    return {name: documents[name] for name in wanted}


def random_like(pool: str, view: str, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Make the view `random_like_VIEW`: as many stored rows as `view` keeps, drawn by xxh3(uid, seed).

    ValueError where the pool has no view of that name, or one that is older than its shards.
    """
    fingerprint = _fingerprint(pool)
    model = _document(pool, view)
    if model.get("fingerprint") != fingerprint:
        what = f"is older than the shards of {pool}" if model else f"is not in {pool}"
        raise ValueError(
            f"view {view!r} {what}; run pipeline/filter.py {pool} with its recipe first"
        )
    name = f"random_like_{view}"
    made = View(name=name, rules=(Rule(name="random", random_like=view, seed=seed),))
    rules = [{"name": "random", "random_like": view, "seed": seed, "like": like(model["rules"])}]
    found = _document(pool, name)
    if (found.get("rules"), found.get("scores"), found.get("fingerprint")) == (
        rules,
        model["scores"],
        fingerprint,
    ):
        return {name: found}
    selection = choose(_tables(pool, {"status", "uid"}, {}), [made], sizes={view: model["kept"]})[
        name
    ]
    return {name: _write(pool, name, selection, rules, model["scores"], fingerprint)}


def funnel_lines(documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each view's funnel and thresholds for a person to read."""
    lines = []
    for name, document in documents.items():
        total = document["funnel"][0][1]
        lines.append(f"view {name}: {document['kept']} of {total} rows kept")
        for step, left in document["funnel"]:
            lines.append(f"  {step:<32} {left:>12} {left / total:>8.2%}")
        for call, found in document["thresholds"].items():
            lines.append(
                f"  {call} = {found['value']:.6g}, which keeps {found['share']:.4%} of {found['rows']} rows"
            )
    return lines


def _fingerprint(pool: str) -> str:
    if not shard_writer.committed(pool):
        raise ValueError(
            f"{pool} has no committed shard; build it first: pipeline/build.py RECIPE --out {pool}"
        )
    return shard_writer.fingerprint(pool)


def _filters_used(recipe: Recipe, view: str) -> tuple[set[str], list[FilterSpec]]:
    """(columns that a view reads, the recipe's filters that give some of them)."""
    listed = {spec.name: spec for spec in recipe.filters}
    used = columns_of(recipe.views, view, [*SIDECAR.names, *recipe.sidecar_extra, *SOURCE])
    for column in sorted(used & SOURCE.keys()):
        if SOURCE[column] not in listed:
            raise ValueError(
                f"view {view!r} uses column {column!r} of filter {SOURCE[column]}, "
                f"which recipe {recipe.name!r} does not list"
            )
    return used, [
        listed[name] for name in sorted({SOURCE[column] for column in used & SOURCE.keys()})
    ]


def _tables(pool: str, columns: Iterable[str], sets: Mapping[str, str]) -> dict[str, pa.Table]:
    """The columns of each shard, side by side."""
    plain = sorted(column for column in columns if column not in SOURCE)
    scored = {sets[name]: sorted(c for c in columns if SOURCE.get(c) == name) for name in sets}

    def read(number: str) -> pa.Table:
        table = shard_writer.read_sidecar(pool, number, plain)
        for folder, wanted in scored.items():
            more = disk.read_parquet(PoolLayout(pool).score_columns(folder, number), wanted)
            assert more.num_rows == table.num_rows, (
                f"{folder}/{number} has {more.num_rows} rows, not {table.num_rows}"
            )
            for column in wanted:
                table = table.append_column(column, more[column])
        return table

    numbers = list(shard_writer.committed(pool))
    with ThreadPoolExecutor(READERS) as threads:
        return dict(zip(numbers, threads.map(read, numbers), strict=True))


def _document(pool: str, name: str) -> dict[str, Any]:
    """NAME.json of a view, {} where it is not there. ValueError for a name that is none."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a view cannot be named {name!r}: use letters, digits, '_', '-' and '.'")
    path = disk.join(pool, "views", f"{name}.json")
    return dict(disk.read_json(path)) if disk.exists(path) else {}


def _write(
    pool: str,
    name: str,
    chosen: Selection,
    rules: list[dict[str, Any]],
    scores: Mapping[str, str],
    fingerprint: str,
) -> dict[str, Any]:
    place = disk.join(pool, "views", f"{name}.json")
    disk.remove(place)  # until the new masks are all there, there is no view
    kept: dict[str, int] = {}
    for number, table in chosen.tables.items():
        kept[number] = sum(table["kept"].to_pylist())
        disk.write_parquet(
            disk.join(pool, "views", name, f"{number}.parquet"), table, {"kept": kept[number]}
        )
    document = {
        "name": name,
        "rules": rules,
        "thresholds": chosen.thresholds,
        "funnel": [list(step) for step in chosen.funnel],
        "kept": chosen.kept,
        "fingerprint": fingerprint,
        "scores": dict(scores),
        "shards": kept,
    }
    disk.write_json(place, document)
    logger.info("view %s keeps %d of %d rows", name, chosen.kept, chosen.funnel[0][1])
    return document
