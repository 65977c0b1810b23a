#!/usr/bin/env python3
"""Tell what became of every row of a pool: counts of each stage, damaged files, the history of one
row.
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
from typing import Any

from manifests import disk
from manifests.text import printable
from pipeline import accounting
from pipeline import lock as dataset_lock
from pipeline.pool import hold_lease
from pipeline.progress import shown_progress

EXAMPLE = """example:
  python pipeline/audit.py out/pool
  python pipeline/audit.py out/pool --verify --json
  python pipeline/audit.py out/pool --verify --engine ray
  python pipeline/audit.py out/pool --explain 0123456789abcdef0123456789abcdef
  python pipeline/audit.py out/pool --explain https://host.example/dog.jpg
  python pipeline/audit.py out/pool --trace 1000
  python pipeline/audit.py out/pool --reindex
  python pipeline/audit.py out/pool --migrate
  python pipeline/audit.py out/pool --repair
  python pipeline/audit.py out/pool --purge domain=host.example --used-by out/runs
  python pipeline/audit.py out/pool --watch
  python pipeline/audit.py out/pool --lock pool.lock.parquet
  python pipeline/audit.py out/pool --same-rows our.lock.parquet their.lock.parquet --view basic

"""

EXIT_STATUS = console.exit_help(
    {
        0: "the pool is complete and nothing is wrong, the row is explained, the index, the lock "
        "or the view is made, the rows are gone, or the command that was watched has ended",
        console.EXIT_INCOMPLETE: "the pool is not complete, a count or a file is wrong, or the "
        "command that was watched failed",
    }
)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/audit.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL that build.py filled")
    add_modes(parser)
    parser.add_argument(
        "--view",
        nargs="+",
        metavar="VIEW",
        help="with --lock: the views to write (default: all); with --same-rows: one view of the "
        "locks, whose rows are taken",
    )
    parser.add_argument(
        "--name",
        metavar="VIEW",
        help="with --same-rows: the name of the new view (default: same_rows, same_rows_VIEW)",
    )
    parser.add_argument(
        "--used-by",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="with --purge: where runs are looked for that used the rows (default: beside POOL)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --purge: count and name what it would remove, and change nothing",
    )
    parser.add_argument(
        "--engine",
        choices=["ray", "inline"],
        help="with --verify and --repair: ray works on all workers of a Ray cluster, inline "
        "(default) in threads of this process",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def add_modes(parser: argparse.ArgumentParser) -> None:
    """The options of which one may be given: what is done with the pool."""
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
    what.add_argument(
        "--trace",
        type=int,
        metavar="N",
        help="follow N stored images, drawn at random, from the tar back to the record of the WAT "
        "or WARC that they were found in, and read it again",
    )
    what.add_argument(
        "--reindex",
        action="store_true",
        help="make the index of the shards anew from their commit records",
    )
    what.add_argument(
        "--migrate",
        action="store_true",
        help="bring a pool of an earlier version into the present form: shards from 3,000 on lie in"
        " folders, the score columns and masks of a thousand share a file",
    )
    what.add_argument(
        "--purge",
        nargs="+",
        metavar="KIND=VALUE",
        help="remove rows for good: url=URL, domain=HOST, sha256=HEX, uid=HEX, or a file of such "
        "lines",
    )
    what.add_argument(
        "--repair",
        action="store_true",
        help="mend what --verify finds: recompute or fetch again only what is damaged",
    )
    what.add_argument(
        "--watch",
        action="store_true",
        help="show what the command does that writes into the pool now, until it ends",
    )
    what.add_argument(
        "--lock",
        metavar="FILE",
        help="write one file (.parquet) from which another lab builds this pool again: rows with "
        "hashes, recipe, views; Croissant metadata beside it",
    )
    what.add_argument(
        "--same-rows",
        nargs="+",
        metavar="LOCK",
        help="make a view of the rows that all these locks and the pool have, byte for byte",
    )


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    if args.watch:
        return console.run_command(lambda: command(args), "the command that was watched goes on")
    return console.run_command(lambda: command(args))


def command(args: argparse.Namespace) -> int:
    """Do what the options ask for; the exit status."""
    if args.used_by and not args.purge:
        raise ValueError("--used-by belongs to --purge; name what to purge")
    if args.dry_run and not args.purge:
        raise ValueError("--dry-run belongs to --purge; name what to purge")
    if args.view and not (args.lock or args.same_rows):
        raise ValueError("--view belongs to --lock and --same-rows")
    if args.name and not args.same_rows:
        raise ValueError("--name belongs to --same-rows")
    if args.engine and not (args.verify or args.repair):
        raise ValueError("--engine belongs to --verify and --repair")
    if args.explain is not None and not args.explain.strip():
        raise ValueError("--explain is empty; give a uid, a URL, a file name or a tar key")
    for is_asked, do in (
        (args.explain is not None, explain),
        (args.trace is not None, trace),
        (args.purge, purge),
        (args.repair, repair),
        (args.watch, watch),
        (args.lock is not None, lock),
        (args.same_rows, same_rows),
    ):
        if is_asked:
            return do(args)
    return mend(args) if args.reindex or args.migrate else audit(args)


def watch(args: argparse.Namespace) -> int:
    """Show what another command does until it ends; the exit status."""
    watched = accounting.watch_pool(args.pool)
    print("\n".join(map(printable, accounting.watched_lines(args.pool, watched))))
    print_json(disk.to_plain(watched), args)
    return 0 if watched.is_fine else console.EXIT_INCOMPLETE


def mend(args: argparse.Namespace) -> int:
    """Make the index anew, or bring the pool into the present form; the exit status."""
    moved = 0
    with hold_lease(args.pool) as lease:
        if args.migrate:
            moved = accounting.migrate(args.pool, lease.check)
        commits = accounting.reindex(args.pool, lease.check)
    if args.migrate:
        print(f"{moved} files moved")
    print(f"{len(commits)} shards indexed")
    print_json({"shards": len(commits), "moved": moved}, args)
    return 0


def repair(args: argparse.Namespace) -> int:
    """Mend what is damaged and say what is left; the exit status."""
    with hold_lease(args.pool) as lease, shown_progress(args.pool):
        result = accounting.repair_pool(
            args.pool, engine=args.engine or "inline", fence=lease.fence
        )
    print("\n".join(map(printable, accounting.repair_lines(result))))
    print_json(disk.to_plain(result), args)
    return console.EXIT_INCOMPLETE if result.left else 0


def purge(args: argparse.Namespace) -> int:
    """Remove rows and name what used them; the exit status."""
    criteria = accounting.read_criteria(args.purge)
    if args.dry_run:
        result = accounting.would_purge(args.pool, criteria, args.used_by)
        print("\n".join(map(printable, accounting.purge_lines(result))))
        print_json(disk.to_plain(result), args)
        return 0
    with hold_lease(args.pool) as lease:
        result = accounting.purge_rows(args.pool, criteria, used_by=args.used_by, fence=lease.fence)
    print("\n".join(map(printable, accounting.purge_lines(result))))
    print_json(disk.to_plain(result), args)
    return 0


def lock(args: argparse.Namespace) -> int:
    """Write the lock of a pool; the exit status."""
    written = dataset_lock.write_lock(args.pool, args.lock, args.view)
    print("\n".join(map(printable, dataset_lock.lock_lines(written))))
    head = disk.to_plain(written.head)
    print_json({name: value for name, value in head.items() if name != "columns"}, args)
    return 0


def same_rows(args: argparse.Namespace) -> int:
    """Make the view of the rows that locks and the pool have in common; the exit status."""
    if len(args.view or []) > 1:
        raise ValueError(f"--same-rows takes one --view, not {len(args.view)}")
    view = args.view[0] if args.view else None
    with hold_lease(args.pool) as lease:
        result = dataset_lock.write_same_rows(
            args.pool, args.same_rows, view=view, name=args.name, fence=lease.fence
        )
    print("\n".join(map(printable, dataset_lock.same_rows_lines([result]))))
    print_json(disk.to_plain(result), args)
    return 0


def explain(args: argparse.Namespace) -> int:
    """Print the history of one row; the exit status."""
    history = accounting.explain_row(args.pool, args.explain)
    print("\n".join(accounting.explain_lines(history)))
    print_json(history, args)
    return 0


def trace(args: argparse.Namespace) -> int:
    """Print how many stored images lead back to their records; the exit status."""
    result = accounting.trace_images(args.pool, args.trace)
    print("\n".join(map(printable, accounting.trace_lines(result))))
    print_json(disk.to_plain(result), args)
    return console.EXIT_INCOMPLETE if result.problems else 0


def audit(args: argparse.Namespace) -> int:
    """Print the counts of a pool and what is wrong with it; the exit status."""
    result = accounting.audit_pool(
        args.pool, verify_files=args.verify, engine=args.engine or "inline"
    )
    print("\n".join(accounting.audit_lines(result)))
    print_json(accounting.audit_plain(result), args)
    return 0 if result.is_fine else console.EXIT_INCOMPLETE


def print_json(value: Any, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(value, default=str, sort_keys=True))


if __name__ == "__main__":
    console.end_process(main)
