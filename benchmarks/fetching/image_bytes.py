#!/usr/bin/env python3
"""Bytes of an image in a pool, by image size: a folder of photographs as `fetch` stores them.

example: python benchmarks/fetching/image_bytes.py --images photographs/

The images are encoded with the settings of the recipes (JPEG of quality 95, the shorter side at
most the image size, smaller ones as they come). A tar adds a header of 512 bytes and pads to 512.
clipmill size reads the result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from benchmarks.fetching.fetch_programs import PICTURE
from manifests.schema import Fetch
from pipeline.images.header import RejectedImage
from pipeline.images.transform import check_and_resize

SIZES = (224, 256, 384)  # photographs that are smaller would be stored as they come
BLOCK = 512
RESULT = ROOT / "train" / "sizing" / "image_bytes.json"


def member_bytes(size: int) -> int:
    """Bytes of a file in a tar: its header, and its content in whole blocks."""
    return BLOCK + -(-size // BLOCK) * BLOCK


def measure(files: list[Path]) -> dict[str, Any]:
    """Mean and deviation of the stored bytes, by image size."""
    bodies = [path.read_bytes() for path in files]
    sizes: dict[str, dict[str, float]] = {}
    rejected = 0
    for size in SIZES:
        settings = Fetch(**{**PICTURE, "image_size": size})
        stored = []
        for body in bodies:
            try:
                stored.append(member_bytes(len(check_and_resize(body, settings).data)))
            except RejectedImage:
                rejected += size == SIZES[0]
        sizes[str(size)] = {"mean": statistics.mean(stored), "sd": statistics.stdev(stored)}
    return {
        "images": len(bodies) - rejected,
        "rejected": rejected,
        "downloaded_bytes": statistics.mean(len(body) for body in bodies),
        "stored_bytes": sizes,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--title", default="photographs", help="what they are, for the result")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    files = sorted(path for path in args.images.iterdir() if path.suffix in (".jpg", ".jpeg"))
    if len(files) < 2:
        parser.error(f"{args.images} has {len(files)} JPEGs; give a folder with more")
    result = {
        "command": "python benchmarks/fetching/image_bytes.py --images DIR",
        "date": datetime.date.today().isoformat(),
        "machine": {"kind": platform.machine(), "cores": os.cpu_count()},
        "title": args.title,
        "settings": PICTURE,
        **measure(files),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["stored_bytes"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
