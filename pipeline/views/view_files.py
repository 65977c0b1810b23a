"""Views as files: reads the columns that the rules need, lets `choose` decide, and writes masks
beside the shards.

NAME.json is written last and says everything that the masks were made from. A view that exists
already, from the same rules, scores and shards, is not made again. One that changed is named in a
log line with what changed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from filters import FILTERS, check_filters, specs_of_recipe
from manifests import disk
from manifests.columns import SIDECAR, with_extra
from manifests.documents import (
    ScoreSetDocument,
    ViewDocument,
    ViewRulesDocument,
    read_document,
)
from manifests.pool_layout import CommitRecord, PoolLayout, pool_fingerprint, random_view_name
from manifests.schema import FilterSpec, Recipe, Rule, View
from pipeline.pool import check_fence
from pipeline.scoring import score_set, shards_with_rows
from pipeline.views.choose import Selection, check, choose
from pipeline.views.rules import columns_of
from pipeline.views.steps import rule_text, rules_hash, rules_of

READERS = 8  # files that are open at once: most are small, and remote ones wait for the network
RANDOM_SEED = re.compile(r"(?<=.)\.seed-\d+$")  # ends the name of a random view of one seed
VIEW_NAME = re.compile(r"[\w-][\w.-]{0,99}")  # not "..", not hidden, fits a file name
FILTER_OF_COLUMN: dict[str, str] = {}  # score column -> filter
for _name, _filter_class in FILTERS.items():
    FILTER_OF_COLUMN |= dict.fromkeys(_filter_class.adds, _name)
logger = logging.getLogger(__name__)

Records = Mapping[str, CommitRecord]
ScoreSets = dict[str, tuple[str, ScoreSetDocument]]  # filter -> (NAME@ID, scores.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a view is made from. A view with equal inputs is not made again."""

    rules: tuple[dict[str, Any], ...]
    scores: dict[str, str]  # filter -> NAME@ID
    fingerprint: str

    def made(self, document: ViewDocument | None) -> bool:
        """True if `document` was made from these inputs."""
        return document is not None and self == Inputs(
            rules=document.rules, scores=document.scores, fingerprint=document.fingerprint
        )


def check_views(recipe: Recipe) -> None:
    """ValueError for filters, options, models, rules and views that cannot work. Neither pool
    nor weights are read."""
    check_filters(specs_of_recipe(recipe))
    added = []
    for filter_class in FILTERS.values():
        added += [pa.field(column, kind) for column, kind in filter_class.adds.items()]
    if taken := sorted(recipe.sidecar_extra.keys() & FILTER_OF_COLUMN.keys()):
        raise ValueError(f"extra_columns names {taken[0]!r}, which is a filter's column")
    check(recipe.views, pa.schema([*with_extra(SIDECAR, recipe.sidecar_extra), *added]))
    columns = [*SIDECAR.names, *recipe.sidecar_extra]
    for view in recipe.views:
        check_view_name(view.name)
        _columns_and_filters(recipe, view.name, columns)


def choose_views(
    pool: str, recipe: Recipe, names: Sequence[str] | None = None, fence: int | None = None
) -> dict[str, ViewDocument]:
    """Make the views of a recipe (default: all), and return their documents.

    `fence`: that of the lease; LeaseLost where another command has taken it over.
    ValueError for unknown views and columns, rules that are no rules, filters that are not scored
    yet, a pool without stored rows, and a view that keeps nothing.
    """
    records = shards_with_rows(pool)
    fingerprint = pool_fingerprint(records)
    wanted = [view.name for view in recipe.views] if names is None else list(names)
    documents: dict[str, ViewDocument] = {}
    before: dict[str, ViewDocument | None] = {}
    todo: dict[str, Inputs] = {}
    columns: set[str] = set()
    sets: ScoreSets = {}
    # What filter.py --columns lists: extra columns are the pool's, whatever this recipe names.
    in_sidecars = disk.read_schema(PoolLayout(pool).sidecar(next(iter(records)))).names
    for name in wanted:
        recipe.view(name)
        used, specs = _columns_and_filters(recipe, name, in_sidecars)
        for spec in specs:
            if spec.name not in sets:
                sets[spec.name] = score_set(pool, spec, fingerprint)
        inputs = Inputs(
            rules=rules_of(recipe.views, name),
            scores={spec.name: sets[spec.name][0] for spec in specs},
            fingerprint=fingerprint,
        )
        document = read_view(pool, name)
        if document is not None and inputs.made(document):
            documents[name] = document
            continue
        before[name] = document
        todo[name] = inputs
        columns |= used
    if todo:
        sizes = {name: document.kept for name, document in documents.items()}
        tables = _tables(pool, records, columns, sets)
        selections = choose(tables, recipe.views, list(todo), sizes=sizes)
        for name, inputs in todo.items():
            check_fence(pool, fence)
            documents[name] = _write(pool, name, selections[name], inputs, before[name])
    if names is None and (unlisted := views_not_in(recipe, pool)):
        logger.warning("%s", unlisted_views_line(recipe, unlisted))
    return {name: documents[name] for name in wanted}


