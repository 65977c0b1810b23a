#!/usr/bin/env python3
"""A view of twelve columns, its hash, and DataComp's metadata as columns, on a million drawn rows.

example: python benchmarks/pools/views.py --folder /data/tmp --out benchmarks/results/views.json

Makes sidecars, commit records and metadata in DataComp's form (no tars), joins the metadata by
uid, and chooses a view over four columns of the sidecars and eight joined ones, with two threads
and with one. Each step is a process of its own; its CPU time is that of the step, without the
imports, its memory that of the process. It needs about 0.5 GB of disk for a million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
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
import pyarrow.parquet as pq

from benchmarks.scaling.views import sidecar
from clipmill.filters import make
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits, update_index
from clipmill.manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views import choose as choose_module
from clipmill.pipeline.views import files as files_module
from clipmill.pipeline.views.files import choose_views
from clipmill.pipeline.views.rules import columns_of

SHARD_ROWS = 10_000
FILE_ROWS = 50_000  # of a metadata file, about as DataComp's
ARRAY_WIDTH = 768  # of an embedding of ViT-L/14
SCORES = [f"score_{number}" for number in range(8)]
BARS = {"choose_wall_s": 1.0, "choose_peak_mib": 2048, "join_projected_min": 10}
DATACOMP_SMALL = 12_800_000


def table_spec(folder: Path, take: dict[str, str]) -> FilterSpec:
    """The filter that reads the metadata."""
    return FilterSpec(name="dc", kind="table", options={"paths": [str(folder)], "take": take})


def recipe(folder: Path) -> Recipe:
    """One view that reads twelve columns."""
    rules = [
        Rule(name="side", where="least(original_width, original_height) >= 100"),
        Rule(name="bytes", where="image_length > 4000"),
        Rule(name="language", where="page_lang <> 'ja'"),
        Rule(name="best", where=f"dc_{SCORES[0]} >= top(dc_{SCORES[0]}, 0.80)"),
    ]
    for name in SCORES[1:]:
        rules.append(Rule(name=name, where=f"dc_{name} > -1.5"))
    source = Source(kind="files", paths=("x.csv",))
    spec = table_spec(folder / "metadata", dict.fromkeys(SCORES, "float"))
    view = View(name="twelve", rules=tuple(rules))
    return Recipe(name="bench", source=source, filters=(spec,), views=(view,))


def prepare(folder: Path, rows: int) -> None:
    """Sidecars, commit records, metadata in another order, and arrays for one metadata file."""
    pool = folder / "pool"
    layout = PoolLayout(str(pool))
    uids = []
    for shard in range(rows // SHARD_ROWS):
        table = sidecar(shard)
        path = Path(layout.sidecar(shard))
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_parquet(path, table, {})
        stored = int(np.sum(table["status"].to_numpy() == "success"))
        record = CommitRecord(
            shard=shard_name(shard), tar=f"{shard_name(shard)}.tar", tar_bytes=1,
            tar_sha256=f"{shard:064x}", count=SHARD_ROWS, successes=stored,
            reasons={"dns": SHARD_ROWS - stored}, failed_to_download=SHARD_ROWS - stored,
            failed_to_resize=0, retries=0, sidecar_bytes=1, sidecar_file_sha256=f"{shard:064x}",
            sidecar_sha256=f"{shard:064x}", task=str(shard), group="0", version=SHARD_VERSION,
            duration_s=1.0, adopted=False,
        )  # fmt: skip
        disk.write_json(layout.commit_record(shard), record, sealed=True)
        uids.append(table["uid"].combine_chunks())
    update_index(str(pool))
    _write_metadata(folder / "metadata", pa.concat_arrays(uids), SCORES)
    _write_metadata(folder / "arrays", pa.concat_arrays(uids).slice(0, 2 * FILE_ROWS), [])


def _write_metadata(folder: Path, uids: pa.Array, scores: list[str]) -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(len(uids))
    folder.mkdir()
    for number, start in enumerate(range(0, len(uids), FILE_ROWS)):
        part = uids.take(pa.array(order[start : start + FILE_ROWS]))
        columns: dict[str, Any] = {"uid": part}
        for name in scores:
            columns[name] = pa.array(rng.standard_normal(len(part)), pa.float32())
        pq.write_table(pa.table(columns), folder / f"{number:04d}.parquet")
        if not scores:
            values = rng.standard_normal((len(part), ARRAY_WIDTH)).astype(np.float16)
            np.savez(folder / f"{number:04d}.npz", l14_img=values)


# --- steps ----------------------------------------------------------------------------------------


def join(folder: Path) -> dict[str, Any]:
    """Eight columns of the metadata for every row."""
    spec = table_spec(folder / "metadata", dict.fromkeys(SCORES, "float"))
    (document,) = score(PoolWriter(str(folder / "pool")), [spec], engine="inline")["sets"].values()
    return {"rows": document["rows"], "scored": document["scored"]}


def join_arrays(folder: Path) -> dict[str, Any]:
    """Embeddings of two files."""
    spec = table_spec(folder / "arrays", {"l14_img": f"fp16[{ARRAY_WIDTH}]"})
    (document,) = score(PoolWriter(str(folder / "pool")), [spec], engine="inline")["sets"].values()
    return {"scored": document["scored"]}


def choose(folder: Path) -> dict[str, Any]:
    """The view, with its masks and its document."""
    documents = choose_views(PoolWriter(str(folder / "pool")), recipe(folder))
    return {"kept": documents["twelve"].kept}


def choose_again(folder: Path) -> dict[str, Any]:
    """The view, made new where it exists."""
    path = PoolLayout(str(folder / "pool")).view_json("twelve")
    if disk.exists(path):
        disk.remove(path)
    return choose(folder)


def choose_with_one_thread(folder: Path) -> dict[str, Any]:
    """The same view again with one thread."""
    choose_module.THREADS = 1
    return choose_again(folder)


def hash_view(folder: Path) -> dict[str, Any]:
    """The hash of the view alone."""
    return {"hash": files_module.hash_view(str(folder / "pool"), "twelve")}


STEPS = {
    "join": join,
    "join_arrays": join_arrays,
    "choose": choose,
    "hash": hash_view,
    "choose_with_one_thread": choose_with_one_thread,
}


CHILD_STEPS = {**STEPS, "choose_again": choose_again}  # the last one only for `make bench`


def run_step(name: str, folder: Path) -> None:
    """Run one step in this process and print what it took."""
    pa.array(np.zeros(1))  # PyArrow imports pandas, where there is one, with the first array
    one_rule = View(name="one", rules=(Rule(name="status", where="status = 'success'"),))
    columns_of((one_rule,), "one", ["status"])  # and this loads DuckDB
    make(FilterSpec(name="tokens"))  # and this pydantic, with the plugins that are installed
    before, peak_before = resource.getrusage(resource.RUSAGE_SELF), peak_mib()
    started = time.perf_counter()
    result = CHILD_STEPS[name](folder)
    wall = time.perf_counter() - started
    after, peak = resource.getrusage(resource.RUSAGE_SELF), peak_mib()
    result |= {
        "wall_s": round(wall, 3),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        "peak_mib": peak,
        "peak_mib_before": peak_before,
        "load": os.getloadavg()[0],
    }
    print(json.dumps(result))


def peak_mib() -> int:
    """The largest resident memory of this process; getrusage has that of its parent too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmHWM")


