#!/usr/bin/env python3
"""Says what became of every row of a pool: the books of each stage, whether each file is whole, one row's history."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(
        ROOT
    )  # the checkout, not pipeline/, whose file names could shadow other modules

from manifests import console
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
        epilog=EXAMPLE + console.EXIT_HELP,
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
    console.start_logging()
    return console.run_command(lambda: explain(args) if args.explain else audit(args))


def explain(args: argparse.Namespace) -> int:
    """Print the history of one row; the exit status."""
    history = accounting.explain_row(args.pool, args.explain)
    print("\n".join(accounting.explain_lines(history)))
    print_json(history, args)
    return 0


def audit(args: argparse.Namespace) -> int:
    """Print the counts of a pool and what is wrong with it; the exit status."""
    damaged = accounting.verify(args.pool) if args.verify else []
    counts = {**accounting.count_if_readable(args.pool, damaged), "damaged": damaged}
    lines = list(damaged)
    if "fetch" in counts:
        lines = [*accounting.count_lines(counts), *(f"WRONG   {line}" for line in damaged)]
    print("\n".join(lines))
    print(accounting.conclusion(counts, args.verify))
    print_json(counts, args)
    wrong = damaged or counts["problems"] or not counts["complete"]
    return console.EXIT_INCOMPLETE if wrong else 0


def print_json(value: Any, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(value, default=str, sort_keys=True, ensure_ascii=False))


if __name__ == "__main__":
    raise SystemExit(main())
