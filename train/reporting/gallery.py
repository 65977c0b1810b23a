"""What the arms are made of: funnels, score histograms, overlaps, and pictures kept, rejected and next to a threshold.

Rows are drawn at random with a fixed seed, never picked; all is read from the views, scores and shards of the pools.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from manifests import disk
from manifests.pool_layout import CommitRecord, PoolLayout

SHOWN = 12  # pictures of each kind
BINS = 40
SIDE = 96  # pixels of a shown picture's longer side
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmView:
    """One view that an arm draws from, all shards joined: `kept` and `rule` have one entry per row of the pool."""

    arm: str
    pool: str  # name in the ablation
    path: str  # of the pool
    view: str
    meta: Json
    shards: tuple[str, ...]
    kept: np.ndarray
    rule: np.ndarray

    @property
    def stored(self) -> np.ndarray:
        """Rows of the pool that have a picture."""
        return np.asarray(self.rule != "not_stored", dtype=bool)


def open_views(runs: Mapping[str, Mapping[int, Json]]) -> list[ArmView]:
    """The views of every arm, from the blends of its runs; an A/A arm's are those of the arm that it repeats."""
    opened: dict[tuple[str, str], ArmView] = {}
    found = []
    for arm, by_seed in runs.items():
        blend = next(iter(by_seed.values()))["blend"]
        for name in blend["views"]:
            pool, _, view = name.partition("/")
            place = blend["pools"][pool], view
            if place not in opened:
                opened[place] = _open(arm, pool, *place)
            found.append(replace(opened[place], arm=arm, pool=pool))
    return found


def _open(arm: str, pool: str, path: str, view: str) -> ArmView:
    meta = disk.read_json(disk.join(path, "views", f"{view}.json"))
    shards = tuple(sorted(meta["shards"]))
    folder = disk.join(path, "views", view)
    table = pa.concat_tables(
        [disk.read_parquet(disk.join(folder, f"{shard}.parquet")) for shard in shards]
    )
    kept = np.asarray(table["kept"].to_numpy(zero_copy_only=False), dtype=bool)
    rule = np.asarray([r or "" for r in table["rule"].to_pylist()])
    return ArmView(
        arm=arm, pool=pool, path=path, view=view, meta=meta, shards=shards, kept=kept, rule=rule
    )


def column(view: ArmView, name: str) -> np.ndarray | None:
    """A score column of a view's pool over all rows, NaN where NULL; None where the view's scores do not have it."""
    for found in view.meta["scores"].values():
        folder = disk.join(view.path, "scores", found)
        if name in disk.read_json(disk.join(folder, "scores.json"))["columns"]:
            tables = [
                disk.read_parquet(disk.join(folder, f"{shard}.parquet"), [name])
                for shard in view.shards
            ]
            values = pa.concat_tables(tables)[name].to_numpy(zero_copy_only=False)
            return np.asarray(values, dtype=np.float64)
    return None


# --- funnels, histograms, overlap ----------------------------------------------------------------------------------


def funnels(views: list[ArmView]) -> list[Json]:
    """Steps and reasons: of each pool from its links to its stored rows, then of each view of an arm."""
    shown: list[Json] = []
    pools = {v.pool: v.path for v in views}
    for pool, path in pools.items():
        totals = disk.read_json(disk.join(path, "pool.json"))
        crawled, fetched = totals.get("crawl") or {}, totals["fetch"]
        steps = (
            [["links", crawled["links"]], ["pairs", crawled["pairs"]]]
            if crawled.get("links")
            else []
        )
        steps += [["attempted", fetched["attempted"]], ["stored", fetched["stored"]]]
        reasons = {**crawled.get("reasons", {}), **fetched["reasons"]}
        shown.append(
            {"title": f"{pool}: from links to pictures", "steps": steps, "reasons": reasons}
        )
    told = set()
    for v in views:
        if (v.pool, v.view) not in told and len(v.meta["funnel"]) > 2:
            told.add((v.pool, v.view))
            shown.append(
                {"title": f"{v.pool}/{v.view}", "steps": v.meta["funnel"][1:], "reasons": {}}
            )
    return shown


