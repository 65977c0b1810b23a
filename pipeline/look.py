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

from pipeline import pool_page

OUT = "pool.html"
EXAMPLE = """example:
  python pipeline/look.py out/pool
  python pipeline/look.py out/pool --view basic --out basic.html
  python pipeline/look.py out/pool --serve

"""
EXIT_STATUS = console.exit_help({0: "the page is written, or the server was stopped"})


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/look.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL of a pool; it may be under construction")
    parser.add_argument("--view", metavar="NAME", help="only this view (default: all)")
    parser.add_argument("--out", metavar="FILE", help=f"the HTML file (default: {OUT})")
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: look(args))


def look(args: argparse.Namespace) -> int:
    """Write the page or serve it; the exit status."""
    survey = pool_page.survey_pool(args.pool, args.view)
    page = pool_page.render(survey, pool_page.page_data(survey, pool_page.Bounds()))
    path = Path(args.out or OUT)
    path.write_text(page)
    if args.json:
        print(json.dumps({"file": str(path), "bytes": len(page.encode())}))
    else:
        print(f"{path}: {len(page.encode()) / 1e6:.3g} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
