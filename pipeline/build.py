#!/usr/bin/env python3
"""Build a pool from a recipe, or run a whole ablation: pools, scorer, arms × seeds, report.

Without an argument $CLIPMILL_RECIPE is built, and without that the demo.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(
        ROOT
    )  # the checkout, not pipeline/, whose file names could shadow other modules

from manifests import disk, reader
from manifests.schema import Ablation, Recipe
from pipeline import recipe_run

EXAMPLE = """example:
  python pipeline/build.py manifests/ablations/demo.yaml
  python pipeline/build.py manifests/recipes/datacomp_small.yaml --out /data/datacomp --until fetch
  ray job submit --working-dir . -- python pipeline/build.py manifests/ablations/demo.yaml --out /data/demo
"""


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/build.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "manifest",
        nargs="?",
        help="a recipe or an ablation (default: $CLIPMILL_RECIPE, else the demo)",
    )
    parser.add_argument("--out", help="where to build (default: $CLIPMILL_OUT/NAME, else out/NAME)")
    parser.add_argument(
        "--engine",
        choices=["ray", "inline"],
        default="ray",
        help="inline runs the same without Ray",
    )
    parser.add_argument(
        "--until",
        choices=recipe_run.STAGES,
        default=recipe_run.STAGES[-1],
        help="the last stage of a recipe",
    )
    parser.add_argument(
        "--retry", choices=["transient"], help="ask again for rows that ended with such a reason"
    )
    parser.add_argument(
        "--scale", help="a block of the manifest's `scales` to merge over it, such as debug"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    try:
        demo = str(ROOT / "manifests/ablations/demo.yaml")
        manifest = args.manifest or os.environ.get("CLIPMILL_RECIPE", demo)
        out = disk.output_folder(
            args.out or disk.join(os.environ.get("CLIPMILL_OUT", "out"), Path(manifest).stem)
        )
        if reader.manifest_kind(manifest) is Ablation:
            if args.until != recipe_run.STAGES[-1] or args.retry:
                raise ValueError(
                    "--until and --retry are for a recipe; an ablation runs all of its stages"
                )
            recipe_run.ablate(manifest, out, engine=args.engine, scale=args.scale)
            totals = disk.read_json(disk.join(out, "results.json"))
            failed: dict[str, str] = {}
        else:
            with recipe_run.surroundings(out, recipe_run.peek_miniweb(manifest, args.scale)):
                recipe = reader.read_manifest(manifest, Recipe, scale=args.scale)
                totals = recipe_run.build(
                    recipe, out, engine=args.engine, until=args.until, retry=args.retry
                )
            failed = totals["failed"]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode > 0 else 1
    for task, reason in failed.items():
        print(f"error: task {task} ended without an outcome: {reason}", file=sys.stderr)
    if args.json:
        print(json.dumps(totals, sort_keys=True))
    return 3 if failed or totals.get("problems") else 0


if __name__ == "__main__":
    raise SystemExit(main())