def random_like(
    pool: str, view: str, seeds: Sequence[int] | None = None, fence: int | None = None
) -> dict[str, ViewDocument]:
    """Make random views: as many stored rows as `view` keeps, drawn by xxh3(uid, seed).

    There is one `random_like_VIEW.seed-N` for each of the seeds; without seeds it is
    `random_like_VIEW`, which is drawn with seed 0. `fence`: that of the lease. ValueError if the
    pool has no view of that name, or one that is older than its shards.
    """
    records = shards_with_rows(pool)
    fingerprint = pool_fingerprint(records)
    model = read_view(pool, view)
    if model is None or model.fingerprint != fingerprint:
        state = f"is older than the shards of {pool}" if model else f"is not in {pool}"
        raise ValueError(
            f"view {view!r} {state}; run pipeline/filter.py {pool} with its recipe first"
        )
    documents: dict[str, ViewDocument] = {}
    todo: dict[str, tuple[View, Inputs, ViewDocument | None]] = {}
    for seed in [None] if seeds is None else seeds:
        name = random_view_name(view, seed)
        rule = Rule(name="random", random_like=view, seed=seed or 0)
        plain = {"name": "random", "random_like": view, "seed": seed or 0}
        rules = ({**plain, "like": rules_hash(model.rules)},)
        inputs = Inputs(rules=rules, scores=model.scores, fingerprint=fingerprint)
        document = read_view(pool, name)
        if document is not None and inputs.made(document):
            documents[name] = document
        else:
            todo[name] = (View(name=name, rules=(rule,)), inputs, document)
    if todo:
        tables = _tables(pool, records, {"status", "uid"}, {})
        views = [random_view for random_view, _, _ in todo.values()]
        selections = choose(tables, views, sizes={view: model.kept})
        for name, (_, inputs, document) in todo.items():
            check_fence(pool, fence)
            documents[name] = _write(pool, name, selections[name], inputs, document)
    return documents


def read_view(pool: str, name: str) -> ViewDocument | None:
    """NAME.json of a view, None where it does not exist or is damaged. ValueError for an
    impossible name."""
    check_view_name(name)
    path = PoolLayout(pool).view_json(name)
    if not disk.exists(path):
        return None
    try:
        return read_document(path, ViewDocument)
    except ValueError as error:
        logger.warning("view %s is made again: %s", name, error)
        return None


def check_view_name(name: str) -> None:
    """ValueError for a name that cannot be that of a file in the pool."""
    if not VIEW_NAME.fullmatch(name):
        raise ValueError(
            f"a view cannot be named {name!r}: use letters, digits, '_', '-' and '.', at most "
            "100 of them, and do not begin with '.'"
        )


def views_not_in(recipe: Recipe, pool: str) -> list[str]:
    """Views of the pool that the recipe does not have. Random views of its own views are not
    among them."""
    listed = {view.name for view in recipe.views}
    listed |= {random_view_name(name) for name in listed}
    names = []
    for file in disk.list_names(PoolLayout(pool).views, ".json"):
        name = file.removesuffix(".json")
        if RANDOM_SEED.sub("", name) not in listed:
            names.append(name)
    return names


def differing_views(recipe: Recipe, pool: str) -> dict[str, str]:
    """Views of the pool that were made with other rules than the recipe has for them, and what
    differs.
    """
    differing = {}
    for view in recipe.views:
        document = read_view(pool, view.name)
        if document is None:
            continue
        rules = rules_of(recipe.views, view.name)
        if disk.to_plain(rules) != disk.to_plain(document.rules):
            differing[view.name] = "; ".join(_rule_changes(rules, document.rules))
    return differing


def unlisted_views_line(recipe: Recipe, names: Sequence[str]) -> str:
    """What to know about the views of `views_not_in`."""
    return (
        f"views that recipe {recipe.name!r} does not have stay in the pool: {', '.join(names)}; "
        "a view is removed by deleting views/NAME.json and then the folder views/NAME"
    )


def funnel_lines(documents: Mapping[str, ViewDocument]) -> list[str]:
    """Each view's funnel and thresholds for a person to read."""
    lines = []
    for name, document in documents.items():
        total = document.funnel[0][1]
        lines.append(f"view {name}: {document.kept} of {total} rows kept")
        for step, left in document.funnel:
            lines.append(f"  {step:<32} {left:>12} {left / total:>8.2%}")
        for call, threshold in document.thresholds.items():
            lines.append(
                f"  {call} = {threshold.value:.6g}, "
                f"which keeps {threshold.share:.4%} of {threshold.rows} rows"
            )
    return lines


