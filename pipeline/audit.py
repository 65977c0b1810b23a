#!/usr/bin/env python3
"""Tell what became of every row of a pool: counts of each stage, damaged files, the history of one row."""

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

from manifests.text import printable
from pipeline import accounting

EXAMPLE = """example:
  python pipeline/audit.py out/pool
  python pipeline/audit.py out/pool --verify --json
  python pipeline/audit.py out/pool --explain 0123456789abcdef0123456789abcdef
  python pipeline/audit.py out/pool --explain https://host.example/dog.jpg
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
        help="read every file too: hashes, offsets of members, alignment of scores and views",
    )
    what.add_argument(
        "--explain",
        metavar="ROW",
        help="the history of one row, by its uid, URL, file name or tar key",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    try:
        if args.explain:
            result = accounting.explain_row(args.pool, args.explain)
            lines, is_fine = accounting.explain_lines(result), True
        else:
            audit = accounting.audit_pool(args.pool, verify_files=args.verify)
            result = accounting.audit_plain(audit)
            lines, is_fine = accounting.audit_lines(audit), audit.is_fine
    except ValueError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    if args.json:
        print(json.dumps(result, default=str, sort_keys=True))
    return 0 if is_fine else 3


if __name__ == "__main__":
    raise SystemExit(main())
