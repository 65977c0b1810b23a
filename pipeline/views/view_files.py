"""Views as files: reads the columns that the rules need, lets `choose` decide, and writes masks
beside the shards.

NAME.json is written last and says everything that the masks were made from. A view that exists
already, from the same rules, scores and shards, is not made again. One that changed is named in a
log line with what changed.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters import check_filters, instances_of, specs_of_recipe
from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.aligned.current_views import view_names
from manifests.aligned.shard_tables import count_shards, has_table, write_view_shards
from manifests.columns import SIDECAR, with_extra
from manifests.commits import Commits, read_commits
from manifests.documents import ViewDocument, ViewRulesDocument, read_document
from manifests.pool_layout import PoolLayout, random_view_name
from manifests.schema import Recipe, Rule, View
from pipeline.pool import check_fence
from pipeline.scoring import PoolSets, shards_with_rows
from pipeline.views.available_columns import ScoredColumns
from pipeline.views.choose import Selection, check, choose_parts
from pipeline.views.joined_columns import JoinedColumns
from pipeline.views.mask_files import MaskFiles, has_masks, kept_by_shard
from pipeline.views.outcomes.view_hash import hash_rows
from pipeline.views.rules import can_meet_nan
from pipeline.views.steps import is_selected, rule_text, rules_hash, rules_of
from pipeline.views.unit_threads import few_collections

RANDOM_SEED = re.compile(r"(?<=.)\.seed-\d+$")  # ends the name of a random view of one seed
VIEW_NAME = re.compile(r"[\w-][\w.-]{0,99}")  # not "..", not hidden, fits a file name
# Stored rows up to which views get the hash of their rows when they are made: a microsecond of CPU
# a row, which in large pools is more than the rules cost. `filter.py --hash` computes it any time.
HASHED_ROWS = 5_000_000
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a view is made from. A view with equal inputs is not made again."""

    rules: tuple[dict[str, Any], ...]
    scores: dict[str, str]  # filter -> NAME@ID
    fingerprint: str
    nan_is_missing: bool | None = None  # None where no rule can meet NaN

    def made(self, document: ViewDocument | None) -> bool:
        """True if `document` was made from these inputs."""
        return document is not None and self == Inputs(
            rules=document.rules,
            scores=document.scores,
            fingerprint=document.fingerprint,
            nan_is_missing=document.nan_is_missing,
        )


def check_views(recipe: Recipe) -> None:
    """ValueError for filters, options, models, rules and views that cannot work. Neither pool
    nor weights are read."""
    specs = specs_of_recipe(recipe)
    scored = ScoredColumns(instances_of(specs))
    if taken := sorted(recipe.sidecar_extra.keys() & scored.owners.keys()):
        raise ValueError(
            f"extra_columns names {taken[0]!r}, which is a filter's column; give it another name, "
            f'as in {{my_{taken[0]}: "{taken[0]}:TYPE"}}'
        )
    check_filters(specs, recipe.sidecar_extra.keys())
    added = [pa.field(column, kind) for column, kind in scored.kinds.items()]
    check(recipe.views, pa.schema([*with_extra(SIDECAR, recipe.sidecar_extra), *added]))
    columns = [*SIDECAR.names, *recipe.sidecar_extra]
    for view in recipe.views:
        check_view_name(view.name)
        scored.columns_of_view(recipe, view.name, columns)


