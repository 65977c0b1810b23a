#!/usr/bin/env python3
"""Score the rows of a pool: every filter adds columns, none drops a row. What is scored already is
left as it is.
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

import yaml

from manifests import disk, reader
from manifests.schema import Recipe
from pipeline import scoring
from pipeline.pool import hold_lease
from pipeline.progress import shown_progress

EXAMPLE = """example:
  python pipeline/score.py out/pool --recipe manifests/recipes/laion_like.yaml
  python pipeline/score.py out/pool --recipe recipe.yaml --filters clip_l14 \\
      --set clip_l14.batch_size=64
  python pipeline/score.py out/pool --filters caption language
  python pipeline/score.py out/pool --filters clip_score \\
      --set clip_score.model=ViT-B-32 --set clip_score.pretrained=laion2b_s34b_b79k

"""

EXIT_STATUS = console.exit_help(
    {
        0: "all shards are scored",
        console.EXIT_INCOMPLETE: "a shard could not be scored; run it again",
    }
)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/score.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", help="the folder or URL that build.py filled")
    parser.add_argument("--recipe", help="its filters, with their options")
    parser.add_argument(
        "--filters",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these, by the names that the recipe gives them (default: all of the recipe)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME.OPTION=VALUE", help="change an option"
    )
    parser.add_argument(
        "--engine",
        choices=["ray", "inline"],
        default="ray",
        help="inline runs the same without Ray",
    )
    parser.add_argument(
        "--scale", help="a block of the recipe's `scales` to merge over it, such as debug"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: score(args))


def score(args: argparse.Namespace) -> int:
    """Score a pool and print what was scored; the exit status."""
    pool = args.pool if disk.is_url(args.pool) else str(Path(args.pool).absolute())
    if args.scale and not args.recipe:
        raise ValueError("--scale picks a block of a recipe; name the recipe with --recipe")
    recipe = None
    if args.recipe:
        recipe = reader.read_manifest(args.recipe, Recipe, scale=args.scale)
        reader.refuse_other_source(pool, recipe)
    specs = scoring.filter_specs(recipe, args.filters, read_changes(args.set))
    with hold_lease(pool) as lease, shown_progress(pool):
        report = scoring.score(pool, specs, engine=args.engine, fence=lease.fence, recipe=recipe)
    for name, state in report["sets"].items():
        if state and not args.json:
            counts = f"{state['scored']} of {state['stored']} stored rows"
            print(f"{name}: {counts} scored in {state['seconds']:.1f} s")
    for shard, reason in report["failed"].items():
        what = f"shard {shard} was not scored" if shard.isdigit() else f"{shard} failed"
        console.print_error(f"error: {what}: {reason}")
    if args.json:
        print(json.dumps(report, sort_keys=True))
    return console.EXIT_INCOMPLETE if report["failed"] else 0


def read_changes(words: list[str]) -> dict[str, Any]:
    """FILTER.OPTION=VALUE as a mapping; the values are read as YAML."""
    changes = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"--set {word}: write FILTER.OPTION=VALUE")
        try:
            changes[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(
                f"--set {word}: {text!r} is not a YAML value; put it in quotes"
            ) from None
    return changes


if __name__ == "__main__":
    console.end_process(main)
