#!/usr/bin/env python3
"""What scoring costs beside the model: preprocessing against open_clip's transform, and a pass over
tars against the model's own speed on tensors.

example: python benchmarks/filtering/scoring.py --data PHOTOGRAPHS --out scoring.json

  preprocess   bytes of a JPEG to a normalised tensor: by Pillow and open_clip's validation
               transform, and by ours, exact and fast; the milliseconds of each step; the largest
               and mean difference of the pixels, and of the cosines of a CLIP with random weights,
               over images of all shapes
  pass         pipeline.scoring over the tars of a pool with clip_score and a ViT-B-32 of random
               weights, against its two towers on tensors and tokens that lie ready
  memory       the resident size while 10,000 images of one pool are scored by a CLIP of two layers

Programs take turns and use one thread; the best turn counts. All figures are seconds of processor
time, since other programs may take a share of the clock's. Without --data images are drawn.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
from PIL import Image

from benchmarks.photographs import folder_option, paths_of
from clipmill.manifests import console, disk

BARS = {"pass / tensors": 0.85, "preprocess, exact": 2.0, "preprocess, fast": 2.0}
SIDE, QUALITY, SIZE, BATCH = 256, 95, 224, 32
MODEL = "ViT-B-32"
SHAPES = [(256, 256), (341, 256), (256, 341), (1024, 768), (700, 256), (256, 700), (200, 160)]
TINY = {  # a CLIP of two layers, for what does not depend on the model
    "model_cfg": {
        "embed_dim": 64,
        "vision_cfg": {"image_size": SIZE, "layers": 2, "width": 64, "patch_size": 32},
        "text_cfg": {"context_length": 16, "width": 64, "heads": 2, "layers": 2},
    },
    "preprocess_cfg": {},
}
RECIPE = """
name: scoring
source: {{kind: image_folder, paths: ["{folder}"], captions: metadata.csv}}
fetch: {{image_size: {side}}}
"""
Result = dict[str, Any]


# --- images, models and pools ---------------------------------------------------------------------


def images_of(source: Path | None, count: int) -> Iterator[Image.Image]:
    """RGB images: photographs of a folder, or drawn ones (a sky of smooth noise with a frame)."""
    if source is not None:
        for path in paths_of(source)[:count]:
            with Image.open(path) as image:
                yield image.convert("RGB")
        return
    random = np.random.default_rng(0)
    for number in range(count):
        small = random.integers(0, 256, (24, 32, 3), np.uint8)
        size = [(640, 480), (480, 640), (512, 512)][number % 3]
        smooth = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC))
        grain = random.integers(-8, 9, smooth.shape)
        yield Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def jpegs_of(source: Path | None, count: int, side: int = SIDE) -> list[bytes]:
    """JPEGs with a shorter side of `side` pixels."""
    written = []
    for image in images_of(source, count):
        factor = side / min(image.size)
        size = (round(image.width * factor), round(image.height * factor))
        buffer = io.BytesIO()
        image.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=QUALITY)
        written.append(buffer.getvalue())
    return written


def build_pool(work: Path, jpegs: Sequence[bytes], rows: int) -> Path:
    """A pool of `rows` images, the JPEGs again and again, each with a caption of its own."""
    folder, pool = work / "images", work / "pool"
    folder.mkdir()
    lines = ["file_name,caption"]
    for row in range(rows):
        (folder / f"{row:06d}.jpg").write_bytes(jpegs[row % len(jpegs)])
        lines.append(f"{row:06d}.jpg,a photo of a thing that has the number {row}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    recipe = work / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=folder, side=SIDE))
    command = console.program(["build", str(recipe), "--out", str(pool)])
    subprocess.run(
        [*command, "--engine", "inline", "--until", "fetch"], check=True, capture_output=True
    )
    return pool


def random_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """A folder with a CLIP of random weights, as `local-dir:` reads it."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    disk.write_json(folder / "open_clip_config.json", dict(config))
    torch.manual_seed(0)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


def large_config() -> Result:
    import open_clip

    return {"model_cfg": open_clip.get_model_config(MODEL), "preprocess_cfg": {}}


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


# --- preprocessing --------------------------------------------------------------------------------


def programs(transform: Any) -> dict[str, Callable[[Sequence[bytes]], Any]]:
    """JPEGs to a batch of normalised tensors, by each way."""
    import torch

    from clipmill.filters.clip.model import Preprocess
    from clipmill.pipeline.scoring.worker import decode

    def by_open_clip(jpegs: Sequence[bytes]) -> Any:
        tensors = []
        for data in jpegs:
            tensors.append(transform(Image.open(io.BytesIO(data)).convert("RGB")))
        return torch.stack(tensors)

    def ours(preprocess: Preprocess) -> Callable[[Sequence[bytes]], Any]:
        def batch(jpegs: Sequence[bytes]) -> Any:
            pixels = []
            for data in jpegs:  # as in a pass: an image is preprocessed where it was decoded
                image = decode(data, "benchmark")
                assert image is not None
                pixels.append(preprocess.pixels(image))
            return preprocess.normalised(pixels)

        return batch

    return {
        "open_clip": by_open_clip,
        "exact": ours(Preprocess(transform)),
        "fast": ours(Preprocess(transform, fast=True)),
    }