@few_collections()
def choose_views(
    pool: str,
    recipe: Recipe,
    names: Sequence[str] | None = None,
    fence: int | None = None,
    commits: Commits | None = None,
) -> dict[str, ViewDocument]:
    """Make the views of a recipe (default: all), and return their documents.

    commits: what is committed, if the caller has read it. fence: that of the lease; LeaseLost where
    another command has taken it over. ValueError for unknown views and columns, rules that are no
    rules, filters that are not scored yet, a pool without stored rows, and a view that keeps
    nothing.
    """
    commits = shards_with_rows(pool, commits)
    wanted = [view.name for view in recipe.views] if names is None else list(names)
    documents: dict[str, ViewDocument] = {}
    before: dict[str, ViewDocument | None] = {}
    todo: dict[str, Inputs] = {}
    columns: set[str] = set()
    sets: dict[str, Any] = {}
    # What filter.py --columns lists: extra columns are the pool's, whatever this recipe names.
    sidecar = disk.read_schema(commits.sidecar(int(commits.shards[0])))
    pool_sets = PoolSets(commits, specs_of_recipe(recipe))
    scored = ScoredColumns(pool_sets.instances)
    kinds = {**scored.kinds, **dict(zip(sidecar.names, sidecar.types, strict=True))}
    for name in wanted:
        recipe.view(name)
        used, instances = scored.columns_of_view(recipe, name, sidecar.names)
        for instance in instances:
            if instance not in sets:
                sets[instance] = pool_sets.require(instance)
        inputs = Inputs(
            rules=rules_of(recipe.views, name),
            scores={instance: sets[instance][0] for instance in instances},
            fingerprint=commits.fingerprint,
            nan_is_missing=can_meet_nan(recipe.views, name, kinds) or None,
        )
        document = read_view(pool, name)
        if document is not None and inputs.made(document) and has_masks(commits, name):
            documents[name] = document
            continue
        before[name] = document
        todo[name] = inputs
        columns |= used
    if todo:
        sizes = {name: document.kept for name, document in documents.items()}
        source = JoinedColumns(commits, columns, sets)
        documents |= _make(source, recipe.views, todo, before, sizes, fence)
    if names is None and (unlisted := views_not_in(recipe, pool)):
        logger.warning("%s", unlisted_views_line(recipe, unlisted))
    return {name: documents[name] for name in wanted}


@few_collections()
def random_like(
    pool: str, view: str, seeds: Sequence[int] | None = None, fence: int | None = None
) -> dict[str, ViewDocument]:
    """Make random views: as many stored rows as `view` keeps, drawn by xxh3(uid, seed).

    There is one `random_like_VIEW.seed-N` for each of the seeds; without seeds it is
    `random_like_VIEW`, which is drawn with seed 0. `fence`: that of the lease. ValueError if the
    pool has no view of that name, or one that is older than its shards.
    """
    commits = shards_with_rows(pool)
    model = current_view_of(commits, view)
    documents: dict[str, ViewDocument] = {}
    todo: dict[str, Inputs] = {}
    before: dict[str, ViewDocument | None] = {}
    views = []
    for seed in [None] if seeds is None else seeds:
        name = random_view_name(view, seed)
        rule = Rule(name="random", random_like=view, seed=seed or 0)
        plain = {"name": "random", "random_like": view, "seed": seed or 0}
        rules = ({**plain, "like": rules_hash(model.rules)},)
        inputs = Inputs(
            rules=rules,
            scores=model.scores,
            fingerprint=commits.fingerprint,
            nan_is_missing=model.nan_is_missing,
        )
        document = read_view(pool, name)
        if document is not None and inputs.made(document) and has_masks(commits, name):
            documents[name] = document
        else:
            views.append(View(name=name, rules=(rule,)))
            todo[name], before[name] = inputs, document
    if todo:
        source = JoinedColumns(commits, {"status", "uid"}, {})
        documents |= _make(source, views, todo, before, {view: model.kept}, fence)
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


def current_view_of(commits: Commits, view: str) -> ViewDocument:
    """The document of a view. ValueError where there is none, or the shards have changed since."""
    pool = commits.pool
    document = read_view(pool, view)
    if document is None or document.fingerprint != commits.fingerprint:
        state = f"is older than the shards of {pool}" if document else f"is not in {pool}"
        raise ValueError(
            f"view {view!r} {state}; run pipeline/filter.py {pool} with its recipe first"
        )
    return document


def hash_view(pool: str, view: str) -> str:
    """The hash of a view from its masks, whether its document has one or not.

    ValueError where there is no such view, or it is older than the shards.
    """
    commits = read_commits(pool)
    document = current_view_of(commits, view)
    masks = AlignedFiles.of_view(pool, view)

    def kept_rows(position: int) -> NDArray[np.bool_]:
        column = masks.read(int(commits.shards[position]), ["kept"])[0]["kept"]
        return np.asarray(column.to_numpy(), np.bool_)

    return hash_rows(commits, {view: kept_rows}, document.kept)[view]


