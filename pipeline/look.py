#!/usr/bin/env python3
"""A pool as a page to look at: what became of its links, what each rule of each view does, a
threshold to move over any column of numbers, and the images. One HTML file, or a small server.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # The checkout, not pipeline/, whose file names could shadow other modules
    sys.path[0] = str(ROOT)

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()

import argparse
import json

from manifests import disk
from manifests.web_page import MARK
from pipeline import pool_page

OUT = "pool.html"
# Rows above which the page is served by default. At a million rows it takes 8 s of CPU and 0.9 GiB
# (docs/look.md), twice as much here; beyond that a file's 400 images say little.
FILE_ROWS = 2_000_000
IMAGES = 400
MOST_IMAGES = 5_000
MEGABYTES = 6
EXAMPLE = """example:
  python pipeline/look.py out/pool
  python pipeline/look.py out/pool --view basic --out basic.html
  python pipeline/look.py out/pool --serve 8080

"""
EXIT_STATUS = console.exit_help({0: "the page is written"})


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/look.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL of a pool; it may be under construction")
    parser.add_argument("--view", metavar="NAME", help="only this view (default: all)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out",
        metavar="FILE.html",
        help=f"write one file that opens from disk (default: {OUT} for a pool of at most "
        f"{FILE_ROWS:,} rows)",
    )
    where.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=0,
        metavar="PORT",
        help="answer on 127.0.0.1 until Ctrl-C (default port: a free one); the page then has all "
        "images and searches all captions",
    )
    parser.add_argument(
        "--images",
        type=int,
        default=IMAGES,
        help=f"images of the file, of at most 96 pixels; at most {MOST_IMAGES:,} (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=float(MEGABYTES),
        help="of all images of the file together (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: look(args))


def look(args: argparse.Namespace) -> int:
    """Write the page or serve it; the exit status."""
    check(args)
    if args.serve is None:
        disk.check_replaceable(args.out or OUT, MARK.encode(), "--out")
    survey = pool_page.survey_pool(args.pool, args.view)
    is_large = survey.counts.fetch.attempted > FILE_ROWS
    if args.serve is not None or (args.out is None and is_large):
        return serve(survey, args)
    bounds = pool_page.Bounds(images=args.images, image_bytes=int(args.megabytes * 2**20))
    page = pool_page.render(survey, pool_page.page_data(survey, bounds))
    path = Path(args.out or OUT)
    with disk.naming(path):
        path.write_text(page, encoding="utf-8")
    size = path.stat().st_size
    if args.json:
        print(json.dumps({"file": str(path), "bytes": size}))
    else:
        print(f"{path}: {size / 1e6:.3g} MB; open it in a browser")
    return 0


def check(args: argparse.Namespace) -> None:
    """ValueError for options out of range, before anything is read."""
    if not 0 <= args.images <= MOST_IMAGES:
        raise ValueError(f"--images is {args.images}; it must lie in 0..{MOST_IMAGES}")
    if not 0 <= args.megabytes <= 1000:
        raise ValueError(f"--megabytes is {args.megabytes:g}; it must lie in 0..1000")
    if args.serve is not None and not 0 <= args.serve <= 65_535:
        raise ValueError(f"--serve is {args.serve}; a port lies in 0..65535")


def serve(survey: pool_page.Survey, args: argparse.Namespace) -> int:
    """Answer until the process is stopped."""
    answers = pool_page.Answers(survey)
    data = pool_page.page_data(survey, similar=answers.alike is not None)
    with pool_page.make_server(answers, pool_page.render(survey, data), args.serve or 0) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        text = json.dumps({"url": url}) if args.json else f"{url} shows the pool until Ctrl-C"
        print(text, flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    console.end_process(main)
