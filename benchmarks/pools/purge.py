#!/usr/bin/env python3
"""What a purge of a large pool costs, by what is purged.

example: python benchmarks/pools/purge.py --folder /data/tmp --out benchmarks/results/purge.json

Makes a pool with everything in it: pairs, a plan, shards with small images for half of the rows,
score columns, two views and the table of rows. Each trial purges a copy of it by the command, whose
CPU time is that of the whole process. It needs about 3 GB of disk for a million rows.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa

from clipmill.manifests import console, disk
from clipmill.manifests.columns import PAIRS, SIDECAR
from clipmill.manifests.commits import IndexWriter, read_commits
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.schema import Fetch, FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.audit.counts import write_pool_json
from clipmill.pipeline.audit.row_index import extend_row_index
from clipmill.pipeline.crawl.parts import UidsDigest, write_parts
from clipmill.pipeline.planning.plan_files import PlannedShard, read_plan, read_shard
from clipmill.pipeline.planning.planner import write_plan
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import TarFile, member_block, publish_shard, staged_file
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views

PART_ROWS = 10_000
HOSTS = 10_000  # so a host has about a hundred rows of a million
IMAGE = 300  # bytes
RECIPE = Recipe(
    name="purged",
    source=Source(kind="wat", paths=("crawl.wat.gz",)),
    fetch=Fetch(rows_per_shard=10_000, user_agent="benchmark/1 (x@example.org)"),
    filters=(FilterSpec(name="caption"),),
    views=(
        View(name="raw"),
        View(name="long", rules=(Rule(name="words", where="caption_words > 3"),)),
    ),
)


# --- a pool ---------------------------------------------------------------------------------------


def write_pairs(pool: str, rows: int) -> None:
    """Parts of pairs of HOSTS hosts."""
    for part in range(rows // PART_ROWS):
        numbers = range(part * PART_ROWS, (part + 1) * PART_ROWS)
        urls = [f"https://host{i * 7919 % HOSTS}.example/images/{i}.jpg" for i in numbers]
        captions = [f"a photograph of thing number {i}" for i in numbers]
        columns: dict[str, Any] = {
            "uid": [disk.uid_of(*pair) for pair in zip(urls, captions, strict=True)],
            "url": urls,
            "caption": captions,
            "page_url": [f"https://page{i % 1000}.example/" for i in numbers],
            "wat": ["crawl.wat.gz"] * PART_ROWS,
            "link": list(range(PART_ROWS)),
        }
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(PART_ROWS, field.type)
            for field in PAIRS
        ]
        table, digest = pa.Table.from_arrays(arrays, schema=PAIRS), UidsDigest()
        digest.update(table["uid"].chunk(0))
        metadata = {
            "wat": "crawl.wat.gz", "links": PART_ROWS, "pairs": PART_ROWS, "damaged_records": 0,
            "reasons": {}, "examples": {}, "source_id": f"{part}", "content": {},
            "parts": rows // PART_ROWS, "bytes": table.nbytes, "uids": digest.hexdigest(),
        }  # fmt: skip
        disk.write_parquet(PoolLayout(pool).pairs_part(part), table, metadata)
    write_parts(PoolLayout(pool))


def write_shard(pool: str, shard: PlannedShard) -> Any:
    """Commit a shard in which every other row has an image."""
    pairs, _ = read_shard(PoolLayout(pool), shard.shard)
    content, offset, rows = hashlib.sha256(), 0, []
    with staged_file(PoolLayout(pool).shard_tar(shard.shard)) as staged:
        with open(staged, "wb") as f:
            for number, pair in enumerate(pairs):
                key = f"{shard_name(shard.shard)}{number:04d}"
                row: dict[str, Any] = dict.fromkeys(SIDECAR.names)
                row |= {"url": pair.url, "caption": pair.caption, "key": key, "uid": pair.uid}
                row |= {"page_url": pair.page_url, "wat": pair.wat, "link": pair.link}
                row |= {"status": "failed_to_download", "reason": "dns", "class": "transient"}
                if number % 2:
                    image = (pair.uid * (1 + IMAGE // 32)).encode()[:IMAGE]
                    sha256 = hashlib.sha256(image).hexdigest()
                    row |= {"status": "success", "reason": None, "class": None, "sha256": sha256}
                    row |= {"width": 64, "height": 64, "original_width": 64, "original_height": 64}
                    row["image_name"] = f"{key}.jpg"
                    text = (pair.caption or "").encode()
                    plain = {"uid": pair.uid, "url": pair.url, "key": key, "sha256": sha256}
                    members = {"image": ("jpg", image), "text": ("txt", text)}
                    members["json"] = ("json", json.dumps(plain).encode())
                    for part, (extension, data) in members.items():
                        block = member_block(f"{key}.{extension}", data)
                        row |= {f"{part}_offset": offset + 512, f"{part}_length": len(data)}
                        content.update(block)
                        f.write(block)
                        offset += len(block)
                rows.append(row)
            end = bytes(1024 + -(offset + 1024) % 10240)
            content.update(end)
            f.write(end)
        tar = TarFile(name="", bytes=offset + len(end), sha256=content.hexdigest())
        return publish_shard(
            PoolWriter(pool), shard.shard, rows, tar, staged_tar=staged, task=shard.id,
            group=str(shard.group), duration_s=1.0,
        )  # fmt: skip


def make_pool(pool: str, rows: int) -> None:
    write_pairs(pool, rows)
    assert write_plan(PoolWriter(pool), RECIPE) == {}
    with IndexWriter(pool) as index:
        for shard in read_plan(PoolLayout(pool)):
            index.add(write_shard(pool, shard))
    commits = read_commits(pool)
    disk.write_json(PoolLayout(pool).recipe_json, RECIPE)
    score(PoolWriter(pool), RECIPE.filters, engine="inline", commits=commits)
    choose_views(PoolWriter(pool), RECIPE)
    extend_row_index(PoolWriter(commits.pool), commits)
    write_pool_json(commits, RECIPE, {})


# --- trials ---------------------------------------------------------------------------------------


def trials(pool: str) -> dict[str, list[str]]:
    """Arguments of --purge by the name of a trial."""
    commits = read_commits(pool)
    tables = [
        disk.read_parquet(commits.sidecar(name), ["uid", "url", "sha256"])
        for name in commits.names()
    ]
    generator = np.random.default_rng(0)
    spread = [
        table.slice(int(generator.integers(table.num_rows // 2)) * 2 + 1, 1) for table in tables
    ]
    one = tables[len(tables) // 2]
    return {
        "1 uid": [f"uid={one['uid'][1].as_py()}"],
        "a host": ["domain=host7.example"],
        "100 URLs of one shard": [f"url={url}" for url in one["url"].slice(0, 100).to_pylist()],
        "1 sha256": [f"sha256={one['sha256'][1].as_py()}"],
        "a uid of every shard": [f"uid={table['uid'][0].as_py()}" for table in spread],
    }


def purge(pool: str, words: list[str]) -> dict[str, Any]:
    """CPU and wall seconds, and what the command says."""
    command = console.program(["audit", "purge", pool, *words, "--json"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    return {
        "rows": result["rows"],
        "shards": result["shards"],
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "wall_s": round(wall, 2),
        "peak_mib": after.ru_maxrss // 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="for pools; used again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    pool = args.folder / f"pool-{args.rows}"
    if not (pool / "pool.json").exists():
        make_pool(str(pool), args.rows)
    results = []
    for name, words in trials(str(pool)).items():
        copy = args.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(pool, copy, copy_function=os.link)  # a purge writes into no file
        results.append({"purged": name, **purge(str(copy), words)})
        print(json.dumps(results[-1]), flush=True)
        shutil.rmtree(copy)
    if args.out:
        disk.write_json(args.out, {"rows": args.rows, "trials": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