def masks_hash(folder: Path) -> str:
    """Hash of the masks of the view."""
    pool = str(folder / "pool")
    files = AlignedFiles.of_view(PoolLayout(pool), "twelve")
    masks = [files.read(shard)[0].to_pydict() for shard in read_commits(pool).shards.tolist()]
    return disk.content_hash(masks, 64)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", default=None, help="where the pool is made")
    parser.add_argument("--out", help="a file for the results, JSON")
    parser.add_argument("--step", choices=list(CHILD_STEPS), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.step:
        run_step(args.step, Path(args.folder))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="clipmill-views-", dir=args.folder))
    try:
        results = measure(folder, args.rows)
    finally:
        shutil.rmtree(folder)
    command = f"python benchmarks/pools/views.py --rows {args.rows}"
    document = {"command": command, "cpus": os.cpu_count(), "bars": BARS, "results": results}
    print(json.dumps(document, indent=1))
    if args.out:
        disk.write_json(args.out, document)
    return 0


def measure(folder: Path, rows: int) -> dict[str, Any]:
    """The results of all steps."""
    prepare(folder, rows)
    results: dict[str, Any] = {"rows": rows}
    hashes = set()
    for name in STEPS:
        words = [sys.executable, __file__, "--step", name, "--folder", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        if "kept" in results[name]:
            hashes.add((results[name]["kept"], masks_hash(folder)))
    assert len(hashes) == 1, "the masks depend on the number of threads"
    cpu_s = results["join"]["cpu_s"] * DATACOMP_SMALL / rows
    results["join_projected_min"] = round(cpu_s / 60, 2)  # of CPU, for 12.8 million rows
    return results


if __name__ == "__main__":
    raise SystemExit(main())
