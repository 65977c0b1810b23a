#!/usr/bin/env python3
"""Memory and CPU time of filters that look at the whole pool, on sidecars of any number of rows.

example: python benchmarks/filtering/pool_scores.py --folder /data/tmp --rows 5000000

Makes sidecars and commit records without tars: a fifth of the rows is a copy of another one. Then
runs one filter of each form in a process of its own, inline, and prints a line of JSON for each:
CPU seconds, peak memory above that of the imports, and a check of the columns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters import FILTERS
from clipmill.filters.base import Columns, PoolFilter
from clipmill.filters.columns import partition_of
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score

SHARD_ROWS = 10_000
COPIES = 0.2
FORMS = ("judge", "linked")


@dataclass(kw_only=True)
class Linked(PoolFilter):
    """Groups of equal sha256 by links, as a filter of near pairs finds them."""

    name: ClassVar[str] = "linked"
    adds: ClassVar[dict[str, pa.DataType]] = {
        "linked_group": pa.string(),
        "linked_size": pa.int32(),
    }
    linked: ClassVar[bool] = True
    reads = ("sha256",)

    def route(self, rows: pa.Table, state: Any, partitions: int) -> Any:
        return np.arange(rows.num_rows), partition_of(rows["sha256"], partitions)

    def links(self, rows: pa.Table, state: Any) -> pa.Table:
        order = pc.sort_indices(rows, sort_keys=[("sha256", "ascending")])
        rows = rows.take(order)
        same = pc.equal(rows["sha256"].slice(1), rows["sha256"].slice(0, rows.num_rows - 1))
        pairs = {"uid_a": rows["uid"].slice(0, rows.num_rows - 1), "uid_b": rows["uid"].slice(1)}
        return pa.table(pairs).filter(same)

    def judge_groups(self, rows: pa.Table, state: Any) -> Columns:
        groups = rows["group"].combine_chunks()
        codes = groups.dictionary_encode().indices.to_numpy()
        return {"linked_group": groups, "linked_size": np.bincount(codes)[codes]}


SPECS = {
    "judge": FilterSpec(name="duplicate", options={"on": "sha256"}),
    "linked": FilterSpec(name="linked"),
}


def hex_column(numbers: np.ndarray[Any, Any], digits: int) -> pa.Array:
    """Numbers as texts of random-looking hex digits, equal ones for equal numbers."""
    texts = []
    for number in numbers.tolist():
        texts.append(hashlib.blake2b(number.to_bytes(8), digest_size=digits // 2).hexdigest())
    return pa.array(texts)


def make_pool(folder: str, rows: int) -> None:
    """Sidecars and commit records of `rows` stored rows."""
    layout = PoolLayout(folder)
    rng = np.random.default_rng(0)
    for shard, start in enumerate(range(0, rows, SHARD_ROWS)):
        numbers = np.arange(start, min(start + SHARD_ROWS, rows))
        copied = rng.random(len(numbers)) < COPIES
        images = np.where(copied, rng.integers(0, numbers + 1), numbers)
        columns = {
            "uid": hex_column(numbers, 32),
            "sha256": hex_column(images, 64),
            "status": pa.array(["success"] * len(numbers)),
            "caption": pa.array([f"a photo of thing {n % 1000}" for n in numbers.tolist()]),
        }
        arrays = []
        for field in SIDECAR:
            column = columns.get(field.name, pa.nulls(len(numbers), field.type))
            arrays.append(column.cast(field.type))
        disk.write_parquet(layout.sidecar(shard), pa.Table.from_arrays(arrays, schema=SIDECAR))
        name = shard_name(shard)
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        record = CommitRecord(
            shard=name, tar=f"{name}.tar", tar_bytes=0, tar_sha256=sha256, count=len(numbers),
            successes=len(numbers), reasons={}, failed_to_download=0, failed_to_resize=0, retries=0,
            sidecar_bytes=0, sidecar_file_sha256=sha256, sidecar_sha256=sha256, task=name,
            group="0", version=SHARD_VERSION, duration_s=0.0, adopted=False,
        )  # fmt: skip
        disk.write_json(layout.commit_record(shard), record)


def measure(pool: str, form: str) -> dict[str, Any]:
    """Score by one filter in this process; what it took and how many groups there are."""
    FILTERS["linked"] = Linked
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    report = score(PoolWriter(pool), [SPECS[form]], engine="inline")
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert not report["failed"], report["failed"]
    ((name, state),) = report["sets"].items()
    groups: set[str] = set()
    files = AlignedFiles.of_scores(PoolLayout(pool), name)
    column = next(each for each in state["columns"] if each.endswith("_group"))
    for shard in read_commits(pool).names():
        groups.update(pc.unique(files.read(shard, [column])[0][column]).to_pylist())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "form": form,
        "rows": state["rows"],
        "groups": len(groups),
        "cpu_s": round(cpu, 1),
        "wall_s": round(wall, 1),
        "memory_mib": round((after.ru_maxrss - before.ru_maxrss) / 1024),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", required=True, help="where the pool is made; removed at the end"
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--measure", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    pool = os.path.join(args.folder, "pool-scores-benchmark")
    if args.measure:
        print(json.dumps(measure(pool, args.measure)))
        return 0
    try:
        make_pool(pool, args.rows)
        for form in args.forms:
            command = [sys.executable, __file__, "--folder", args.folder, "--measure", form]
            subprocess.run(command, check=True)
    finally:
        shutil.rmtree(pool, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
