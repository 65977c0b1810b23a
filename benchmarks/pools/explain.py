#!/usr/bin/env python3
"""The table of rows: what a build pays for it, and how long --explain takes with and without it.

example: python benchmarks/pools/explain.py --rows 1000000 --out benchmarks/results/explain.json

Makes a pool of drawn rows (sidecars and commit records, no tars), adds its shards to the table in
--batches steps as builds do, and looks rows up by uid and by URL.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.commits import Commits, update_index
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from clipmill.pipeline.audit.explain import explain_row
from clipmill.pipeline.audit.row_index import extend_row_index
from clipmill.pipeline.pool.lease import PoolWriter

ROWS_PER_SHARD = 10_000
LOOKUPS = 20


def sidecar(shard: int, generator: np.random.Generator) -> pa.Table:
    """A sidecar of drawn rows: uid, URL, key, status; the other columns are NULL."""
    digits = generator.bytes(16 * ROWS_PER_SHARD).hex().encode()
    uids = pa.array(np.frombuffer(digits, "S32").astype(str))
    numbers = pa.array(np.arange(ROWS_PER_SHARD))
    host = pc.binary_join_element_wise("https://h", pc.cast(numbers, pa.string()), "")
    tail = pc.utf8_slice_codeunits(uids, 0, 16)
    urls = pc.binary_join_element_wise(host, pc.binary_join_element_wise(tail, "jpg", "."), "/")
    padded = pc.utf8_lpad(pc.cast(numbers, pa.string()), 4, "0")
    columns: dict[str, pa.Array] = {
        "uid": uids,
        "url": urls,
        "caption": urls,
        "key": pc.binary_join_element_wise(shard_name(shard), padded, ""),
        "status": pa.array(["success"] * ROWS_PER_SHARD),
    }
    arrays = []
    for field in SIDECAR:
        arrays.append(columns.get(field.name, pa.nulls(ROWS_PER_SHARD, field.type)))
    return pa.Table.from_arrays(arrays, schema=SIDECAR)


def make_pool(pool: str, shards: int) -> None:
    """Sidecars and commit records of some shards."""
    layout = PoolLayout(pool)
    generator = np.random.default_rng(0)
    for shard in range(shards):
        path = Path(layout.sidecar(shard))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(sidecar(shard, generator), path, compression="zstd")
        record = CommitRecord(
            shard=shard_name(shard), tar=f"{shard_name(shard)}.tar", tar_bytes=1,
            tar_sha256=f"{shard:064x}", count=ROWS_PER_SHARD, successes=ROWS_PER_SHARD, reasons={},
            failed_to_download=0, failed_to_resize=0, retries=0, sidecar_bytes=1,
            sidecar_file_sha256=f"{shard:064x}", sidecar_sha256=f"{shard:064x}", task=str(shard),
            group="0", version=SHARD_VERSION, duration_s=1.0, adopted=False,
        )  # fmt: skip
        Path(layout.commit_record(shard)).write_text(json.dumps(disk.to_plain(record)))


def measure(rows: int, batches: int) -> dict[str, Any]:
    """Seconds, bytes and memory for a pool of that many rows."""
    shards = rows // ROWS_PER_SHARD
    with tempfile.TemporaryDirectory(prefix="mill-explain-") as folder:
        pool = f"{folder}/pool"
        make_pool(pool, shards)
        commits = update_index(pool)
        before = peak_mib()
        cpu, wall = time.process_time(), time.monotonic()
        for batch in range(1, batches + 1):
            mask = commits.shards < shards * batch // batches
            extend_row_index(PoolWriter(pool), Commits.of_records(pool, commits.records(mask)))
        result: dict[str, Any] = {
            "rows": rows,
            "shards": shards,
            "batches": batches,
            "extend_cpu_s": round(time.process_time() - cpu, 2),
            "extend_wall_s": round(time.monotonic() - wall, 2),
            "peak_mib_before": before,
            "peak_mib": peak_mib(),
        }
        table = Path(pool, "index/rows/rows.parquet")
        result["bytes_per_row"] = round(table.stat().st_size / rows, 1)
        result["with_table"] = look_up(pool, shards, LOOKUPS)
        table.unlink()
        result["without_table"] = look_up(pool, shards, 1)
    return result


def look_up(pool: str, shards: int, count: int) -> dict[str, float]:
    """CPU and wall seconds of `explain_row`, the slowest and the median of some rows."""
    chooser = random.Random(1)
    times = []
    for number in range(count):
        table = pq.read_table(
            PoolLayout(pool).sidecar(chooser.randrange(shards)), columns=["uid", "url"]
        )
        name = table["url" if number % 2 else "uid"][chooser.randrange(ROWS_PER_SHARD)].as_py()
        cpu, wall = time.process_time(), time.monotonic()
        history = explain_row(pool, name)
        times.append((time.monotonic() - wall, time.process_time() - cpu))
        assert len(history["attempts"]) == 1
    walls, cpus = sorted(wall for wall, _ in times), sorted(cpu for _, cpu in times)
    return {
        "median_wall_s": round(walls[len(walls) // 2], 4),
        "slowest_wall_s": round(walls[-1], 4),
        "median_cpu_s": round(cpus[len(cpus) // 2], 4),
    }


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--batches", type=int, default=5, help="builds that add to the table")
    parser.add_argument("--out", help="a JSON file for the results")
    args = parser.parse_args()
    results = []
    for rows in args.rows:
        results.append(measure(rows, args.batches))
        print(json.dumps(results[-1]), flush=True)
    if args.out:
        command = " ".join(["python benchmarks/pools/explain.py", *sys.argv[1:]])
        Path(args.out).write_text(json.dumps({"command": command, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
