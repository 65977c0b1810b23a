"""Rows to score columns: one decode of a picture feeds all filters of a pass, models are loaded once per worker.

A shard's columns are committed by their rename into POOL/scores/NAME@ID/; scores.json is written when all shards are
there. What is scored already is not scored again.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from filters import make
from filters.base import Batch, Columns, Filter, options_of, set_id
from manifests import disk, ray_runtime
from manifests.pool_layout import uids_checksum
from manifests.schema import FilterSpec, Recipe
from pipeline.executor import Engine, Stage, Ticket, execute
from pipeline.pool import shard_writer

CHUNK = (
    256  # pictures that are decoded ahead while as many are scored: about 50 MB each at 256 × 256
)
DECODERS = min(8, os.cpu_count() or 1)  # Pillow releases the GIL while it decodes
SYSTEMATIC = 8  # where a filter raises for every one of at least so many rows, the filter is at fault, not the rows
NEEDED = ["uid", "status", "caption", "image_offset", "image_length"]
logger = logging.getLogger(__name__)

Pictures = list["Future[Image.Image | None]"]


def score(pool: str, specs: Sequence[FilterSpec], *, engine: Engine) -> dict[str, Any]:
    """Score every committed shard by every filter; what is scored already is left as it is.

    Returns {"sets": {NAME@ID: scores.json}, "failed": {shard: reason}}; after a failed shard there is no scores.json.
    A row that cannot be decoded or scored has NULL. ValueError for unknown filters, options or weights, and for a pool
    without shards.
    """
    records = shard_writer.committed(pool)
    if not records:
        raise ValueError(
            f"{pool} has no committed shard; build it first: pipeline/build.py RECIPE --out {pool}"
        )
    judges = {name_of(judge): judge for judge in map(make, specs)}
    fingerprint = shard_writer.fingerprint(pool)
    todo = {
        name: judge
        for name, judge in judges.items()
        if state(pool, name).get("fingerprint") != fingerprint
    }
    failed: dict[str, str] = {}
    if todo:
        for judge in todo.values():
            judge.check()
        tickets = _tickets(pool, records, list(todo))
        logger.info("%s: %d of %d shards to score", ", ".join(todo), len(tickets), len(records))
        filters = {
            name: {"name": judge.name, "options": options_of(judge)} for name, judge in todo.items()
        }
        work = Stage(
            name="score",
            work=Scorer,
            config={"pool": pool, "filters": filters},
            gpus=_gpus(todo.values(), engine),
        )
        failed = execute(work, tickets, engine=engine).failed
        if not failed:
            for name, judge in todo.items():
                _commit(pool, name, judge, records, fingerprint)
    return {"sets": {name: state(pool, name) for name in judges}, "failed": failed}


def score_set_name(spec: FilterSpec) -> str:
    """NAME@ID of the columns that a filter with these options gives, whether they are there or not."""
    return name_of(make(spec))


def score_set(pool: str, spec: FilterSpec, fingerprint: str | None = None) -> str:
    """NAME@ID of a filter's columns in `pool`. ValueError with the command to give where they are not all there.

    fingerprint: the pool's, where the caller has it already.
    """
    name = score_set_name(spec)
    found = state(pool, name)
    if found.get("fingerprint") != (fingerprint or shard_writer.fingerprint(pool)):
        what = "of an older state of the pool" if found else "not there"
        raise ValueError(
            f"{pool}: the scores of filter {spec.name} ({name}) are {what}; "
            f"run pipeline/score.py {pool} with the same recipe"
        )
    return name


def filter_specs(
    recipe: Recipe | None, names: Sequence[str], changes: Mapping[str, Any]
) -> list[FilterSpec]:
    """The filters to score by: a recipe's, or those of them in `names`; without a recipe `names` as they come.

    changes: "filter.option" -> value. ValueError for a filter that the recipe does not list, or for none at all.
    """
    if recipe is None:
        specs = {name: FilterSpec(name=name) for name in names}
    else:
        listed = {spec.name: spec for spec in recipe.filters}
        for name in names:
            if name not in listed:
                raise ValueError(
                    f"recipe {recipe.name!r} has no filter {name!r}{disk.did_you_mean(name, listed)}; "
                    f"it has {', '.join(listed) or 'none'}"
                )
        specs = {name: listed[name] for name in names or listed}
    for key, value in changes.items():
        name, _, option = key.partition(".")
        if name not in specs or not option:
            raise ValueError(
                f"--set {key}: write FILTER.OPTION=VALUE with a filter of {', '.join(specs) or 'none'}"
            )
        specs[name] = replace(specs[name], options={**specs[name].options, option: value})
    if not specs:
        raise ValueError("there is no filter to score by; name some with --filters")
    return list(specs.values())


def name_of(judge: Filter) -> str:
    """NAME@ID: the folder that holds a filter's columns."""
    return f"{judge.name}@{set_id(judge)}"