def histograms(views: list[ArmView], name: str = "clip_score") -> list[Json]:
    """Counts per bin of a score column for every pool that has it: stored rows and the rows that each view keeps."""
    shown = []
    for pool in dict.fromkeys(v.pool for v in views):
        mine = {v.view: v for v in views if v.pool == pool}
        scores = next((s for v in mine.values() if (s := column(v, name)) is not None), None)
        if scores is None:
            continue
        stored = scores[np.isfinite(scores)]
        edges = np.linspace(
            float(np.quantile(stored, 0.001)), float(np.quantile(stored, 0.999)), BINS + 1
        )
        counts = {"stored": _counts(stored, edges)}
        counts |= {
            view: _counts(scores[v.kept & np.isfinite(scores)], edges) for view, v in mine.items()
        }
        marks = {
            view: t["value"] for view, v in mine.items() for t in v.meta["thresholds"].values()
        }
        shown.append(
            {
                "pool": pool,
                "column": name,
                "edges": edges.tolist(),
                "counts": counts,
                "marks": marks,
            }
        )
    return shown


def _counts(values: np.ndarray, edges: np.ndarray) -> list[int]:
    return [int(n) for n in np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]]


def overlap(views: list[ArmView]) -> Json:
    """Jaccard index of the rows that the arms draw from: 1 the same, 0 none in common."""
    arms = list(dict.fromkeys(v.arm for v in views))

    def shared(a: str, b: str) -> float:
        both = either = 0
        for pool in {v.path for v in views}:
            x, y = (_union([v for v in views if v.path == pool], arm) for arm in (a, b))
            both, either = both + int((x & y).sum()), either + int((x | y).sum())
        return both / either if either else 0.0

    return {"arms": arms, "jaccard": [[shared(a, b) for b in arms] for a in arms]}


def _union(views: list[ArmView], arm: str) -> np.ndarray:
    """Rows of one pool that an arm draws from; all False where it draws from another."""
    kept = np.zeros(len(views[0].kept), dtype=bool)
    for v in views:
        if v.arm == arm:
            kept |= v.kept
    return kept


# --- pictures ------------------------------------------------------------------------------------------------------


def shots(views: list[ArmView], baseline: str) -> list[Json]:
    """Pictures of each filtered view: kept, rejected, and the stored ones whose score is nearest to the threshold."""
    shown: list[Json] = []
    told = set()
    for v in views:
        if v.arm == baseline or (v.pool, v.view) in told or not len(v.meta["rules"]):
            continue
        told.add((v.pool, v.view))
        scores = column(v, "clip_score")
        rows = _drawn(v)
        thresholds = [t["value"] for t in v.meta["thresholds"].values()]
        near: list[int] = []
        if scores is not None and thresholds:
            distance = np.where(
                v.stored & np.isfinite(scores), np.abs(scores - thresholds[0]), np.inf
            )
            nearest = np.argsort(distance, kind="stable")[:SHOWN]
            near = [int(i) for i in nearest if np.isfinite(distance[i])]
        kept = [i for i in rows if v.kept[i]][:SHOWN]
        rejected = [i for i in rows if not v.kept[i]][:SHOWN]
        pictures = _pictures(v, {*near, *kept, *rejected}, scores)
        shown.append(
            {
                "pool": v.pool,
                "view": v.view,
                **{
                    name: [pictures[i] for i in found]
                    for name, found in (("kept", kept), ("near", near), ("rejected", rejected))
                },
            }
        )
    return shown


def _drawn(view: ArmView) -> list[int]:
    """Stored rows in a random order with a fixed seed."""
    rows = np.flatnonzero(view.stored)
    return [int(i) for i in np.random.default_rng(20240229).permutation(rows)]


def _pictures(view: ArmView, rows: set[int], scores: np.ndarray | None) -> dict[int, Json]:
    """The shown form of some rows, by row number over all shards."""
    found: dict[int, Json] = {}
    first = 0
    for shard in view.shards:
        size = disk.read_metadata(disk.join(view.path, "shards", f"{shard}.parquet"))["count"]
        mine = sorted(i for i in rows if first <= i < first + size)
        if mine:
            record = CommitRecord.read(PoolLayout(view.path).commit_record(shard))
            tar = PoolLayout(view.path).tar(record)
            names = ["caption", "image_offset", "image_length"]
            table = disk.read_parquet(disk.join(view.path, "shards", f"{shard}.parquet"), names)
            for i in mine:
                row = table.slice(i - first, 1).to_pylist()[0]
                score = None if scores is None or not np.isfinite(scores[i]) else float(scores[i])
                found[i] = {
                    "image": _shown(disk.read_bytes(tar, row["image_offset"], row["image_length"])),
                    "caption": row["caption"],
                    "score": score,
                    "rule": view.rule[i] or None,
                }
        first += size
    return found


def _shown(data: bytes) -> str:
    """A picture as a data URI, at most SIDE pixels wide or high."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        kind = (picture.format or "jpeg").lower()
        if max(picture.size) > SIDE:
            small = picture.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            sink = io.BytesIO()
            small.save(sink, "JPEG", quality=85)
            data, kind = sink.getvalue(), "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
