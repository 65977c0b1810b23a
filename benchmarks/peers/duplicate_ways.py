#!/usr/bin/env python3
"""One way to hash images or to search among hashes, in a process of its own, for `make bench`.

example: python benchmarks/peers/duplicate_ways.py ours hash PATHS.json
         python benchmarks/peers/duplicate_ways.py imagededup search 10000
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from PIL import Image

from benchmarks.filtering.duplicates import drawn_column
from clipmill.filters.near_hashes import collapse, near_labels
from clipmill.manifests.hashes import as_words, phash

RADIUS = 10  # imagededup's default


def cpu_s() -> float:
    """Seconds of the processor, of this process and of its children that have ended."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in of)


def hash_images(way: str, paths: list[str]) -> float:
    """CPU seconds for the hashes of some JPEG files."""
    if way == "imagededup":
        from imagededup.methods import PHash

        hasher = PHash(verbose=False)
        hasher.encode_image(image_file=paths[0])
        started = cpu_s()
        for path in paths:
            hasher.encode_image(image_file=path)
        return cpu_s() - started
    phash(Image.open(paths[0]))
    started = cpu_s()
    for path in paths:
        with Image.open(path) as image:
            phash(image.convert("RGB"))
    return cpu_s() - started


def search(way: str, rows: int) -> float:
    """CPU seconds to find all pairs within RADIUS among drawn hashes."""
    column = drawn_column(64, RADIUS, rows, 0.0)
    if way == "imagededup":
        from imagededup.methods import PHash

        numbers = as_words(column)[:, 0].tolist()
        encoded = {f"{number}": f"{value:016x}" for number, value in enumerate(numbers)}
        started = cpu_s()
        PHash(verbose=False).find_duplicates(
            encoding_map=encoded, max_distance_threshold=RADIUS, num_dist_workers=0
        )
        return cpu_s() - started
    collapse(column.slice(0, 100), lambda values: near_labels(as_words(values), RADIUS))
    started = cpu_s()
    collapse(column, lambda values: near_labels(as_words(values), RADIUS))
    return cpu_s() - started


def main(way: str, step: str, argument: str) -> None:
    if step == "hash":
        spent = hash_images(way, json.loads(Path(argument).read_text()))
    else:
        spent = search(way, int(argument))
    print(json.dumps({"cpu_s": spent}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