def check_view_name(name: str) -> None:
    """ValueError for a name that cannot be that of a file in the pool."""
    if not VIEW_NAME.fullmatch(name) or name.endswith(".json"):
        raise ValueError(
            f"a view cannot be named {name!r}: use letters, digits, '_', '-' and '.', at most "
            "100 of them, and do not begin with '.' or end with '.json'"
        )


def views_not_in(recipe: Recipe, pool: str) -> list[str]:
    """Views of the pool that the recipe does not have. Random views of its own views, and views
    of selected rows, which come from no recipe, are not among them."""
    listed = {view.name for view in recipe.views}
    listed |= {random_view_name(name) for name in listed}
    names = []
    for name in view_names(pool):
        if RANDOM_SEED.sub("", name) in listed or not VIEW_NAME.fullmatch(name):
            continue  # of another name: a file that a person left there
        document = read_view(pool, name)
        if document is None or not is_selected(document.rules):
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
    """Each view's funnel, thresholds and hash, if it has one, for a person to read."""
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
        if document.rows_sha256 is not None:
            lines.append(f"  hash of the rows {document.rows_sha256}")
    return lines


def _make(
    source: JoinedColumns,
    views: Sequence[View],
    todo: Mapping[str, Inputs],
    before: Mapping[str, ViewDocument | None],
    sizes: Mapping[str, int],
    fence: int | None,
) -> dict[str, ViewDocument]:
    """Select the rows of the views in `todo` and write them: masks first, then NAME.json.

    After a crash in between the view does not exist. Where a rule cannot work, or leaves no row,
    the views of before stay as they are.
    """
    masks = MaskFiles(source, list(todo))
    documents = {}
    try:
        selections = choose_parts(source, views, list(todo), masks.open_sink, sizes)
        kept_rows = {name: functools.partial(masks.kept_rows, name) for name in todo}
        hashes: dict[str, str | None] = dict.fromkeys(todo)
        if source.commits.totals.stored <= HASHED_ROWS:
            kept = sum(selection.kept for selection in selections.values())
            hashes |= hash_rows(source.commits, kept_rows, kept)
        for name, inputs in todo.items():
            documents[name] = write_view(
                masks, name, selections[name], inputs, before[name], fence, hashes[name]
            )
    finally:
        masks.remove()
    return documents


def write_view(
    masks: MaskFiles,
    name: str,
    selection: Selection,
    inputs: Inputs,
    before: ViewDocument | None,
    fence: int | None,
    rows_sha256: str | None,
) -> ViewDocument:
    """Publish the masks of a view, then its document. before: the document of an earlier one.
    rows_sha256: hash of its rows; None where it is computed when somebody asks for it."""
    commits = masks.commits
    layout, kept = PoolLayout(commits.pool), masks.kept[name]
    check_fence(commits.pool, fence)
    disk.remove(layout.view_json(name))  # an old document must never describe new masks
    disk.sync_folder(layout.views)
    masks.publish(name, fence)
    check_fence(commits.pool, fence)
    table = None
    if has_table(len(commits)):
        rows = commits.column("count").to_numpy()
        table = write_view_shards(commits.pool, name, commits.shards, rows, kept)
    disk.remove(layout.view_rules(name))
    if selection.effects:
        effects = ViewRulesDocument(
            fingerprint=inputs.fingerprint,
            stored=selection.funnel[1][1],
            rules=selection.effects,
        )
        disk.write_json(layout.view_rules(name), effects, sealed=True)
    document = ViewDocument(
        name=name,
        rules=inputs.rules,
        thresholds=selection.thresholds,
        funnel=selection.funnel,
        kept=selection.kept,
        fingerprint=inputs.fingerprint,
        scores=inputs.scores,
        rows_sha256=rows_sha256,
        nan_is_missing=inputs.nan_is_missing,
        shards=kept_by_shard(commits, kept),
        table=table,
    )
    check_fence(commits.pool, fence)
    disk.write_json(layout.view_json(name), document.document(), sealed=True)
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
        changes.append(f"the pool had {count_shards(before)} shards and has {count_shards(after)}")
    if before.nan_is_missing != after.nan_is_missing and before.rules == after.rules:
        changes.append("NaN counts as a missing value")
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
