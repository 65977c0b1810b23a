#!/usr/bin/env python3
"""Says what became of every row of a pool: the books of each stage, whether each file is whole, one row's history."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(
        ROOT
    )  # the checkout, not pipeline/, whose file names could shadow other modules

from pipeline import accounting

EXAMPLE = """example:
  python pipeline/audit.py out/pool
  python pipeline/audit.py out/pool --verify --json
  python pipeline/audit.py out/pool --explain 0123456789abcdef0123456789abcdef
"""


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/audit.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL that build.py filled")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--verify",
        action="store_true",
        help="read every file: hashes, places of members, alignment",
    )
    what.add_argument("--explain", metavar="UID", help="the whole history of one row")
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    try:
        if args.explain:
            found = accounting.explain_row(args.pool, args.explain)
            lines, wrong = list(accounting.explain_lines(found)), False
        else:
            damaged = accounting.verify(args.pool) if args.verify else []
            found = {**accounting.count_if_readable(args.pool, damaged), "damaged": damaged}
            lines = (
                [*accounting.count_lines(found), *(f"WRONG   {line}" for line in damaged)]
                if "fetch" in found
                else damaged
            )
            wrong = bool(damaged or found["problems"] or not found["complete"])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    if not args.explain:
        print(accounting.conclusion(found, args.verify))
    if args.json:
        print(json.dumps(found, default=str, sort_keys=True, ensure_ascii=False))
    return 3 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