def state(pool: str, name: str) -> dict[str, Any]:
    """scores.json of a set, {} where it was never complete."""
    path = disk.join(pool, "scores", name, "scores.json")
    return dict(disk.read_json(path)) if disk.exists(path) else {}


def scores_path(pool: str, name: str, number: str) -> str:
    """Where a shard's columns of a set lie."""
    return disk.join(pool, "scores", name, f"{number}.parquet")


# --- the worker ----------------------------------------------------------------------------------------------------


class Scorer:
    """The filters of a pass, loaded. Called with a ticket {"sets": […]} whose id is a shard, it writes its columns."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.pool = str(config["pool"])
        self.judges: dict[str, Filter] = {}
        for name, spec in config["filters"].items():
            self.judges[name] = make(FilterSpec(name=spec["name"], options=spec["options"]))
            self.judges[name].setup()

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        judges = {name: self.judges[name] for name in ticket.payload["sets"]}
        record = disk.read_json(shard_writer.commit_path(self.pool, ticket.id))
        everything = any("row" in judge.needs for judge in judges.values())
        rows = shard_writer.read_sidecar(self.pool, ticket.id, None if everything else NEEDED)
        columns = {
            name: {c: [None] * rows.num_rows for c in judge.adds} for name, judge in judges.items()
        }
        seconds = dict.fromkeys(judges, 0.0)
        for places, images in self._chunks(rows, record, judges.values()):
            for name, judge in judges.items():
                started = time.perf_counter()
                _fill(columns[name], places, judge, images, rows)
                seconds[name] += time.perf_counter() - started
        checksum = uids_checksum(rows["uid"])
        stored = sum(status == "success" for status in rows["status"].to_pylist())
        scored = {}
        for name, judge in judges.items():
            scored[name] = sum(
                all(v is not None for v in row) for row in zip(*columns[name].values(), strict=True)
            )
            notes = {
                "uids": checksum,
                "sidecar": record["sidecar_sha256"],
                "rows": rows.num_rows,
                "stored": stored,
                "scored": scored[name],
                "seconds": round(seconds[name], 3),
            }
            if scored[name] < stored:
                logger.warning("%s, shard %s: %d of %d stored rows have no score", name, ticket.id,
                               stored - scored[name], stored)  # fmt: skip
            table = pa.table(
                {c: pa.array(columns[name][c], kind) for c, kind in judge.adds.items()}
            )
            disk.write_parquet(scores_path(self.pool, name, ticket.id), table, notes)
        return {"scored": scored}

    def _chunks(
        self, rows: pa.Table, record: Mapping[str, Any], judges: Iterable[Filter]
    ) -> Iterator[tuple[list[int], list[Image.Image | None] | None]]:
        """(row numbers, their pictures) of the stored rows; the next chunk is decoded while one is in use."""
        stored = [i for i, status in enumerate(rows["status"].to_pylist()) if status == "success"]
        chunks = [stored[at : at + CHUNK] for at in range(0, len(stored), CHUNK)]
        if not any("image" in judge.needs for judge in judges):
            yield from ((chunk, None) for chunk in chunks)
            return
        member = _reader(shard_writer.tar_path(self.pool, record))
        offsets, lengths = rows["image_offset"].to_pylist(), rows["image_length"].to_pylist()
        with ThreadPoolExecutor(DECODERS) as threads:

            def load(i: int) -> Image.Image | None:
                return decode(member(offsets[i], lengths[i]))

            def begin(chunk: Sequence[int]) -> Pictures:
                return [threads.submit(load, i) for i in chunk]

            waiting = begin(chunks[0]) if chunks else []
            for chunk, following in zip(chunks, [*chunks[1:], []], strict=True):
                begun, waiting = waiting, begin(following)
                yield chunk, [picture.result() for picture in begun]


def decode(data: bytes) -> Image.Image | None:
    """An RGB picture, or None where the bytes are none."""
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (
        Exception
    ) as error:  # Pillow's decoders raise whatever they meet: OSError, SyntaxError, struct.error …
        logger.warning("a stored picture cannot be decoded: %s", error)
        return None


def _reader(tar: str) -> Callable[[int, int], bytes]:
    """(offset, length) -> bytes of a tar; one that is far away is fetched whole, once."""
    if not disk.is_url(tar):
        return lambda offset, length: disk.read_bytes(tar, offset, length)
    whole = disk.read_bytes(tar)
    return lambda offset, length: whole[offset : offset + length]


def _fill(
    columns: dict[str, list[Any]],
    places: Sequence[int],
    judge: Filter,
    images: Sequence[Image.Image | None] | None,
    rows: pa.Table,
) -> None:
    """Score the rows `places` and put the values where they belong; rows that lack what the filter needs stay NULL."""
    captions = rows["caption"].take(pa.array(places, pa.int64())).to_pylist()
    pictures = images if images is not None else [None] * len(places)
    fit = [
        i
        for i in range(len(places))
        if ("image" not in judge.needs or pictures[i] is not None)
        and ("caption" not in judge.needs or captions[i] is not None)
    ]
    batch = Batch(
        captions=[captions[i] or "" for i in fit],
        images=[image for i in fit if (image := pictures[i]) is not None]
        if "image" in judge.needs
        else None,
        rows=rows.take(pa.array([places[i] for i in fit], pa.int64())),
    )
    for column, values in _scores(judge, batch).items():
        assert len(values) == len(fit), (
            f"filter {judge.name} gave {len(values)} values of {column} for {len(fit)} rows"
        )
        for i, value in zip(fit, values, strict=True):
            broken = isinstance(value, (float, np.floating)) and not np.isfinite(value)
            columns[column][places[i]] = None if broken else value


def _scores(judge: Filter, batch: Batch) -> Columns:
    """A filter's columns for a batch; where it raises, row by row, so that one row costs one row."""
    count = len(batch.captions)
    try:
        return judge.score(batch) if count else {column: [] for column in judge.adds}
    except Exception as error:
        logger.warning(
            "filter %s raised on %d rows, which are now scored one by one: %s",
            judge.name,
            count,
            error,
        )
    found: dict[str, list[Any]] = {column: [] for column in judge.adds}
    failures = 0
    for i in range(count):
        one = Batch(
            captions=batch.captions[i : i + 1],
            images=None if batch.images is None else batch.images[i : i + 1],
            rows=batch.rows.slice(i, 1),
        )
        try:
            scores: Columns = judge.score(one)
        except Exception:
            failures += 1
            if failures == count >= SYSTEMATIC:
                raise
            scores = {column: [None] for column in judge.adds}
        for column, values in found.items():
            values.append(scores[column][0])
    return dict(found)