def measure_preprocess(source: Path | None, count: int, turns: int) -> Result:
    from open_clip.transform import image_transform

    transform = image_transform(SIZE, is_train=False)
    jpegs = jpegs_of(source, count)
    batches = [jpegs[start : start + BATCH] for start in range(0, len(jpegs), BATCH)]
    ways = programs(transform)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for name, way in ways.items():
            spent = cpu_seconds(lambda way=way: [way(batch) for batch in batches])
            best[name] = min(best[name], 1000 * spent / len(jpegs))
    return {
        "images": len(jpegs),
        "ms": best,
        "ms_of_steps": time_of_steps(transform, jpegs, turns),
        "parity": measure_parity(transform, source, min(count, 60)),
    }


def time_of_steps(transform: Any, jpegs: Sequence[bytes], turns: int) -> dict[str, float]:
    """Milliseconds for an image of each step of open_clip's way and of ours."""
    import simplejpeg

    from clipmill.filters.clip.model import Preprocess
    from clipmill.pipeline.scoring.worker import decode

    exact, fast = Preprocess(transform), Preprocess(transform, fast=True)
    resize, crop, _, to_tensor, normalize = transform.transforms
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in jpegs]
    resized = [resize(image) for image in images]
    cropped = [crop(image) for image in resized]
    tensors = [to_tensor(image) for image in cropped]
    pixels = [exact.pixels(image) for image in images]
    steps: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        "open_clip: decode": (lambda data: Image.open(io.BytesIO(data)).convert("RGB"), jpegs),
        "open_clip: resize": (resize, images),
        "open_clip: crop": (crop, resized),
        "open_clip: to tensor": (to_tensor, cropped),
        "open_clip: normalise": (normalize, tensors),
        "ours: decode": (lambda data: decode(data, "benchmark"), jpegs),
        "ours: of it simplejpeg": (simplejpeg.decode_jpeg, jpegs),
        "ours: resize and crop, exact": (exact.pixels, images),
        "ours: resize and crop, fast": (fast.pixels, images),
        "ours: to a normalised tensor": (lambda each: exact.normalised([each]), pixels),
    }
    best = {}
    for name, (step, inputs) in steps.items():
        seconds = []
        for _ in range(turns):
            spent = cpu_seconds(lambda step=step, inputs=inputs: [step(each) for each in inputs])
            seconds.append(spent)
        best[name] = 1000 * min(seconds) / len(inputs)
    return best


def measure_parity(transform: Any, source: Path | None, count: int) -> Result:
    """Differences from open_clip's transform, in levels of 255 and in cosines, over all SHAPES."""
    import open_clip
    import torch
    import torch.nn.functional as F

    from clipmill.filters.clip.model import Preprocess

    ways = {"exact": Preprocess(transform), "fast": Preprocess(transform, fast=True)}
    images = []
    for number, image in enumerate(images_of(source, count)):
        size = SHAPES[number % len(SHAPES)]
        images += [image, image.resize(size, Image.Resampling.BICUBIC)]
    *steps, _, _ = transform.transforms
    expected = []
    for image in images:
        for step in steps:
            image = step(image)
        expected.append(np.asarray(image))
    torch.manual_seed(0)
    visual = open_clip.create_model(MODEL, load_weights=False).visual.eval()

    def embedded(pixels: Sequence[Any]) -> Any:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(pixels), 16):
                batch = ways["exact"].normalised(pixels[start : start + 16])
                parts.append(F.normalize(visual(batch), dim=-1))
        return torch.cat(parts)

    reference = embedded(expected)
    parity: Result = {"images": len(images)}
    for name, preprocess in ways.items():
        given = [preprocess.pixels(image) for image in images]
        levels = [np.abs(a.astype(int) - b).ravel() for a, b in zip(given, expected, strict=True)]
        cosines = (embedded(given) * reference).sum(-1)
        parity[name] = {
            "largest_level": max(int(each.max()) for each in levels),
            "mean_level": float(np.mean([each.mean() for each in levels])),
            "share_of_values": float(np.mean([(each > 0).mean() for each in levels])),
            "largest_cosine_distance": max(0.0, float((1 - cosines).max())),
        }
    return parity


# --- a pass over tars -----------------------------------------------------------------------------


def worker_of(pool: Path, model: Path, kind: str = "clip_score") -> Any:
    """A worker of pipeline.scoring with one filter, loaded."""
    from clipmill.filters import WorkerSpec
    from clipmill.pipeline.pool.lease import PoolWriter
    from clipmill.pipeline.scoring.worker import ScoredSet, ScoreJob, ScoreWorker

    options = {"model": f"local-dir:{model}", "device": "cpu", "precision": "fp32"}
    scored = ScoredSet(filter=WorkerSpec(name=kind, kind=kind, options=options, texts={}))
    return ScoreWorker(ScoreJob(out=PoolWriter(str(pool)), sets={f"{kind}@bench": scored}))


