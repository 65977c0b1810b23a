#!/usr/bin/env python3
"""A small web on loopback, for the demo and the tests: `write` makes it, `serve` answers for its
hosts.

Its pages are a WAT file as Common Crawl writes them, its images are drawn when they are requested,
and truth.parquet has what is wrong with each pair.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    # The checkout, not pipeline/, whose file names could shadow other modules.
    sys.path[0] = str(ROOT)

import pyarrow as pa

from manifests import console, disk
from manifests.schema import Miniweb
from pipeline.miniweb import wat_file, web_plan
from pipeline.miniweb.scenes import CLASSES, DRAW_VERSION, draw, scene
from pipeline.miniweb.server import load, running, serve, start, stop
from pipeline.miniweb.wat_file import Page
from pipeline.miniweb.web_plan import CDN, Item

__all__ = ["main", "running", "start", "stop", "write"]

EXAMPLE = """example:
  python pipeline/miniweb/small_web.py write --out out/web --pairs 600 --noise 0.4 --seed 1
  python pipeline/miniweb/small_web.py serve --out out/web --port 8700
  curl --connect-to ::127.0.0.1:8700 http://gallery.miniweb.test/_stats
"""
OBJECTS_PER_CLASS = 16  # × 64 classes: a standard error of 1.5 points at 60 %
RETRIEVAL = 256  # images, each with a caption of its own
FULL_SIZE = 3000  # pairs; the held-out sets of a smaller web are smaller in proportion
TRUTH = pa.schema(
    [
        ("uid", pa.string()),
        ("url", pa.string()),
        ("caption", pa.string()),  # as the page has it
        ("true_caption", pa.string()),  # of what the image shows
        ("page_url", pa.string()),
        ("kind", pa.string()),
        ("right", pa.bool_()),  # the caption describes the image
        ("language", pa.string()),
        ("shape", pa.string()),
        ("colour", pa.string()),
        ("count", pa.int32()),
        ("texture", pa.string()),
        ("background", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("original", pa.string()),  # URL of the image that a near duplicate repeats
    ]
)
logger = logging.getLogger("pipeline.miniweb.small_web")


def write(out: str | Path, settings: Miniweb) -> dict[str, Any]:
    """Leave a web in `out`: two WATs, truth.parquet, pairs.parquet, eval/ and site.json. Returns
    what it holds.

    Everything follows from the settings.
    """
    started = time.monotonic()
    items, trusted = web_plan.plan(settings), web_plan.trusted(settings)
    pages = wat_file.pages_of(items, settings.seed)
    trusted_pages = wat_file.pages_of(trusted, settings.seed)
    disk.write_bytes(disk.join(out, "crawl.warc.wat.gz"), wat_file.wat(pages, settings.seed))
    disk.write_bytes(
        disk.join(out, "trusted.warc.wat.gz"), wat_file.wat(trusted_pages, settings.seed)
    )
    rows = [_row(page, item) for page in pages for item in page.items]
    truth = pa.Table.from_pylist(rows, schema=TRUTH)
    disk.write_parquet(disk.join(out, "truth.parquet"), truth)
    pairs = truth.select(["uid", "url", "caption", "page_url"]).rename_columns(
        ["uid", "url", "text", "page_url"]
    )
    disk.write_parquet(disk.join(out, "pairs.parquet"), pairs)
    logger.info(
        "%d pairs on %d pages, %d trusted ones on %d",
        len(items),
        len(pages),
        len(trusted),
        len(trusted_pages),
    )
    share = min(settings.pairs / FULL_SIZE, 1.0)
    held_out = {
        "objects": _write_objects(out, settings.seed, max(1, round(share * OBJECTS_PER_CLASS))),
        "retrieval": _write_retrieval(out, settings.seed, max(8, round(share * RETRIEVAL))),
    }
    site = {
        "version": DRAW_VERSION,
        "settings": settings,
        "pictures": _images([*items, *trusted]),
    }
    disk.write_bytes(
        disk.join(out, "site.json"), json.dumps(disk.to_plain(site), separators=(",", ":")).encode()
    )
    return {
        "pairs": len(items),
        "pages": len(pages),
        "trusted_pairs": len(trusted),
        "trusted_pages": len(trusted_pages),
        "kinds": dict(sorted(Counter(item.kind for item in items).items())),
        "right": sum(item.right for item in items),
        "eval": held_out,
        "seconds": round(time.monotonic() - started, 2),
    }


def _row(page: Page, item: Item) -> dict[str, Any]:
    """One row of truth.parquet, in document order."""
    shown = item.scene
    return {
        "uid": disk.uid_of(item.url, item.caption),
        "url": item.url,
        "caption": item.caption,
        "true_caption": item.true_caption,
        "page_url": page.url,
        "kind": item.kind,
        "right": item.right,
        "language": item.language,
        "shape": shown.shape,
        "colour": shown.colour,
        "count": shown.count,
        "texture": shown.texture,
        "background": shown.background,
        "width": shown.width,
        "height": shown.height,
        "original": item.original,
    }


def _images(items: Iterable[Item]) -> dict[str, dict[str, Any]]:
    """The entry of each host and path; a redirected image has one at its second address too."""
    hosts: dict[str, dict[str, Any]] = {}
    for item in items:
        entry = {
            "kind": item.kind,
            "scene": item.scene,
            "variant": item.variant,
            "painted": item.painted,
        }
        hosts.setdefault(item.host, {})[item.path] = entry
        if item.kind == "redirect":
            hosts.setdefault(CDN, {})[item.path.replace("/go/", "/img/", 1)] = {
                **entry,
                "kind": "clean",
            }
    return hosts


def _write_objects(out: str | Path, seed: int, per_class: int) -> int:
    """Held-out images in folders that are named as a prompt names them: eval/objects/red
    car/00.jpg.
    """
    for number, label in enumerate(CLASSES * per_class):
        name = f"{number // len(CLASSES):02d}.jpg"
        disk.write_bytes(
            disk.join(out, "eval/objects", label, name),
            draw(scene(seed, "objects", number, label=label)),
        )
    return len(CLASSES) * per_class


def _write_retrieval(out: str | Path, seed: int, wanted: int) -> int:
    """Held-out images whose captions, which name everything, all differ:
    eval/retrieval/captions.csv beside them.
    """
    captions: dict[str, str] = {}
    number = 0
    while len(captions) < wanted:
        shown = scene(seed, "retrieval", number)
        number += 1
        text = web_plan.full_caption(shown)
        if text not in captions:
            captions[text] = f"{len(captions):04d}.jpg"
            disk.write_bytes(disk.join(out, "eval/retrieval", captions[text]), draw(shown))
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerows([("file", "caption"), *((file, text) for text, file in captions.items())])
    disk.write_bytes(disk.join(out, "eval/retrieval/captions.csv"), lines.getvalue().encode())
    return len(captions)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="pipeline/miniweb/small_web.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=kind,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser(
        "write", help="make a web in a folder", epilog=EXAMPLE, formatter_class=kind
    )
    writing.add_argument("--out", required=True, help="the folder")
    default = Miniweb()
    writing.add_argument(
        "--pairs", type=int, default=default.pairs, help="of the crawl (default: %(default)s)"
    )
    writing.add_argument(
        "--trusted-pairs",
        type=int,
        default=default.trusted_pairs,
        help="of the trusted host (default: %(default)s)",
    )
    writing.add_argument(
        "--noise",
        type=float,
        default=default.noise,
        help="share of captions that are wrong (default: %(default)s)",
    )
    writing.add_argument(
        "--near-duplicates",
        type=float,
        default=default.near_duplicates,
        help="share of images shown again (default: %(default)s)",
    )
    writing.add_argument(
        "--faults",
        type=float,
        default=default.faults,
        help="share of pairs that cannot simply be fetched (default: %(default)s)",
    )
    writing.add_argument(
        "--seed", type=int, default=default.seed, help="what everything follows from (default: 0)"
    )
    writing.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    serving = verbs.add_parser(
        "serve", help="answer for the hosts of a web", epilog=EXAMPLE, formatter_class=kind
    )
    serving.add_argument("--out", required=True, help="the folder that `write` left")
    serving.add_argument(
        "--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one (default: 0)"
    )
    serving.add_argument("--attached", action="store_true", help="stop when standard input ends")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), stopped="run the command again")


def run(args: argparse.Namespace) -> int:
    """Write or serve, as asked. Returns the exit status."""
    if args.verb == "serve":
        asyncio.run(serve(load(args.out), args.port, attached=args.attached))
        return 0
    settings = Miniweb(
        pairs=args.pairs,
        trusted_pairs=args.trusted_pairs,
        noise=args.noise,
        near_duplicates=args.near_duplicates,
        faults=args.faults,
        seed=args.seed,
    )
    totals = write(args.out, settings)
    logger.info("%s holds a web, made in %.1f s: %s", args.out, totals["seconds"], totals["kinds"])
    if args.json:
        print(json.dumps(totals, sort_keys=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
