#!/usr/bin/env python3
"""How near stored images are to exact areas, by the size of their originals.

example: python benchmarks/fetching/sizes.py --photographs FOLDER --peer-python PYTHON

Each picture is made at each shorter side of SIDES (Lanczos, JPEG of quality 90), is stored by each
program at 256 pixels and quality 95, and compared with its full decode averaged over exact areas.
The programs are this checkout, another one of --before, and img2dataset of --peer-python. Each set
is measured by itself: photographs on which the kernels were chosen (--photographs), photographs
that were fixed before and not looked at (--second), and drawn pictures with hard edges.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from PIL import Image, ImageDraw

from benchmarks.fetching import fidelity
from benchmarks.fetching.fetch_programs import PICTURE
from benchmarks.photographs import folder_option, paths_of
from clipmill.pipeline.external.img2dataset import QUIET

RESULTS = ROOT / "benchmarks/results/fetch_sizes.json"
SIDES = (300, 350, 400, 450, 512, 600, 700, 850, 1000, 1200, 1500, 1800)
DRAWN_SIDE, DRAWN_COLOURS = 1800, 12
OURS, BEFORE, PEER = "clipmill", "before", "img2dataset"

# --- a program over folders: its arguments are the settings as JSON, then for each side the folder
# of the originals and that of the JPEGs that it stores.

STORE = """
import json, sys
from pathlib import Path
settings, folders = json.loads(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
{prepare}
for source, target in zip(folders[::2], folders[1::2], strict=True):
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(store(path.read_bytes()))
"""
PREPARE = {
    OURS: """
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images.transform import check_and_resize
fetch = Fetch(**settings)
store = lambda body: check_and_resize(body, fetch).data
""",
    PEER: """
import io
from img2dataset.resizer import Resizer
resizer = Resizer(**settings)
def store(body):
    data, *_, error = resizer(io.BytesIO(body))
    assert error is None, error
    return data
""",
}


def drawn(seed: int) -> Image.Image:
    """A picture of flat shapes and thin lines, DRAWN_SIDE pixels high."""
    rng = random.Random(seed)
    size = round(DRAWN_SIDE * rng.uniform(1, 1.5)), DRAWN_SIDE
    colours = [tuple(rng.randrange(256) for _ in range(3)) for _ in range(DRAWN_COLOURS)]
    image = Image.new("RGB", size, rng.choice(colours))
    draw = ImageDraw.Draw(image)
    for _ in range(60):
        points = [(rng.randrange(size[0]), rng.randrange(size[1])) for _ in range(3)]
        (left, right), (top, bottom) = (
            sorted(x for x, _ in points[:2]),
            sorted(y for _, y in points[:2]),
        )
        colour, box = rng.choice(colours), (left, top, right, bottom)
        shape = rng.randrange(4)
        if shape == 0:
            draw.polygon(points, fill=colour)
        elif shape == 1:
            draw.ellipse(box, outline=colour, width=rng.randrange(4, 30))
        elif shape == 2:
            draw.line(points, fill=colour, width=rng.randrange(4, 20))
        else:
            draw.text(points[0], "clipmill " * 3, fill=colour, font_size=rng.randrange(30, 160))
    return image


def originals(photographs: Path | None, count: int) -> Iterator[Image.Image]:
    """RGB pictures: `count` of a folder, evenly over it, or as many drawn ones."""
    if photographs is None:
        yield from (drawn(seed) for seed in range(count))
        return
    paths = paths_of(photographs)
    for path in paths[:: max(1, len(paths) // count)][:count]:
        with Image.open(path) as image:
            yield image.convert("RGB")


def make(photographs: Path | None, count: int, sides: list[int], folder: Path) -> None:
    """folder/SIDE/NNNN.jpg"""
    for side in sides:
        (folder / str(side)).mkdir(parents=True)
    for number, image in enumerate(originals(photographs, count)):
        for side in sides:
            scale = side / min(image.size)
            size = round(image.width * scale), round(image.height * scale)
            resized = image.resize(size, Image.Resampling.LANCZOS)
            resized.save(folder / str(side) / f"{number:04d}.jpg", quality=90)


def programs_of(args: argparse.Namespace) -> dict[str, tuple[str, str, Path | None]]:
    """Interpreter, code and checkout of each program."""
    ours = sys.executable, STORE.format(prepare=PREPARE[OURS])
    programs: dict[str, tuple[str, str, Path | None]] = {OURS: (*ours, ROOT)}
    if args.before is not None:
        programs[BEFORE] = (*ours, args.before.resolve())
    if args.peer_python is not None:
        programs[PEER] = (args.peer_python, STORE.format(prepare=PREPARE[PEER]), None)
    return programs


def measure(
    photographs: Path | None, args: argparse.Namespace, folder: Path
) -> dict[str, dict[str, Any]]:
    """Of a set of pictures: PSNR of each program by shorter side."""
    make(photographs, args.count, args.sides, folder)
    programs = programs_of(args)
    for name, (python, code, root) in programs.items():
        environment = {**os.environ, **QUIET, "PYTHONPATH": str(root or "")}
        folders = [str(folder / f"{side}{end}") for side in args.sides for end in ("", f"-{name}")]
        command = [python, "-c", code, json.dumps(PICTURE), *folders]
        subprocess.run(command, env=environment, cwd=folder, check=True)
    figures = {}
    for side in args.sides:
        pictures = (
            (path, {who: (folder / f"{side}-{who}" / path.name).read_bytes() for who in programs})
            for path in sorted((folder / str(side)).iterdir())
        )
        figures[str(side)] = fidelity.compare(pictures, args.count, PICTURE["image_size"])
    return figures


# --- the table ------------------------------------------------------------------------------------


def markdown(results: dict[str, Any]) -> str:
    """Mean PSNR by set and side, and the change."""
    lines = [
        "| originals | shorter side | now | version before | change | img2dataset | exact areas |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for title, by_side in results["sets"].items():
        for side, figures in by_side.items():
            psnr = {name: value["mean"] for name, value in figures["psnr_db"].items()}
            now, before = psnr[OURS], psnr.get(BEFORE)
            cells = [_db(now), _db(before), "" if before is None else f"{now - before:+.2f}"]
            cells += [_db(psnr.get(PEER)), _db(psnr[fidelity.CEILING])]
            lines.append(f"| {title} | {side} | " + " | ".join(cells) + " |")
    lines.append(
        f"\n{results['count']} pictures of each set; mean PSNR in dB. Measured {results['date']}."
    )
    return "\n".join(lines) + "\n"


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photographs", type=folder_option, help="a folder of JPEGs")
    parser.add_argument("--second", type=folder_option, help="another one")
    parser.add_argument("--before", type=Path, help="a checkout of the version before")
    parser.add_argument("--peer-python", help="an interpreter that has img2dataset")
    parser.add_argument("--count", type=int, default=40, help="pictures of a set")
    parser.add_argument("--sides", nargs="+", type=int, default=list(SIDES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    sets = {"photographs": args.photographs, "second photographs": args.second, "drawn": None}
    results: dict[str, Any] = {"count": args.count, "date": date.today().isoformat(), "sets": {}}
    for title, folder in sets.items():
        if folder is None and title != "drawn":
            continue
        print(title, flush=True)
        with tempfile.TemporaryDirectory(prefix="clipmill-bench-") as name:
            results["sets"][title] = measure(folder, args, Path(name))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
