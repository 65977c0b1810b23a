#!/usr/bin/env python3
"""Time and memory of the first batch of a blend over a million shards, in a process of its own.

example: python benchmarks/reading/first_batch.py --out benchmarks/results/first_batch.json

The pool has an index, a view and tokens of all shards. Only the shards that the first batch draws
from have files: 8 rows, one tar and one sidecar for all of them, and whole bundles of masks and
tokens, a thousand shards each. Bars: 10 s and 500 MB beside what the imports take.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa
from PIL import Image

from benchmarks.scaling.index import write_index
from clipmill.manifests import disk
from clipmill.manifests.aligned import BundleWriter, write_view_shards
from clipmill.manifests.columns import VIEW
from clipmill.manifests.layout import (
    BUNDLE_SHARDS,
    PoolLayout,
    bundle_number,
    shard_name,
    uids_checksum,
)
from clipmill.manifests.records import ScoreSetDocument, ViewDocument
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data.loader import RunLoader
from tests.support import slow_store
from tests.support.slow_store import SlowStore

SHARDS, ROWS, BATCH = 1_000_000, 8, 256
TOKENS = "tokens@0"
TOKEN_LIST = pa.list_(pa.field("element", pa.uint16()))  # as Parquet names it
BARS = {"seconds": 10.0, "mb": 500.0}


def settings() -> TrainConfig:
    return TrainConfig(
        model="micro", batch_size=BATCH, samples_seen=BATCH, warmup=0, threads=2, device="cpu"
    )


def loader_of(pool: str) -> RunLoader:
    blend = Blend(name="bench", pools={"p": pool}, views={"p/all": 1.0})
    return RunLoader(blend, settings(), model_config(settings()))


# --- the pool -------------------------------------------------------------------------------------


def write_shard_files(folder: Path) -> tuple[Path, Path, pa.Array]:
    """One tar and one sidecar that stand for those of all shards, and the uids."""
    sink = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(sink, "JPEG")
    image = sink.getvalue()
    tar, sidecar = folder / "template.tar", folder / "template.parquet"
    tar.write_bytes(image * ROWS)
    uids = pa.array([f"{row:032x}" for row in range(ROWS)])
    columns = {
        "key": pa.array([f"{row:09d}" for row in range(ROWS)]),
        "uid": uids,
        "image_offset": pa.array([row * len(image) for row in range(ROWS)], pa.int64()),
        "image_length": pa.array([len(image)] * ROWS, pa.int64()),
    }
    disk.write_parquet(sidecar, pa.table(columns))
    return tar, sidecar, uids


def write_documents(pool: str, shards: int) -> None:
    """Index, view and score set of all shards."""
    layout, commits = PoolLayout(pool), write_index(pool, shards)
    view = ViewDocument(
        name="all", rules=(), thresholds={}, kept=ROWS * shards, fingerprint=commits.fingerprint,
        funnel=(("attempted", ROWS * shards),), scores={},
        shards=write_view_shards(PoolLayout(pool), "all", commits.shards, np.full(shards, ROWS)),
    )  # fmt: skip
    disk.write_json(layout.view_json("all"), view)
    tokens = ScoreSetDocument(
        name="tokens", id="0", version=1, options={"tokenizer": "clip"}, identity="clip",
        columns=("tokens",), fingerprint=commits.fingerprint, rows=ROWS * shards,
        stored=ROWS * shards, scored=ROWS * shards, seconds=1.0,
    )  # fmt: skip
    disk.write_json(layout.score_set_json(TOKENS), tokens)


def _footer(shard: int) -> dict[str, Any]:
    """What a mask says of itself."""
    return {"kept": ROWS, "shard": shard_name(shard), "view": "all"}


def write_bundles(pool: str, bundle: int, uids: pa.Array) -> None:
    """Masks and tokens of a thousand shards."""
    layout, first = PoolLayout(pool), bundle * BUNDLE_SHARDS
    mask = pa.table({"kept": [True] * ROWS, "rule": pa.nulls(ROWS, pa.string())}, schema=VIEW)
    lists = pa.array([[49_406, 5, 49_407]] * ROWS, TOKEN_LIST)
    tokens = pa.table({"tokens": lists})
    metadata = {"uids": uids_checksum(pa.chunked_array([uids])), "rows": ROWS}
    with BundleWriter(Path(layout.view_bundle("all", first)), VIEW) as masks:
        for shard in range(first, first + BUNDLE_SHARDS):
            masks.add(shard, mask, _footer(shard))
    with BundleWriter(Path(layout.score_bundle(TOKENS, first)), tokens.schema) as scores:
        for shard in range(first, first + BUNDLE_SHARDS):
            scores.add(shard, tokens, metadata)


def prepare(folder: Path, shards: int) -> int:
    """The pool; how many shards the first batch draws from."""
    pool = str(folder / "pool")
    Path(pool).mkdir()
    tar, sidecar, uids = write_shard_files(folder)
    write_documents(pool, shards)
    drawn = sorted(set(loader_of(pool).order.batch(0)[1].tolist()))
    layout = PoolLayout(pool)
    for shard in drawn:
        target = Path(layout.shard_tar(shard))
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(tar, target)
        os.link(sidecar, layout.sidecar(shard))
    for bundle in sorted({bundle_number(shard) for shard in drawn}):
        write_bundles(pool, bundle, uids)
    return len(drawn)


# --- the measurement ------------------------------------------------------------------------------


def peak_mb() -> float:
    """The most memory of this process so far. getrusage would count that of its parent too."""
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    return int(line.split()[1]) / 1024


def first_batch(pool: str) -> dict[str, Any]:
    """Seconds, processor seconds and memory of a loader and its first batch, and its requests."""
    before_mb = peak_mb()
    started, cpu = time.perf_counter(), time.process_time()
    loader = loader_of(pool)
    opened, opened_cpu = time.perf_counter() - started, time.process_time() - cpu
    requests = len(SlowStore.requests), sum(size for _, _, size in SlowStore.requests)
    with contextlib.closing(loader.batches()) as batches:  # type: ignore[type-var]
        assert len(next(batches).keys) == BATCH  # type: ignore[call-overload]
    return {
        "seconds": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "seconds_to_open": opened,
        "cpu_s_to_open": opened_cpu,
        "requests_to_open": requests[0],
        "mb_read_to_open": requests[1] / 1e6,
        "requests": len(SlowStore.requests),
        "mb_read": sum(size for _, _, size in SlowStore.requests) / 1e6,
        "mb": peak_mb() - before_mb,
    }


def run_child(pool: str, wait_ms: float) -> dict[str, Any]:
    """`first_batch` in a process of its own."""
    command = [sys.executable, __file__, "--pool", pool, "--wait-ms", str(wait_ms)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--out", metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--pool", help="measure one first batch of this pool, and end")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="of the store of --pool")
    args = parser.parse_args(arguments)
    slow_store.register()
    if args.pool:
        SlowStore.reset(args.wait_ms / 1e3)
        print(json.dumps(first_batch(args.pool)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        drawn = prepare(Path(folder), args.shards)
        pool = f"{folder}/pool"
        results = {
            "local": run_child(pool, 0.0),
            "store, 50 ms a request": run_child(f"slow://{pool}", 50.0),
        }
    for name, result in results.items():
        values = "  ".join(f"{key} {value:.4g}" for key, value in result.items())
        print(f"{name}: {values}")
    plain = {"shards": args.shards, "drawn_from": drawn, "bars": BARS, "results": results}
    if args.out:
        disk.write_json(args.out, plain)
    worst = {key: max(result[key] for result in results.values()) for key in BARS}
    return 0 if all(worst[key] <= goal for key, goal in BARS.items()) else 1


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
