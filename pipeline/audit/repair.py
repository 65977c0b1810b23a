"""Mends what `verify` finds: files of killed commands, stale indexes, missing views."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.aligned import Bundle, BundleWriter
from clipmill.manifests.columns import SIDECAR, with_extra
from clipmill.manifests.commits import (
    Commits,
    IndexWriter,
    read_commits,
    read_files,
    read_index_document,
    rebuild_index,
)
from clipmill.manifests.layout import (
    CommitRecord,
    PoolLayout,
    shard_name,
)
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.schema import SOURCES, Pair, Recipe
from clipmill.pipeline.audit.counts import recipe_of_pool, write_pool_json
from clipmill.pipeline.audit.integrity import Damage, find_damages
from clipmill.pipeline.audit.purge import PURGED
from clipmill.pipeline.audit.row_index import write_row_index
from clipmill.pipeline.crawl.crawler import contents_of_rows
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage
from clipmill.pipeline.fetch.download import Downloader
from clipmill.pipeline.planning.plan_files import is_planned, read_plan, read_shard
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import (
    RowColumns,
    ShardJob,
    outcome_row,
    read_commit_record,
    remove_uncommitted,
    replace_shard,
    row_key,
    staged_file,
)
from clipmill.pipeline.pool.tars import index_tar, local_copy

# --------------------------------------------------------------------------------------------------
# Makes the index of a pool anew.


def reindex(out: PoolWriter) -> Commits:
    """Make the index of a pool anew from its commit records. ValueError where there is no pool."""
    if not disk.exists(out.layout.shards):
        raise ValueError(f"{out.pool} has no shards/; is it the folder of a pool?")
    commits = rebuild_index(out.pool, out.check)
    write_row_index(out, commits)
    return commits


# --------------------------------------------------------------------------------------------------
# Mends what `verify` finds: recomputes or fetches again only what is damaged.
#
# Every step leaves a pool that can be read, and a second run does what a killed one left. What
# needs another command (scores, views, pairs) is named.


PASSES = 4  # a record, the sidecar that it hides, the columns that this hides, and one more
LOST = "outcome_lost"  # reason of a row whose outcome only the damaged sidecar had


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was done, what could not be done, and the lines of `verify` afterwards."""

    done: tuple[str, ...]
    failed: tuple[str, ...]
    left: tuple[str, ...]


def repair_pool(out: PoolWriter, *, engine: Engine = "inline") -> Repair:
    """Mend a pool, then verify it again. ValueError where there is no pool.

    A damaged sidecar is rebuilt from its tar and the plan; the rows of a damaged tar are fetched
    again; a commit record comes from the index, the index from the commit records. Score columns
    and masks that are damaged are removed. Adopted shards, pairs and uids are only named.
    """
    damages, _ = find_damages(out.pool, engine=engine)
    done, failed, before = list[str](), list[str](), list[Damage]()
    # What is behind a damaged record or sidecar is seen when that is mended.
    for _ in range(PASSES):
        wrong = [damage for damage in damages if not damage.is_stale]
        if not wrong or wrong == before:
            break
        mended, unmended = _mend(out, wrong, engine)
        done += [line for line in mended if line not in done]
        failed += [line for line in unmended if line not in failed]
        before = wrong
        damages, _ = find_damages(out.pool, engine=engine)
    if not done and not failed:  # a repair that was killed at its end has left files, and no damage
        out.check()
        remove_uncommitted_of(out.layout, [damage for damage in damages if not damage.is_stale])
    left = tuple(damage.line for damage in damages)
    return Repair(done=tuple(done), failed=tuple(failed), left=left)


Lines = tuple[list[str], list[str]]  # of what was done, and of what could not be done


def _mend(out: PoolWriter, wrong: Sequence[Damage], engine: Engine) -> Lines:
    """Mend what can be seen of the damages."""
    pool = out.pool
    done = list(_records(out, wrong))
    if done or any(damage.kind == "index" for damage in wrong):
        rebuild_index(pool, out.check)
        done.append("index: made anew from the commit records")
    remove_uncommitted_of(out.layout, wrong)
    of_shards, failed = _shards(out, wrong, engine)
    done += of_shards
    done += _aligned_files(out, wrong)
    done += _documents(out, wrong)
    recipe = _recipe(out.layout)
    if (done or failed) and recipe is not None:
        write_pool_json(read_commits(pool), recipe, {})
    return done, failed


def repair_lines(result: Repair) -> list[str]:
    """What was done and what is left, for a terminal."""
    lines = [f"mended  {line}" for line in result.done]
    lines += [f"failed  {line}" for line in result.failed]
    lines += [f"left    {line}" for line in result.left]
    return lines or ["nothing is damaged"]


