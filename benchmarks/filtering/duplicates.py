#!/usr/bin/env python3
"""How well near-duplicates are found, and what a search over a million hashes costs.

example:
  python benchmarks/filtering/duplicates.py quality PHOTOGRAPHS   # a folder of JPEG files
  python benchmarks/filtering/duplicates.py search
  python benchmarks/filtering/duplicates.py peer PHOTOGRAPHS      # where imagededup is

`quality` makes copies of each photograph in ten ways and looks for the original of each copy. The
radii were fixed before: PDQ's published 31 of 256 bits, 6 of 64 bits as the filter `picture` has
always said, and 0 and 10 of 64 bits as other programs have.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw, ImageOps

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.photographs import folder_option, paths_of
from clipmill.filters.near_hashes import collapse, near_labels
from clipmill.manifests import disk
from clipmill.manifests.hashes import PDQ_QUALITY, as_words, distances, near_pieces, pdq, phash

RESULT = ROOT / "benchmarks" / "results" / "duplicates.json"
BAR = 0.95  # precision and recall of copies of another quality or size


# --- copies ---------------------------------------------------------------------------------------


def _through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=quality)
    return Image.open(sink).convert("RGB")


def _resized(image: Image.Image, share: float) -> Image.Image:
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    return image.resize(size, Image.Resampling.BICUBIC)


def _cropped(image: Image.Image, share: float) -> Image.Image:
    x, y = round(image.width * share / 2), round(image.height * share / 2)
    return image.crop((x, y, image.width - x, image.height - y))


def _with_text(image: Image.Image) -> Image.Image:
    copy = image.copy()
    size = max(12, image.height // 12)
    corner = (image.width // 20, image.height - 2 * size)
    ImageDraw.Draw(copy).text(
        corner, "SALE 50 % - shop.example", fill=(255, 255, 255), font_size=size
    )
    return copy


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 90": lambda image: _through_jpeg(image, 90),
    "JPEG quality 50": lambda image: _through_jpeg(image, 50),
    "JPEG quality 20": lambda image: _through_jpeg(image, 20),
    "size 0.75": lambda image: _through_jpeg(_resized(image, 0.75), 90),
    "size 0.5": lambda image: _through_jpeg(_resized(image, 0.5), 90),
    "5 % cropped": lambda image: _through_jpeg(_cropped(image, 0.05), 90),
    "10 % cropped": lambda image: _through_jpeg(_cropped(image, 0.10), 90),
    "grey": lambda image: _through_jpeg(image.convert("L").convert("RGB"), 90),
    "mirrored": lambda image: _through_jpeg(ImageOps.mirror(image), 90),
    "border of 5 %": lambda image: _through_jpeg(
        ImageOps.expand(image, max(1, image.width // 20), "white"), 90
    ),
    "text on it": lambda image: _through_jpeg(_with_text(image), 90),
}
BARRED = tuple(name for name in COPIES if name.startswith(("JPEG", "size")))
METHODS = {  # name: (hash, radius)
    "phash, equal": ("phash", 0),
    "phash, 6 bits": ("phash", 6),
    "phash, 10 bits": ("phash", 10),
    "pdq, 31 bits": ("pdq", 31),
}


def _hashes_of(images: Iterator[Image.Image]) -> dict[str, Any]:
    """The hashes of some images: words of phash and pdq, and which have a usable pdq."""
    of_phash, of_pdq, clear = [], [], []
    for image in images:
        value, quality = pdq(image)
        of_phash.append(phash(image))
        of_pdq.append(value)
        clear.append(quality >= PDQ_QUALITY)
    return {
        "phash": as_words(pa.array(of_phash, pa.int64())),
        "pdq": as_words(pa.array(of_pdq, pa.binary(32))),
        "clear": np.array(clear),
    }


def precision_and_recall(
    originals: Any, copies: Any, radius: int, usable: Any, of_copies: Any
) -> tuple[float, float]:
    """Row n of the copies shows row n of the originals. Rows that are not usable match nothing."""
    near_pairs, right = 0, 0
    for number, copy in enumerate(copies):
        near = distances(originals, copy[None]) <= radius
        near &= usable & of_copies[number]
        near_pairs += int(near.sum())
        right += int(near[number])
    return right / max(1, near_pairs), right / len(copies)


def quality(folder: str) -> dict[str, Any]:
    """Precision and recall of each kind of copy and each method."""
    paths = paths_of(folder)
    photographs = [path.read_bytes() for path in paths]

    def images() -> Iterator[Image.Image]:
        for data in photographs:
            yield Image.open(io.BytesIO(data)).convert("RGB")

    originals = _hashes_of(images())
    all_clear = np.ones(len(paths), np.bool_)
    kinds: dict[str, dict[str, list[float]]] = {}
    for kind, change in COPIES.items():
        copies = _hashes_of(change(image) for image in images())
        kinds[kind] = {}
        for method, (name, radius) in METHODS.items():
            usable = (originals["clear"], copies["clear"]) if name == "pdq" else (all_clear,) * 2
            kinds[kind][method] = [
                round(value, 4)
                for value in precision_and_recall(originals[name], copies[name], radius, *usable)
            ]
        print(kind, kinds[kind], flush=True)
    among = {}
    for method, (name, radius) in METHODS.items():
        pairs = {
            (min(i, j), max(i, j))
            for first, second in near_pieces(originals[name], radius)
            for i, j in zip(first.tolist(), second.tolist(), strict=True)
        }
        among[method] = [[paths[i].name, paths[j].name] for i, j in sorted(pairs)]
    return {
        "photographs": len(paths),
        "without_quality": int((~originals["clear"]).sum()),
        "kinds": kinds,
        "near_originals": among,
    }


# --- search ---------------------------------------------------------------------------------------

SEARCHES: dict[str, tuple[int, int, int, float | str]] = {
    # name: (bits, radius, rows, share of rows with one and the same hash, or how many bits of one
    # template are flipped for a row)
    "256 bits, radius 31": (256, 31, 1_000_000, 0.0),
    "64 bits, radius 6": (64, 6, 1_000_000, 0.0),
    "64 bits, radius 10": (64, 10, 1_000_000, 0.0),
    "256 bits, radius 31, half of the rows equal": (256, 31, 1_000_000, 0.5),
    "256 bits, radius 31, drawn": (256, 31, 50_000, 0.0),
    "256 bits, radius 31, within 12 bits of one template": (256, 31, 50_000, "12"),
    "256 bits, radius 31, within 26 bits of one template": (256, 31, 50_000, "26"),
    "256 bits, radius 31, within 40 bits of one template": (256, 31, 50_000, "40"),
}


def drawn_column(bits: int, radius: int, rows: int, equal: float | str) -> pa.Array:
    """Drawn hashes; a tenth of them are copies of others within the radius. Or those of a
    template.
    """
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, (rows, bits // 64), dtype=np.uint64)

    def flip(copies: Any, times: int) -> None:
        for _ in range(times):
            bit = random.integers(0, bits, len(copies))
            hashes[copies, bit // 64] ^= np.uint64(1) << (bit % 64).astype(np.uint64)

    if isinstance(equal, str):
        hashes[:] = hashes[0]
        flip(np.arange(rows), int(equal))
    else:
        copies, sources = random.permutation(rows)[: rows // 5].reshape(2, -1)
        hashes[copies] = hashes[sources]
        flip(copies, radius)
        hashes[: int(equal * rows)] = hashes[0]
    kind = pa.binary(bits // 8)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(hashes.tobytes())])


def search_once(bits: int, radius: int, rows: int, equal: float | str) -> dict[str, float]:
    """Groups of near hashes as the filter `duplicate` finds them, in this process."""
    column = drawn_column(bits, radius, rows, equal)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    labels = collapse(column, lambda values: near_labels(as_words(values), radius))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "rows": rows,
        "groups": len(np.unique(labels)),
        "cpu_seconds": round(cpu, 1 if cpu >= 1 else 2),
        "wall_seconds": round(wall, 1 if wall >= 1 else 2),
        "more_megabytes": round(
            (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        ),
        "load": round(os.getloadavg()[0], 1),
    }


def search() -> dict[str, Any]:
    """Each search in a process of its own, so that its memory is its own."""
    results = {}
    for name in SEARCHES:
        command = [sys.executable, __file__, "search", "--one", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[name] = json.loads(output)
        print(name, results[name], flush=True)
    return results


# --- imagededup -----------------------------------------------------------------------------------


def peer(folder: str) -> dict[str, Any]:
    """imagededup's PHash at its default radius of 10: the same copies, and the time of a search."""
    from imagededup.methods import PHash

    hasher = PHash(verbose=False)
    photographs = [path.read_bytes() for path in paths_of(folder)]

    def encode(change: Callable[[Image.Image], Image.Image]) -> list[int]:
        hashes = []
        for data in photographs:
            image = change(Image.open(io.BytesIO(data)).convert("RGB"))
            hashes.append(int(hasher.encode_image(image_array=np.asarray(image)), 16))
        return hashes

    def words(hashes: list[int]) -> Any:
        return np.array(hashes, np.uint64)[:, None]

    originals = words(encode(lambda image: image))
    usable = np.ones(len(photographs), np.bool_)
    kinds = {}
    for kind, change in COPIES.items():
        values = precision_and_recall(originals, words(encode(change)), 10, usable, usable)
        kinds[kind] = [round(value, 4) for value in values]
        print(kind, kinds[kind], flush=True)
    return {"kinds": kinds, "searches": [_peer_search(hasher, rows) for rows in PEER_ROWS]}