def run_pass(worker: Any) -> int:
    """Score every shard; the number of rows scored."""
    from clipmill.manifests.commits import read_commits
    from clipmill.pipeline.executor.tickets import Ticket

    name = next(iter(worker.filters))
    rows = 0
    for shard in read_commits(worker.out.pool).names():
        rows += worker(Ticket(id=shard, group=shard, payload=(name,))).rows
    return rows


def cut_tokens(model: Any, captions: Sequence[str]) -> list[Any]:
    """Tokens of captions by their context, as a pass runs them: without most of the padding."""
    from clipmill.filters.clip import model as text_tower

    tokens_BT = model.tokenizer(list(captions))
    contexts_B = text_tower.contexts(model.network, tokens_BT)
    groups = []
    for context in np.unique(contexts_B):
        groups.append(tokens_BT[np.flatnonzero(contexts_B == context), :context])
    return groups


def measure_pass(work: Path, source: Path | None, count: int, turns: int) -> Result:
    import torch

    from clipmill.filters.clip import model as text_tower

    jpegs = jpegs_of(source, count)
    pool = build_pool(work, jpegs, len(jpegs))
    worker = worker_of(pool, random_model(work / "model", large_config()))
    model = next(iter(worker.filters.values())).filter.loaded
    captions = [f"a photo of a thing that has the number {row}" for row in range(len(jpegs))]
    pixels = [np.zeros((SIZE, SIZE, 3), np.uint8)] * len(jpegs)
    batches = []
    for start in range(0, len(jpegs), 256):
        rows = slice(start, start + 256)
        tensor = model.preprocess.normalised(pixels[rows])
        batches.append((tensor, cut_tokens(model, captions[rows])))

    def tensors() -> None:
        with torch.inference_mode():
            for images, tokens in batches:
                model.network.encode_image(images)
                for tokens_BT in tokens:
                    text_tower.encode_text(model.network, tokens_BT)

    seconds: dict[str, list[float]] = {"tensors": [], "pass": []}
    for _ in range(turns):
        seconds["tensors"].append(cpu_seconds(tensors))
        model.texts.clear()
        scores = worker.layout.score_set(next(iter(worker.filters)))
        shutil.rmtree(scores, ignore_errors=True)
        started = time.process_time()
        rows = run_pass(worker)
        seconds["pass"].append(time.process_time() - started)
        assert rows == len(jpegs), f"{rows} of {len(jpegs)} rows have a score"
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "images": len(jpegs),
        "model": MODEL,
        "cpu_s": best,
        "turns": seconds,
        "share": best["tensors"] / best["pass"],
        "images_per_cpu_s": {name: len(jpegs) / value for name, value in best.items()},
    }


# --- memory ---------------------------------------------------------------------------------------


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_memory(work: Path, source: Path | None, rows: int) -> Result:
    """The resident size at ten moments of a pass over `rows` images."""
    pool = build_pool(work, jpegs_of(source, 64), rows)
    worker = worker_of(pool, random_model(work / "model", TINY))
    before, samples, stop = resident_mib(), [], threading.Event()

    def sample() -> None:
        while not stop.wait(0.2):
            samples.append(resident_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        spent = cpu_seconds(lambda: run_pass(worker))
    finally:
        stop.set()
        thread.join()
    tenths = np.array_split(np.array(samples), 10)
    return {
        "images": rows,
        "cpu_s": spent,
        "before_mib": before,
        "largest_mib_by_tenth": [round(float(each.max())) for each in tenths if each.size],
    }


# --- the run --------------------------------------------------------------------------------------


def machine() -> Result:
    import torch
    from PIL import __version__ as pillow

    return {
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": pillow,
        "load": round(os.getloadavg()[0], 1),
    }


def bars_of(results: Mapping[str, Any]) -> dict[str, float]:
    """The figures that have a bar, as far as they are measured."""
    figures = {}
    if "pass" in results:
        figures["pass / tensors"] = results["pass"]["share"]
    if "preprocess" in results:
        cost = results["preprocess"]["ms"]
        figures["preprocess, exact"] = cost["open_clip"] / cost["exact"]
        figures["preprocess, fast"] = cost["open_clip"] / cost["fast"]
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=folder_option,
        metavar="FOLDER",
        help="photographs, JPEG (default: drawn ones)",
    )
    parser.add_argument("--part", choices=("preprocess", "pass", "memory"), help="default: all")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rows", type=int, default=10_000, help="of the part memory")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", metavar="FILE", help="write the figures here, as JSON")
    args = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    source = args.data
    results: Result = {}
    if args.out and os.path.exists(args.out):
        results = json.loads(Path(args.out).read_text())
    for part in [args.part] if args.part else ["preprocess", "pass", "memory"]:
        with tempfile.TemporaryDirectory() as work:
            if part == "preprocess":
                results[part] = measure_preprocess(source, args.images, args.turns)
            elif part == "pass":
                results[part] = measure_pass(Path(work), source, args.images, args.turns)
            else:
                results[part] = measure_memory(Path(work), source, args.rows)
        results[part]["machine"] = machine()
        if args.out:
            disk.write_json(args.out, results)
    for name, figure in bars_of(results).items():
        print(f"{name:20} {figure:9.2f}   goal {BARS[name]:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