def remove_uncommitted_of(layout: PoolLayout, wrong: Sequence[Damage]) -> None:
    """Remove what a killed repair left, unless a damaged record hides whose files they are."""
    if not any(damage.kind == "record" for damage in wrong):
        remove_uncommitted(layout)


def _recipe(layout: PoolLayout) -> Recipe | None:
    """The recipe of the pool; None where it is not there or damaged."""
    try:
        return recipe_of_pool(layout)
    except (ValueError, OSError):
        return None


def _documents(out: PoolWriter, wrong: Sequence[Damage]) -> Iterator[str]:
    """Remove what can be made anew of the documents of the pool as a whole."""
    damaged = {damage.name for damage in wrong if damage.kind == "document"}
    if "parts.parquet" in damaged:
        out.remove(out.layout.parts)
        yield "parts.parquet: removed; the footers of the pairs say the same"
    if "pool.json" in damaged and _recipe(out.layout) is not None:
        yield "pool.json: written again, without the times of earlier builds"


# --- commit records -------------------------------------------------------------------------------


def _records(out: PoolWriter, wrong: Sequence[Damage]) -> Iterator[str]:
    """Write damaged commit records again from the index.

    A shard that the index does not have loses its record: the build fetches it again.
    """
    damaged = [each.shard for each in wrong if each.kind == "record" and each.shard is not None]
    indexed = _indexed(out.layout) if damaged else None
    for shard in damaged:
        path = out.layout.commit_record(shard)
        record = None if indexed is None else indexed.get(shard)
        if record is not None:
            out.write_json(path, record, sealed=True)
            yield f"{shard_name(shard)}: commit record written again from the index"
        else:
            out.remove(path)
            yield (
                f"{shard_name(shard)}: commit record removed, the index does not have it; "
                "run clipmill build with the pool's recipe again"
            )


def _indexed(layout: PoolLayout) -> Commits | None:
    """The records that the files of the index have; None where they cannot be read."""
    try:
        document = read_index_document(layout)
        return None if document is None else Commits(layout.root, read_files(layout, document)[1])
    except (ValueError, OSError):
        return None


# --- sidecars and tars ----------------------------------------------------------------------------


def _shards(out: PoolWriter, wrong: Sequence[Damage], engine: Engine) -> Lines:
    """Replace every shard with a damaged sidecar or tar."""
    pool = out.pool
    tars = {damage.shard for damage in wrong if damage.kind == "tar"}
    sidecars = {damage.shard for damage in wrong if damage.kind == "sidecar"} - tars
    fetched = sorted(shard for shard in tars if shard is not None)
    rebuilt = sorted(shard for shard in sidecars if shard is not None)
    recipe, contents = _recipe(out.layout), {}
    done, failed = list[str](), list[str]()
    if fetched and recipe is not None and SOURCES[recipe.source.kind].images == "rows":
        try:
            contents = contents_of_rows(out.layout, recipe.source)
        except (ValueError, FileNotFoundError) as error:
            failed = [f"{shard_name(shard)}: not fetched again: {error}" for shard in fetched]
            fetched = []
    if not fetched and not rebuilt:
        return done, failed
    with IndexWriter(pool, check=out.check) as index:
        own = [shard for shard in [*fetched, *rebuilt] if not index.commits.record(shard).adopted]
        index.forget(own)
        for shard in rebuilt:
            if shard in own:
                record, lost = rebuild_sidecar(out, shard, recipe)
                index.add(record)
                line = f"{shard_name(shard)}: sidecar rebuilt from the tar and the plan"
                more = f"; {lost} rows that are not stored have the reason {LOST}: "
                done.append(f"{line}{more}`build --retry transient`" if lost else line)
        todo = [shard for shard in fetched if shard in own]
        if todo and recipe is not None and is_planned(out.layout):
            again, failed = _fetch_again(out, recipe, contents, todo, index, engine)
            done += again
    return done, failed


def _fetch_again(
    out: PoolWriter,
    recipe: Recipe,
    contents: Mapping[str, Mapping[str, object]],
    shards: Sequence[int],
    index: IndexWriter,
    engine: Engine,
) -> Lines:
    """Fetch every row of some shards again, as a build does."""
    plan = read_plan(out.layout)
    job = ShardJob(out=out, recipe=recipe, contents=contents, decoders=1, replace=True)
    stage = Stage(name="repair", work=Downloader, job=job, result=CommitRecord)
    shard_of = {plan.shard(shard).id: shard for shard in shards}
    records = dict[str, CommitRecord]()
    done, failed = list[str](), list[str]()

    def on_done(task: str, record: CommitRecord) -> None:
        index.add(record)
        records[task] = record

    report = execute(stage, plan.tickets(np.array(shards)), engine=engine, on_done=on_done)
    for task, shard in shard_of.items():
        if (record := records.get(task)) is not None:
            stored = f"{record.successes} of {record.count} rows are stored"
            done.append(f"{shard_name(shard)}: fetched again: {stored}")
        else:
            reason = report.failed.get(task, "the log has the reason")
            failed.append(f"{shard_name(shard)}: could not be fetched again: {reason}")
    return done, failed


