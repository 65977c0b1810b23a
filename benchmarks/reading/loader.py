#!/usr/bin/env python3
"""How fast one core turns the JPEGs of a pool into batches, beside open_clip's own pipeline and
bare decoding, on the same tars in one run.

example: python benchmarks/reading/loader.py --images PHOTOGRAPHS --out loader.json

The images are scaled to a shorter side of 256 pixels, stored by clipmill build with their
captions, and read by programs that take turns, each in a process of its own with one thread:

  bare        the bytes of every image, decoded by simplejpeg at full size and thrown away
  ours        RunLoader: order, bytes, decoding, random crop to 224, tokens, batches of 256
  library     the same by clipmill.Loader in a loop of one's own, with captions and keys
  open_clip   webdataset and open_clip's training transform and tokenizer, as open_clip_train reads
  transform   clipmill.Loader with the same transform and tokenizer
  remote      ours, from an S3 store on loopback that answers each request after 50 ms
  cached      the same with a folder for parts of tars (read_cache), which the turns share

The figure is samples for a second of processor time, since other programs may take a share of the
clock's; the best of all turns counts. Two threads, and a store with ours, are compared by the
clock. Seconds to the first batch count from the call that opens the data, with the imports of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks.photographs import folder_option, paths_of
from clipmill.manifests import console, disk
from clipmill.manifests.commits import read_commits
from tests.support.s3_server import s3_variables

SIDE, QUALITY, SIZE, BATCH = 256, 95, 224, 256
MODEL = "ViT-B-32"
# Samples for a second of processor time; ratios of them; one thread's seconds by two threads'.
BARS = {
    "ours": 1100.0,
    "ours / open_clip": 4.0,
    "library / ours": 0.95,
    "transform / open_clip": 1.0,
    "ours / bare": 0.5,
    "two threads / one": 1.85,
    "remote / ours": 0.9,
}
WAIT_MS, BUCKET = 50, "pools"  # of the store
RECIPE = """
name: loader
source: {{kind: image_folder, paths: ["{folder}"], captions: metadata.csv}}
fetch: {{image_size: {side}}}
filters: [tokens]
"""
Result = dict[str, Any]


# --- the images -----------------------------------------------------------------------------------


def write_images(source: Path, folder: Path, rows: int) -> int:
    """Scale at most `rows` images to SIDE pixels and list them in metadata.csv; their number. Fewer
    than a batch are repeated until they fill one.
    """
    from PIL import Image

    lines, paths = ["file_name,caption"], paths_of(source)
    for number in range(min(rows, max(len(paths), BATCH))):
        with Image.open(paths[number % len(paths)]) as image:
            factor = SIDE / min(image.size)
            size = (round(image.width * factor), round(image.height * factor))
            small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        small.save(folder / f"{number:06d}.jpg", "JPEG", quality=QUALITY)
        lines.append(f"{number:06d}.jpg,a photo of a thing that has the number {number}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return len(lines) - 1


def build_pool(folder: Path, work: Path) -> Path:
    """A pool of the images with their tokens and one view of them all."""
    recipe, pool = work / "recipe.yaml", work / BUCKET / "pool"
    recipe.write_text(RECIPE.format(folder=folder, side=SIDE))
    subprocess.run(
        console.program(["build", str(recipe), "--out", str(pool)]),
        check=True,
        capture_output=True,
    )
    return pool


# --- the programs ---------------------------------------------------------------------------------


def _bare(pool: str, threads: int, samples: int) -> Iterator[int]:
    import simplejpeg

    from clipmill.train.data.view_rows import open_view

    view = open_view(pool, "raw")
    done = 0
    while done < samples:
        for shard, rows in enumerate(view.shard_rows.tolist()):
            for row in range(rows):
                simplejpeg.decode_jpeg(view.read_image(view.shard(shard), row))
            done += rows
            yield rows


def _ours(pool: str, threads: int, samples: int, cache: str | None = None) -> Iterator[int]:
    from clipmill.manifests.schema import Blend
    from clipmill.train.config import TrainConfig, model_config
    from clipmill.train.data.loader import RunLoader

    blend = Blend(name="bench", pools={"p": pool}, views={"p/raw": 1.0})
    config = TrainConfig(
        model=MODEL,
        batch_size=BATCH,
        samples_seen=samples,
        warmup=1,
        threads=threads,
        device="cpu",
        read_cache=cache,
    )
    for batch in RunLoader(blend, config, model_config(config)):
        yield len(batch.keys)


def _library(pool: str, threads: int, samples: int) -> Iterator[int]:
    import clipmill

    loader = clipmill.Loader(
        f"{pool}/raw", batch_size=BATCH, image_size=SIZE, epochs=None, workers=threads
    )
    for batch in loader:
        yield len(batch.keys)


def _transform(pool: str, threads: int, samples: int) -> Iterator[int]:
    import open_clip

    import clipmill

    loader = clipmill.Loader(
        f"{pool}/raw",
        batch_size=BATCH,
        transform=open_clip.image_transform(SIZE, is_train=True),
        tokenizer=open_clip.get_tokenizer(MODEL),
        epochs=None,
        workers=threads,
    )
    for batch in loader:
        yield len(batch.image)


def _open_clip(pool: str, threads: int, samples: int) -> Iterator[int]:
    import open_clip
    import webdataset as wds

    commits = read_commits(pool)
    tars = [commits.tar(shard) for shard in commits.names()]
    transform = open_clip.image_transform(SIZE, is_train=True)
    tokenizer = open_clip.get_tokenizer(MODEL)
    dataset = (
        wds.WebDataset(tars, shardshuffle=False)
        .repeat()
        .shuffle(1000)
        .decode("pilrgb")
        .rename(image="jpg;png;jpeg;webp", text="txt")
        .map_dict(image=transform, text=lambda text: tokenizer(text)[0])
        .to_tuple("image", "text")
        .batched(BATCH, partial=False)
    )
    for images, _ in dataset:
        yield len(images)


def _cached(pool: str, threads: int, samples: int) -> Iterator[int]:
    return _ours(pool, threads, samples, os.environ["LOADER_CACHE"])


PROGRAMS: dict[str, Callable[[str, int, int], Iterator[int]]] = {
    "bare": _bare,
    "ours": _ours,
    "library": _library,
    "open_clip": _open_clip,
    "transform": _transform,
    "remote": _ours,
    "cached": _cached,
}


def run_program(name: str, pool: str, threads: int, samples: int) -> Result:
    """Samples, seconds of the clock and of the processor; the first batch does not count."""
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    batches = PROGRAMS[name](pool, threads, samples + 2 * BATCH)
    next(batches)
    first_batch_s = time.perf_counter() - started
    waits = timed_waits()
    started, cpu, count = time.perf_counter(), time.process_time(), 0
    for rows in batches:
        count += rows
        if count >= samples:
            break
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return {
        "samples": count,
        "first_batch_s": first_batch_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "samples_per_cpu_s": count / cpu_s,
        "samples_per_s": count / wall_s,
        "store_wait_ms": 1000 * sum(waits) / count,  # of a decoding thread, for a sample
    }


def timed_waits() -> list[float]:
    """The seconds that decoding threads of this process wait for bytes of a store, from now on."""
    from clipmill.train.data.read_ahead import StepReads

    waits: list[float] = []
    image = StepReads.image

    def timed(self: StepReads, r: int) -> bytes | None:
        started = time.perf_counter()
        try:
            return image(self, r)
        finally:
            waits.append(time.perf_counter() - started)

    StepReads.image = timed  # type: ignore[method-assign]
    return waits


@contextlib.contextmanager
def late_store(folder: Path, wait_ms: int = WAIT_MS) -> Iterator[dict[str, str]]:
    """The environment in which s3:// is a store over a folder that answers after a wait."""
    program = [
        sys.executable,
        str(ROOT / "benchmarks/reading/store_server.py"),
        "--folder",
        str(folder),
    ]
    command = [*program, "--wait-ms", str(wait_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield s3_variables(server.stdout.readline().strip())
        finally:
            server.kill()


def run_child(
    name: str,
    pool: str,
    threads: int,
    samples: int,
    variables: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Result:
    """`run_program` in a process of its own, by `python`."""
    command = [python, __file__, "--program", name, "--pool", pool]
    command += ["--threads", str(threads), "--samples", str(samples)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: Result = json.loads(output.stdout.splitlines()[-1])
    return result


# --- where our time goes --------------------------------------------------------------------------


def time_of_parts(pool: str, samples: int) -> dict[str, float]:
    """Milliseconds of processor time for a sample, of each part of our loader alone."""
    import numpy as np
    import torch

    from clipmill.train.config import TrainConfig
    from clipmill.train.data.loader import copy_tokens
    from clipmill.train.data.view_rows import open_view
    from clipmill.train.mixture.order import Order
    from clipmill.train.mixture.schedule import SourceRows
    from clipmill.train.transforms import crop_numbers, decode_image, random_crop_into

    torch.set_num_threads(1)
    view = open_view(pool, "raw")
    config = TrainConfig()
    source = SourceRows(name="p/raw", weight=1.0, shard_rows=view.shard_rows)
    order = Order([source], BATCH, config.lanes, config.window, 0)
    sampled = [(s, r) for s, rows in enumerate(view.shard_rows.tolist()) for r in range(rows)]
    sampled = sampled[:samples]
    numbers = crop_numbers(0, 0, np.arange(len(sampled)), config.crop_min).tolist()
    into_BHWC = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    bytes_of = [view.read_image(view.shard(s), r) for s, r in sampled]
    images = [decode_image(data) for data in bytes_of]

    def cost(work: Callable[[], object], count: int) -> float:
        started = time.process_time()
        work()
        return 1000 * (time.process_time() - started) / count

    def crop() -> None:
        for k, (image, row) in enumerate(zip(images, numbers, strict=True)):
            random_crop_into(into_BHWC[k % BATCH], image, row)

    into_BT, length_B = np.zeros((BATCH, 77), np.int64), np.zeros(BATCH, np.int64)

    def tokens() -> None:
        for first in range(0, len(sampled) - BATCH + 1, BATCH):
            rows = sampled[first : first + BATCH]
            copy_tokens([view.shard(s).tokens_of(r) for s, r in rows], into_BT, length_B)

    steps = max(1, len(sampled) // BATCH)
    return {
        "positions": cost(lambda: [order.batch(k) for k in range(steps)], steps * BATCH),
        "read": cost(lambda: [view.read_image(view.shard(s), r) for s, r in sampled], len(sampled)),
        "decode": cost(lambda: [decode_image(data) for data in bytes_of], len(sampled)),
        "crop": cost(crop, len(sampled)),
        "tokens": cost(tokens, steps * BATCH),
    }


# --- the run --------------------------------------------------------------------------------------


def measure(pool: str, samples: int, turns: int) -> Result:
    """All programs in turns, and where the time of ours goes."""
    rows: dict[str, list[Result]] = {name: [] for name in PROGRAMS}
    walls: dict[int, list[float]] = {1: [], 2: []}
    folder = Path(pool).parents[1]
    with late_store(folder) as variables:
        variables = {**variables, "LOADER_CACHE": str(folder / "cache")}
        for _ in range(turns):
            for name in PROGRAMS:
                url = f"s3://{BUCKET}/{Path(pool).name}" if name in ("remote", "cached") else pool
                rows[name].append(run_child(name, url, 1, samples, variables))
            for threads in walls:
                walls[threads].append(run_child("ours", pool, threads, samples)["wall_s"])
    return {**compare(rows, walls), "ms_of_parts": time_of_parts(pool, min(samples, 1000))}


def compare(rows: dict[str, list[Result]], walls: dict[int, list[float]]) -> Result:
    """The best turn of each program, and the ratios beside their bars."""
    best = {name: max(one["samples_per_cpu_s"] for one in of) for name, of in rows.items()}
    fastest = {name: max(one["samples_per_s"] for one in of) for name, of in rows.items()}
    figures = {
        "ours": best["ours"],
        "ours / open_clip": best["ours"] / best["open_clip"],
        "library / ours": best["library"] / best["ours"],
        "transform / open_clip": best["transform"] / best["open_clip"],
        "ours / bare": best["ours"] / best["bare"],
        "two threads / one": min(walls[1]) / min(walls[2]),
        "remote / ours": fastest["remote"] / fastest["ours"],
    }
    return {
        "best_samples_per_cpu_s": best,
        "best_samples_per_s": fastest,
        "least_first_batch_s": {
            name: min(one["first_batch_s"] for one in of) for name, of in rows.items()
        },
        "turns": rows,
        "wall_s_by_threads": {str(threads): values for threads, values in walls.items()},
        "bars": {
            name: {"measured": figures[name], "goal": goal, "reached": figures[name] / goal}
            for name, goal in BARS.items()
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=folder_option, metavar="FOLDER", help="photographs, JPEG")
    parser.add_argument("--rows", type=int, default=3000, help="images that are used at most")
    parser.add_argument("--samples", type=int, default=4096, help="of each turn (default: 4096)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--program", choices=PROGRAMS, help="run one of them on --pool, and end")
    parser.add_argument("--pool")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    if args.program:
        if not args.pool:
            parser.error("--program needs --pool")
        print(json.dumps(run_program(args.program, args.pool, args.threads, args.samples)))
        return 0
    if not args.images:
        parser.error("--images is missing: a folder of photographs")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "images")
        folder.mkdir()
        rows = write_images(args.images, folder, args.rows)
        if rows < BATCH:
            parser.error(f"--rows {args.rows}: a batch has {BATCH}")
        result = measure(str(build_pool(folder, Path(work))), args.samples, args.turns)
    result |= {"images": rows, "side": SIDE, "size": SIZE, "batch": BATCH, "machine": _machine()}
    for name, bar in result["bars"].items():
        print(f"{name:20} {bar['measured']:9.2f}   goal {bar['goal']:g}: {bar['reached']:.2f}")
    for name, cost in result["ms_of_parts"].items():
        print(f"{name:20} {cost:9.3f} ms")
    if args.out:
        disk.write_json(args.out, result)
    return 0


def _machine() -> dict[str, Any]:
    import torch

    return {
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
