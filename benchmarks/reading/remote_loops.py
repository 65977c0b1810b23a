#!/usr/bin/env python3
"""`clipmill.Loader` and the loaders of the field, reading from an S3 server that is far away.

example: python benchmarks/reading/remote_loops.py --images PHOTOGRAPHS

The photographs of foreign_loops.py, stored as each loader wants them, behind a server on loopback
whose every read waits 30 ms. A program takes one shuffled pass of batches of 256 with the same
kernels and two threads or two worker processes, whichever the loader has: first with an empty cache
on its disk, then in a new process with the cache that the first left. A figure is samples a second
of wall, from the import of the loader's package to its last batch; the best of the turns counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks.reading import foreign_loops
from benchmarks.reading.foreign_loops import BATCH, SIZE, Result, parser_of, run_child, run_to_file

WAIT_MS = 30  # of each read
BUCKET = "pools"
AT_ONCE = 2  # threads or processes of a loader
STATES = ("cold", "warm")


# --- the loaders ----------------------------------------------------------------------------------
#
# Each function gives an iterable of (images, captions), shuffled, over the data in the bucket at an
# address, with a folder for a cache.


def clipmill_loop(url: str, cache: Path) -> Iterable[Any]:
    import clipmill

    loader = clipmill.Loader(
        f"s3://{BUCKET}/pool/raw", batch_size=BATCH, image_size=SIZE, workers=AT_ONCE,
        read_cache=str(cache),
    )  # fmt: skip
    return ((batch.image, batch.captions) for batch in loader)


def streaming_loop(url: str, cache: Path) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset

    # Where the process reads the index from the store, its workers inherit the connection, both
    # read from it, and shards are damaged (0.13.0): it is given the index.
    index, there = cache / "index.json", f"{url}/{BUCKET}/streaming/index.json"
    index.write_bytes(urllib.request.urlopen(there).read())
    dataset = StreamingDataset(
        remote=f"s3://{BUCKET}/streaming", local=str(cache), shuffle=True, shuffle_seed=0,
        batch_size=BATCH, num_canonical_nodes=1,
    )  # fmt: skip
    collate = foreign_loops.of_rows("kernels")
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=BATCH, collate_fn=collate, num_workers=AT_ONCE, drop_last=True
    )


def litdata_loop(url: str, cache: Path) -> Iterable[Any]:
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = litdata.StreamingDataset(
        f"s3://{BUCKET}/litdata", cache_dir=str(cache), shuffle=True, seed=0, drop_last=True,
        storage_options={"endpoint_url": url},
    )  # fmt: skip
    collate = foreign_loops.of_rows("kernels")
    return litdata.StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=BATCH, collate_fn=collate, num_workers=AT_ONCE
    )


def webdataset_loop(url: str, cache: Path) -> Iterable[Any]:
    import webdataset as wds

    shards = int(os.environ["SHARDS"])
    tars = [f"{url}/{BUCKET}/pool/shards/{number:05d}.tar" for number in range(shards)]
    dataset = wds.WebDataset(tars, shardshuffle=len(tars), seed=0, cache_dir=str(cache))
    named = dataset.shuffle(1000).to_tuple("jpg", "txt").map_tuple(bytes, bytes.decode)
    batches = named.batched(BATCH, collation_fn=foreign_loops.COLLATES["kernels"](), partial=False)
    return wds.WebLoader(batches, batch_size=None, num_workers=AT_ONCE)  # type: ignore[no-any-return]


LOOPS: dict[str, Callable[[str, Path], Iterable[Any]]] = {
    "clipmill": clipmill_loop,
    "streaming": streaming_loop,
    "litdata": litdata_loop,
    "webdataset": webdataset_loop,
}


def measure(name: str, url: str, cache: Path) -> Result:
    """Samples, and seconds of wall from the import of the loader's package, torch's is done, to the
    last batch: clipmill's libraries are imported when they are needed first, others' at once.
    """
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    first_s, samples = 0.0, 0
    for _, captions in LOOPS[name](url, cache):
        first_s = first_s or time.perf_counter() - started
        samples += len(captions)
    wall_s = time.perf_counter() - started
    return {
        "first_s": first_s,
        "wall_s": wall_s,
        "samples": samples,
        "samples_per_s": samples / wall_s,
    }


# --- the run --------------------------------------------------------------------------------------


def run(images: Path, work: Path, turns: int, names: Sequence[str]) -> Result:
    """All loaders in turns, cold and then warm."""
    from benchmarks.peers.environments import environment_of
    from benchmarks.reading.loader import late_store

    environments = {name: environment_of(name) for name in names if name != "clipmill"}
    pythons = {"clipmill": sys.executable}
    pythons |= {name: each.python for name, each in environments.items() if each.python}
    store = work / "store"
    store.mkdir(parents=True, exist_ok=True)
    rows = foreign_loops.prepare(images, store / BUCKET, pythons)
    shards = len(list((store / BUCKET / "pool/shards").glob("*.tar")))
    measured: dict[str, dict[str, list[Result]]] = {name: {} for name in pythons}
    with late_store(store, WAIT_MS) as variables:
        url = variables["AWS_ENDPOINT_URL"]
        variables |= {"S3_ENDPOINT_URL": url, "SHARDS": str(shards)}
        for _ in range(turns):
            for name, python in pythons.items():
                cache = work / "cache" / name
                shutil.rmtree(cache, ignore_errors=True)
                cache.mkdir(parents=True)
                for state in STATES:
                    words = ["--loop", name, "--url", url, "--cache", str(cache)]
                    result = run_child(python, words, __file__, **variables)
                    measured[name].setdefault(state, []).append(result)
                    print(f"{name} {state}: {result['samples_per_s']:.0f}", flush=True)
    loaders: dict[str, Result] = {}
    for name in names:
        loaders[name] = {"title": foreign_loops.LOOPS[name].title, "turns": measured.get(name)}
        if name in environments:
            one = environments[name]
            loaders[name] |= {"version": one.version, "missing": one.reason}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return {
        "loaders": loaders, "samples": rows, "wait_ms": WAIT_MS, "batch": BATCH,
        "at_once": AT_ONCE, "turns": turns, "machine": machine,
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def table_lines(document: Result) -> Iterable[str]:
    """The loaders, the fastest cold one first, below clipmill's."""
    yield "| loader | samples a second, cold | warm | first batch, cold, s | warm, s |"
    yield "|---|---:|---:|---:|---:|"
    rows = []
    for name, loader in document["loaders"].items():
        title = f"{loader['title']} {loader.get('version') or ''}".strip()
        if not loader["turns"]:
            rows.append((0.0, f"| {title} | not measured: {loader['missing']} |  |  |  |"))
            continue
        best = [max(t["samples_per_s"] for t in loader["turns"][state]) for state in STATES]
        first = [min(t["first_s"] for t in loader["turns"][state]) for state in STATES]
        cells = [f"{value:,.0f}" for value in best] + [f"{value:.1f}" for value in first]
        order = float("inf") if name == "clipmill" else best[0]
        rows.append((order, f"| {title} | {' | '.join(cells)} |"))
    yield from (row for _, row in sorted(rows, key=lambda row: -row[0]))
    yield ""
    yield (
        f"{document['date']}, {document['samples']:,} samples, turns: {document['turns']}, "
        f"{document['machine']} ([results](../benchmarks/results/remote_loops.json))"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(__doc__, LOOPS)
    of_child = parser.add_argument_group("what a process of a loader does")
    of_child.add_argument("--loop", choices=LOOPS)
    of_child.add_argument("--url")
    of_child.add_argument("--cache", type=Path)
    args = parser.parse_args(arguments)
    if args.loop:
        with contextlib.redirect_stdout(sys.stderr):  # peers print there
            result = measure(args.loop, args.url, args.cache)
        print(json.dumps(result))
        return 0
    return run_to_file(parser, args, run)


if __name__ == "__main__":
    sys.exit(main())