PEER_ROWS = (10_000,)


def _peer_search(hasher: Any, rows: int) -> dict[str, float]:
    column = drawn_column(64, 10, rows, 0.0)
    numbers = as_words(column)[:, 0].tolist()
    encoded = {f"{number}": f"{value:016x}" for number, value in enumerate(numbers)}
    cpu, children = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    hasher.find_duplicates(encoding_map=encoded, max_distance_threshold=10, num_dist_workers=0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_children = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    theirs = {
        "rows": rows,
        "cpu_seconds": round(time.process_time() - cpu + of_children, 1),
        "wall_seconds": round(time.perf_counter() - wall, 1),
    }
    cpu = time.process_time()
    collapse(column, lambda values: near_labels(as_words(values), 10))
    result = {**theirs, "ours_cpu_seconds": round(time.process_time() - cpu, 2)}
    print(result, flush=True)
    return result


# --- what is shown --------------------------------------------------------------------------------


def table_lines(results: dict[str, Any]) -> list[str]:
    """The tables of docs/measured.md, from the figures."""
    methods = [*METHODS, "imagededup, 10 bits"]
    lines = [
        f"| copy | {' | '.join(methods)} |",
        "|---|" + "---|" * len(methods),
    ]
    for kind, of_kind in results["quality"]["kinds"].items():
        cells = [of_kind[method] for method in METHODS]
        cells.append(results["peer"]["kinds"][kind])
        shown = [f"{precision:.3f} / {recall:.3f}" for precision, recall in cells]
        lines.append(f"| {kind} | {' | '.join(shown)} |")
    lines += ["", "| search | groups | CPU, s | wall, s | memory, MB |", "|---|---|---|---|---|"]
    for name, row in results["search"].items():
        lines.append(
            f"| {row['rows']:,} hashes, {name} | {row['groups']:,} | {row['cpu_seconds']} | "
            f"{row['wall_seconds']} | {row['more_megabytes']} |"
        )
    lines += [
        "",
        "| hashes of 64 bits, radius 10 | imagededup, CPU s | here, CPU s |",
        "|---|---|---|",
    ]
    for row in results["peer"]["searches"]:
        lines.append(f"| {row['rows']:,} | {row['cpu_seconds']} | {row['ours_cpu_seconds']} |")
    return lines


def below_the_bar(results: dict[str, Any], method: str) -> list[str]:
    """Kinds of copies of another quality or size with a precision or recall below BAR."""
    kinds = results["quality"]["kinds"]
    return [kind for kind in BARRED if min(kinds[kind][method]) < BAR]


def keep(section: str, figures: Any) -> None:
    """Write one section of the result file."""
    results = disk.read_json(RESULT) if RESULT.exists() else {}
    results[section] = figures
    results.setdefault("commands", {})[section] = (
        f"python benchmarks/filtering/duplicates.py {section}"
    )
    disk.write_bytes(str(RESULT), (json.dumps(results, indent=1) + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("quality", "peer"):
        commands.add_parser(name).add_argument("folder", type=folder_option)
    commands.add_parser("search").add_argument("--one", choices=list(SEARCHES))
    args = parser.parse_args(argv)
    if args.command == "search" and args.one:
        print(json.dumps(search_once(*SEARCHES[args.one])))
    elif args.command == "search":
        keep("search", search())
    elif args.command == "quality":
        keep("quality", quality(args.folder))
    else:
        keep("peer", peer(args.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