def _columns_and_filters(
    recipe: Recipe, view: str, in_sidecars: Sequence[str]
) -> tuple[set[str], list[FilterSpec]]:
    """(columns that a view reads, the recipe's filters that give some of them)."""
    listed = {spec.name: spec for spec in specs_of_recipe(recipe)}
    columns = columns_of(recipe.views, view, [*in_sidecars, *FILTER_OF_COLUMN])
    used_filters = set()
    for column in sorted(columns & FILTER_OF_COLUMN.keys()):
        if FILTER_OF_COLUMN[column] not in listed:
            raise ValueError(
                f"view {view!r} uses column {column!r} of filter {FILTER_OF_COLUMN[column]}, "
                f"which recipe {recipe.name!r} does not list"
            )
        used_filters.add(FILTER_OF_COLUMN[column])
    return columns, [listed[name] for name in sorted(used_filters)]


def _tables(
    pool: str, records: Records, columns: Iterable[str], sets: ScoreSets
) -> dict[str, pa.Table]:
    """The columns of each shard, side by side."""
    wanted = set(columns)
    sidecar_columns = sorted(wanted - FILTER_OF_COLUMN.keys())
    layout = PoolLayout(pool)

    def read(shard: str) -> pa.Table:
        table = disk.read_parquet(layout.sidecar(shard), sidecar_columns)
        for filter_name, (folder, document) in sets.items():
            of_set = sorted(wanted & FILTERS[filter_name].adds.keys())
            if not of_set:
                continue
            path = layout.score_columns(folder, shard)
            scores = disk.read_parquet(path, of_set)
            _check_alignment(scores, path, document.shards[shard], records[shard])
            for column in of_set:
                table = table.append_column(column, scores[column])
        return table

    with ThreadPoolExecutor(READERS) as threads:
        return dict(zip(records, threads.map(read, records), strict=True))


def _check_alignment(scores: pa.Table, path: str, checksum: str, record: CommitRecord) -> None:
    """ValueError for score columns of other rows than those of the shard.

    `sidecar` is the hash of all values of the sidecar, the uids among them. It is compared instead
    of a checksum of the uid column, which would have to be read for it.
    """
    metadata = json.loads((scores.schema.metadata or {}).get(b"clipmill", b"{}"))
    same_uids = metadata.get("uids") == checksum
    same_sidecar = metadata.get("sidecar") == record.sidecar_sha256
    if not (same_uids and same_sidecar and scores.num_rows == record.count):
        folder = path.rpartition("/")[0]
        raise ValueError(
            f"{path} was scored for other rows than those of its shard (checksum of the uids); "
            f"remove {folder} and run pipeline/score.py again"
        )


def _write(
    pool: str, name: str, selection: Selection, inputs: Inputs, before: ViewDocument | None
) -> ViewDocument:
    """Write the masks, then NAME.json. After a crash in between the view does not exist."""
    layout = PoolLayout(pool)
    disk.remove(layout.view_json(name))  # an old document must never describe new masks
    shards: dict[str, int] = {}
    for shard, table in selection.tables.items():
        shards[shard] = pc.sum(table["kept"]).as_py() or 0
        disk.write_parquet(layout.view_mask(name, shard), table, {"kept": shards[shard]})
    disk.remove(layout.view_rules(name))
    if selection.effects:
        effects = ViewRulesDocument(
            fingerprint=inputs.fingerprint,
            stored=selection.funnel[1][1],
            rules=selection.effects,
        )
        disk.write_json(layout.view_rules(name), effects)
    document = ViewDocument(
        name=name,
        rules=inputs.rules,
        thresholds=selection.thresholds,
        funnel=selection.funnel,
        kept=selection.kept,
        fingerprint=inputs.fingerprint,
        scores=inputs.scores,
        shards=shards,
    )
    disk.write_json(layout.view_json(name), document)
    if before is None:
        logger.info("view %s keeps %d of %d rows", name, document.kept, document.funnel[0][1])
    else:
        logger.warning("%s", _change_line(before, document))
    return document


def _change_line(before: ViewDocument, after: ViewDocument) -> str:
    """What changed in a view that was made again."""
    changes = []
    if before.rules != after.rules:
        changes += _rule_changes(before.rules, after.rules)
    if before.scores != after.scores:
        old, new = sorted(before.scores.values()), sorted(after.scores.values())
        changes.append(f"scores were {', '.join(old)} and are {', '.join(new)}")
    if before.fingerprint != after.fingerprint:
        changes.append(f"the pool had {len(before.shards)} shards and has {len(after.shards)}")
    return (
        f"view {after.name} changed: {'; '.join(changes)}; "
        f"it kept {before.kept} rows and keeps {after.kept}"
    )


def _rule_changes(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[str]:
    """The rules that differ, each with what it was and what it is."""
    old = {rule["name"]: rule_text(rule) for rule in before}
    new = {rule["name"]: rule_text(rule) for rule in after}
    changes = []
    for name, text in old.items():
        if name not in new:
            changes.append(f"rule {name} ({text}) is gone")
        elif text != new[name]:
            changes.append(f"rule {name} was ({text}) and is ({new[name]})")
    for name, text in new.items():
        if name not in old:
            changes.append(f"rule {name} ({text}) is new")
    if not changes and list(old) != list(new):
        return ["the order of its rules"]
    return changes or ["the view that it is random_like has other rules"]