# --- the books -----------------------------------------------------------------------------------------------------


def _tickets(
    pool: str, records: Mapping[str, Mapping[str, Any]], sets: Sequence[str]
) -> list[Ticket]:
    """One ticket for each shard that lacks columns of a set, naming the sets that it lacks."""
    there = {
        name: set(disk.list_names(disk.join(pool, "scores", name), ".parquet")) for name in sets
    }
    tickets = []
    for number, record in records.items():
        lacking = [
            name
            for name in sets
            if f"{number}.parquet" not in there[name]
            or disk.read_metadata(scores_path(pool, name, number)).get("sidecar")
            != record["sidecar_sha256"]
        ]
        if lacking:
            tickets.append(Ticket(id=number, group=number, payload={"sets": lacking}))
    return tickets


def _commit(
    pool: str, name: str, judge: Filter, records: Mapping[str, Mapping[str, Any]], fingerprint: str
) -> None:
    notes = {number: disk.read_metadata(scores_path(pool, name, number)) for number in records}
    disk.write_json(
        disk.join(pool, "scores", name, "scores.json"),
        {
            "name": judge.name,
            "id": name.partition("@")[2],
            "version": judge.version,
            "options": options_of(judge),
            "identity": judge.identity(),
            "columns": list(judge.adds),
            "shards": {number: note["uids"] for number, note in notes.items()},
            "fingerprint": fingerprint,
            **{
                key: sum(note[key] for note in notes.values())
                for key in ("rows", "stored", "scored")
            },
            "seconds": round(sum(note["seconds"] for note in notes.values()), 3),
        },
    )


def _gpus(judges: Iterable[Filter], engine: Engine) -> float:
    """1 where a filter wants a GPU and Ray has one to give; inline, a filter takes what the process sees."""
    wishes = {judge.device for judge in judges}
    if engine == "inline" or wishes == {"cpu"}:
        return 0
    ray_runtime.connect()
    import ray

    has: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return 1 if "cuda" in wishes or has.get("GPU", 0) >= 1 else 0