def rebuild_sidecar(out: PoolWriter, shard: int, recipe: Recipe | None) -> tuple[CommitRecord, int]:
    """Rebuild the sidecar of a shard from the JSON members of its tar and the plan.

    Returns the new record, and how many rows have lost their outcome: those that are neither stored
    nor purged, unless all ended with one reason, which the commit record has.
    """
    record = read_commit_record(out.layout, shard)
    assert record is not None
    schema = with_extra(SIDECAR, recipe.sidecar_extra if recipe is not None else {})
    columns = RowColumns.of(schema)
    rows = _stored_rows(out.layout.tar(record), schema.names)
    reason = next(iter(record.reasons)) if len(record.reasons) == 1 else LOST
    pairs: list[Pair] = []
    retried: list[str | None] = []
    if len(rows) < record.count:
        pairs, retried = read_shard(out.layout, shard)
    complete, lost = [], 0
    for position in range(record.count):
        key = row_key(shard, position)
        if key in rows:
            complete.append(rows[key])
            continue
        pair = pairs[position]
        is_purged = pair.url is None and pair.locked_outcome is None
        row_reason = PURGED if is_purged else reason
        values = {**disk.to_plain(pair), **(pair.extra or {})}
        values = {name: value for name, value in values.items() if name in columns.names}
        values |= {"reason": row_reason, "retry_of": retried[position]}
        complete.append({**outcome_row(values, columns, stored=False), "key": key})
        lost += row_reason == LOST
    table = pa.Table.from_pylist(complete, schema=schema)
    return replace_shard(out, shard, table), lost


def _stored_rows(tar: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The rows of the samples of a tar by key, with the offsets of their members."""
    rows: dict[str, dict[str, Any]] = {}
    with local_copy(tar) as path, open(path, "rb") as f:
        for member in index_tar(tar, path):
            key, _, extension = member.name.partition(".")
            row = rows.setdefault(key, dict.fromkeys(names))
            part = {"txt": "text", "json": "json"}.get(extension, "image")
            row[f"{part}_offset"], row[f"{part}_length"] = member.offset, member.length
            if part == "image":
                row["image_name"] = member.name
            elif part == "json":
                f.seek(member.offset)
                values = json.loads(f.read(member.length))
                row |= {name: value for name, value in values.items() if name in row}
    return rows


# --- score columns and masks ----------------------------------------------------------------------


def _aligned_files(out: PoolWriter, wrong: Sequence[Damage]) -> Iterator[str]:
    """Remove damaged score columns and masks, and then the document that makes them complete: what
    has none is not looked at by the next repair. The other columns of a bundle stay.
    """
    layout = out.layout
    sets: dict[str, set[int]] = {}
    views: set[str] = set()
    for damage in wrong:
        if damage.kind in ("scores", "set") and damage.name is not None:
            shards = sets.setdefault(damage.name, set())
            if damage.shard is not None:
                shards.add(damage.shard)
        elif damage.kind in ("mask", "view") and damage.name is not None:
            views.add(damage.name)
    for name, shards in sorted(sets.items()):
        by_bundle: dict[str, set[int]] = {}
        for shard in shards:
            by_bundle.setdefault(layout.score_bundle(name, shard), set()).add(shard)
        for path, of_bundle in by_bundle.items():
            _keep_others(out, path, of_bundle)
        out.remove(layout.score_set_json(name))
        yield f"scores/{name}: damaged columns removed; run clipmill score on this pool again"
    for name in sorted(views):
        folder = disk.join(layout.views, name)
        out.remove(*(disk.join(folder, file) for file in disk.list_names(folder)))
        out.remove(layout.view_json(name))
        yield f"views/{name}: damaged files removed; run clipmill filter on this pool again"


def _keep_others(out: PoolWriter, path: str, shards: set[int]) -> None:
    """Remove the columns of some shards from a bundle; all of it where its footer is damaged."""
    try:
        bundle = Bundle(path)
    except FileNotFoundError:
        return
    except ValueError:
        out.remove(path)
        return
    with staged_file(path, alone=True) as staged:
        with BundleWriter(staged, bundle.schema) as writer:
            for name in bundle.shards:
                if int(name) not in shards:
                    writer.add(name, bundle.read(name), bundle.metadata(name))
        out.publish(staged, path)
