#!/usr/bin/env python3
"""Choose the views of a recipe from a pool's columns: a mask per row, no copy of a picture. Prints
each funnel. With --export, write the kept rows of a view for other programs; with --materialise,
its samples as tars of the pool's own.
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

from manifests import disk, reader
from manifests.schema import Recipe
from pipeline import views
from pipeline.pool import hold_lease
from pipeline.progress import shown_progress

WAIT_S = 60.0  # for another command that writes into the pool
EXAMPLE = """example:
  python pipeline/filter.py out/pool --recipe manifests/recipes/laion_like.yaml
  python pipeline/filter.py out/pool --recipe manifests/recipes/laion_like.yaml --views basic clip30
  python pipeline/filter.py out/pool --random-like clip30 --seed 0 1 2
  python pipeline/filter.py out/pool --columns
  python pipeline/filter.py out/pool --hash clip30
  python pipeline/filter.py out/pool --export clip30 --to out/clip30/clip30.parquet
  python pipeline/filter.py out/pool --export clip30 --to s3://bucket/clip30
  python pipeline/filter.py out/pool --materialise clip30

"""

EXIT_STATUS = console.exit_help(
    {
        0: "the views are made, the columns listed, a hash printed, or an export or the tars of a "
        "view written"
    }
)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/filter.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL that build.py filled and score.py scored")
    add_modes(parser)
    parser.add_argument(
        "--to",
        metavar="X",
        help="of --export: a .parquet (sidecar and score columns), a .csv (URLs and captions), a "
        ".npy (uids as in a DataComp subset), or a folder (WebDataset shards); a path or a URL",
    )
    parser.add_argument(
        "--uid-column",
        default="uid",
        metavar="COLUMN",
        help="of --export to a .npy: the column whose uids are written (default: uid)",
    )
    parser.add_argument("--views", nargs="+", metavar="NAME", help="only these views of the recipe")
    parser.add_argument(
        "--seed",
        type=int,
        nargs="+",
        help="of --random-like: one random_like_VIEW.seed-N each (default: random_like_VIEW, drawn "
        "with seed 0)",
    )
    parser.add_argument(
        "--scale", help="a block of the recipe's `scales` to merge over it, such as debug"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def add_modes(parser: argparse.ArgumentParser) -> None:
    """The options of which one must be given: what is done with the pool."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--recipe", help="its views")
    what.add_argument(
        "--random-like",
        metavar="VIEW",
        help="make random_like_VIEW, a random subset as large as VIEW",
    )
    what.add_argument(
        "--columns", action="store_true", help="list the columns that a rule may read"
    )
    what.add_argument(
        "--materialise",
        metavar="VIEW",
        help="copy the kept samples of VIEW into tars of their own, POOL/materialised/VIEW, which "
        "training then reads; worthwhile where a view keeps little of a pool in a store",
    )
    what.add_argument(
        "--hash",
        metavar="VIEW",
        help="print the hash of the rows that VIEW keeps: who has the same pairs with the same "
        "bytes has the same hash, whatever the shards, the machines and the rules",
    )
    what.add_argument(
        "--export",
        metavar="VIEW",
        help="write the kept rows of VIEW for other programs, with a dataset card and Croissant "
        "metadata; --to says where and how",
    )


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    if args.export:
        return console.run_command(lambda: export(args))
    if args.to or args.uid_column != "uid":
        return console.run_command(lambda: refuse_to(args))
    if args.columns:
        return console.run_command(lambda: list_columns(args))
    if args.hash:
        return console.run_command(lambda: hash_view(args))
    if args.materialise:
        return console.run_command(lambda: materialise(args))
    return console.run_command(lambda: choose(args))


def list_columns(args: argparse.Namespace) -> int:
    """Print the columns that a rule may read; the exit status."""
    if args.views or args.scale or args.seed is not None:
        raise ValueError("--columns takes no --views, --scale or --seed")
    columns = views.list_columns(args.pool)
    if args.json:
        print(json.dumps(disk.to_plain(columns), sort_keys=True))
    else:
        print("\n".join(views.column_lines(columns)))
    return 0


def export(args: argparse.Namespace) -> int:
    """Write the kept rows of a view for other programs; the exit status."""
    # It loads the crawler and the fetcher, which take longer than all of the rest.
    from pipeline.export import export_line, export_view

    if args.views or args.scale or args.seed is not None:
        raise ValueError("--export takes no --views, --scale or --seed")
    if not args.to:
        raise ValueError("--export needs --to FILE.parquet, FILE.csv, FILE.npy or a folder")
    written = export_view(args.pool, args.export, args.to, args.uid_column)
    if args.json:
        print(json.dumps(disk.to_plain(written), sort_keys=True))
    else:
        print(export_line(written))
    return 0


def refuse_to(args: argparse.Namespace) -> int:
    """ValueError for options of --export without it."""
    raise ValueError("--to and --uid-column are for --export VIEW")


def hash_view(args: argparse.Namespace) -> int:
    """Print the hash of a view's rows; the exit status."""
    if args.views or args.scale or args.seed is not None:
        raise ValueError("--hash takes no --views, --scale or --seed")
    rows_sha256 = views.hash_view(args.pool, args.hash)
    if args.json:
        print(json.dumps({"view": args.hash, "rows_sha256": rows_sha256}, sort_keys=True))
    else:
        print(rows_sha256)
    return 0


def materialise(args: argparse.Namespace) -> int:
    """Write the tars of a view; the exit status."""
    if args.views or args.scale or args.seed is not None:
        raise ValueError("--materialise takes no --views, --scale or --seed")
    with hold_lease(args.pool, WAIT_S) as lease, shown_progress(args.pool):
        document = views.materialise_view(args.pool, args.materialise, lease.fence)
    if args.json:
        print(json.dumps(disk.to_plain(document), sort_keys=True))
    else:
        print(
            f"view {args.materialise}: {document.rows} rows in {document.shards} tars of "
            f"{document.bytes / 1e6:.3g} MB in {disk.join(args.pool, 'materialised')}"
        )
    return 0


def choose(args: argparse.Namespace) -> int:
    """Make the views and print how many rows each rule leaves; the exit status."""
    if args.recipe:
        if args.seed is not None:
            raise ValueError(
                "--seed is for --random-like; in a recipe a seed stands beside random_like"
            )
        recipe = reader.read_manifest(args.recipe, Recipe, scale=args.scale)
        reader.refuse_other_source(args.pool, recipe)
        with hold_lease(args.pool, WAIT_S) as lease, shown_progress(args.pool):
            documents = views.choose_views(args.pool, recipe, args.views, lease.fence)
    else:
        if args.views or args.scale:
            raise ValueError("--views and --scale are for --recipe")
        with hold_lease(args.pool, WAIT_S) as lease, shown_progress(args.pool):
            documents = views.random_like(args.pool, args.random_like, args.seed, lease.fence)
    if args.json:
        plain = {name: document.document() for name, document in documents.items()}
        print(json.dumps(plain, sort_keys=True))
    else:
        print("\n".join(views.funnel_lines(documents)))
    return 0


if __name__ == "__main__":
    console.end_process(main)
