#!/usr/bin/env python3
"""Build a pool from a recipe, or run a whole ablation: pools, scorer, arms × seeds, report.

Without an argument $CLIPMILL_RECIPE is built; a Ray job without either runs the demo, elsewhere
`make demo` does. A recipe is code: with fetch.engine img2dataset it names the program that is run.
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
import os
import shlex
import subprocess
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from manifests import disk, reader
from manifests.layout import AblationLayout
from manifests.records import DriftDocument
from manifests.schema import Recipe
from manifests.text import printable
from pipeline import ablation_run, lock, recipe_run

DEMO = "manifests/ablations/demo.yaml"
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the entry of a job, and nowhere else
WEB_ENTRY = "examples/miniweb/run.py"  # starts a small web and runs a manifest on it
WEB_VARIABLES = ("MINIWEB", "MINIWEB_PORT")  # set by it
MAX_TASKS = 20  # tasks without an outcome that are printed
EXAMPLE = """example:
  python pipeline/build.py manifests/ablations/own_shards.yaml
  python pipeline/build.py manifests/recipes/datacomp_small.yaml --out /data/datacomp --until fetch
  python pipeline/build.py --from-lock their.lock.parquet --out /data/theirs \\
      --set user_agent='mylab (crawler@mylab.example)'
  ray job submit --working-dir . -- \\
      python pipeline/build.py manifests/recipes/laion_like.yaml --out /data/pool

"""

EXIT_STATUS = console.exit_help(
    {
        0: "the stages are finished and every planned shard is committed; rows that failed are "
        "outcomes too",
        console.EXIT_INCOMPLETE: "a task ended without an outcome, a planned shard is missing, or "
        "a count is wrong; the last line says why first",
    }
)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pipeline/build.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "manifest",
        nargs="?",
        help="a recipe or an ablation (default: $CLIPMILL_RECIPE; in a Ray job, else the demo)",
    )
    add_options(parser)
    parser.add_argument(
        "--from-lock",
        metavar="FILE",
        help="build the pool of a lock again (see audit.py --lock) instead of a recipe's",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="with --from-lock: keys of `fetch` that are yours, such as user_agent and per_host",
    )
    parser.set_defaults(entry=[ablation_run.BUILD])
    args = parser.parse_args(argv)
    if not args.manifest and not args.from_lock:
        args.manifest = os.environ.get("CLIPMILL_RECIPE")
        if not args.manifest and RAY_JOB not in os.environ:
            # the demo would take ten minutes and write here
            parser.print_help(sys.stderr)
            parser.exit(
                console.EXIT_MISTAKE,
                f"\nerror: name a recipe or an ablation; the demo is {DEMO} (make demo)\n",
            )
    return args


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of building a manifest, whichever entry is called."""
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


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    if not args.manifest and not args.from_lock:
        return run_demo(sys.argv[1:] if argv is None else argv)
    console.start_logging()
    return console.run_command(lambda: build(args))


def run_demo(options: list[str]) -> int:
    """The demo with its web, for a Ray job without a manifest; the exit status.

    This is the one place where the product imports an example.
    """
    from examples.miniweb import run

    return run.main([str(ROOT / DEMO), *options])


def build(args: argparse.Namespace) -> int:
    """Build what the manifest or the lock asks for; the exit status."""
    if args.from_lock:
        return build_lock(args)
    if args.set:
        raise ValueError("--set belongs to --from-lock; a recipe has its settings in `fetch`")
    try:
        return build_manifest(args)
    except reader.UnsetVariableError as error:
        if error.name not in WEB_VARIABLES:
            raise
        web_command = same_command(args, args.out, [WEB_ENTRY])
        raise ValueError(f"{error}; this starts the small web and sets it: {web_command}") from None


def output_of(args: argparse.Namespace) -> str:
    """The folder or URL that a manifest is built into."""
    parent = os.environ.get("CLIPMILL_OUT", "out")
    return disk.output_folder(args.out or disk.join(parent, Path(args.manifest).stem))


def build_manifest(
    args: argparse.Namespace, served: AbstractContextManager[object] | None = None
) -> int:
    """Build a recipe or run an ablation; the exit status. `served` makes and serves its sources; it
    is entered after the checks.
    """
    manifest, out = args.manifest, output_of(args)
    if reader.manifest_kind(manifest) is Recipe:
        return build_recipe(manifest, out, args, served)
    if args.until != recipe_run.STAGES[-1] or args.retry:
        raise ValueError("--until and --retry are for a recipe; an ablation runs all of its stages")
    return build_ablation(manifest, out, args, served)


def build_ablation(
    manifest: str,
    out: str,
    args: argparse.Namespace,
    served: AbstractContextManager[object] | None,
) -> int:
    """Run the commands of an ablation. Where one fails, its own error is the last line."""
    try:
        ablation_run.ablate(
            manifest, out, engine=args.engine, scale=args.scale, entry=args.entry, served=served
        )
    except subprocess.CalledProcessError as error:
        if error.returncode > 0:
            return error.returncode
        name, words = console.signal_name(-error.returncode), shlex.join(error.cmd)
        console.print_error(f"\n{words} was ended by {name}: run the command again to resume")
        return 128 - error.returncode
    layout = AblationLayout(out)
    results = disk.read_json(layout.results_json)
    print(json.dumps(results, sort_keys=True) if args.json else f"the report is {layout.report}")
    return 0


def build_lock(args: argparse.Namespace) -> int:
    """Build the pool of a lock again; the exit status."""
    if args.manifest or args.scale:
        raise ValueError("--from-lock takes the place of a manifest; leave one of them out")
    if args.until == "crawl":
        raise ValueError("a lock has nothing to crawl: --until plan ends before the first request")
    recipe = lock.recipe_of_lock(args.from_lock, args.set)
    parent = os.environ.get("CLIPMILL_OUT", "out")
    # Not the name of the recipe, which another lab has written.
    name = Path(args.from_lock).name.partition(".")[0]
    out = disk.output_folder(args.out or disk.join(parent, name or "lock"))
    totals = recipe_run.build(recipe, out, engine=args.engine, until=args.until, retry=args.retry)
    return report(recipe, out, args, totals)


def build_recipe(
    manifest: str,
    out: str,
    args: argparse.Namespace,
    served: AbstractContextManager[object] | None,
) -> int:
    """Run the stages of a recipe; the exit status."""
    recipe = reader.read_manifest(manifest, Recipe, scale=args.scale)
    if served is not None:
        recipe_run.check_recipe(recipe, args.until, args.retry)
    with served or nullcontext():
        totals = recipe_run.build(
            recipe, out, engine=args.engine, until=args.until, retry=args.retry
        )
    return report(recipe, out, args, totals)


def report(recipe: Recipe, out: str, args: argparse.Namespace, totals: dict[str, Any]) -> int:
    """Print how a build ended; the exit status."""
    causes = unfinished(totals, args.until)
    if args.json:
        print(json.dumps(totals, sort_keys=True))
    elif not causes:
        print("\n".join(summary(recipe, out, args, totals)))
    for cause in reversed(causes):
        console.print_error(f"error: {printable(cause)}")
    return console.EXIT_INCOMPLETE if causes else 0


def unfinished(totals: dict[str, Any], until: str) -> list[str]:
    """Why a build is not finished, the first cause first; [] where it is."""
    failed = totals["failed"]
    causes = []
    for task in list(failed)[:MAX_TASKS]:
        causes.append(f"task {task} ended without an outcome: {failed[task]}")
    if len(failed) > MAX_TASKS:
        causes.append(f"{len(failed) - MAX_TASKS} more tasks ended without an outcome")
    causes += totals["problems"]
    if missing := recipe_run.incomplete(totals, until):
        causes.append(missing)
    return causes


def same_command(args: argparse.Namespace, out: str | None, entry: list[str]) -> str:
    """The command that goes on with this pool to the last stage."""
    words = ["--from-lock", args.from_lock] if args.from_lock else [args.manifest]
    if out:
        words += ["--out", out]
    if args.scale:
        words += ["--scale", args.scale]
    if args.engine != "ray":
        words += ["--engine", args.engine]
    if args.set:
        words += ["--set", *args.set]
    return shlex.join(["python", *entry, *words])


def summary(
    recipe: Recipe, out: str, args: argparse.Namespace, totals: dict[str, Any]
) -> list[str]:
    """The last lines of a build: the pool, what it holds, the next command."""
    folder = shlex.quote(out)
    state = "" if totals["changed"] else " (it was complete already; nothing was done)"
    lines = [f"the pool is {out}{state}"]
    if args.until not in ("crawl", "plan"):
        final = totals["fetch"]["final"]
        rows = final["stored"] + sum(final["reasons"].values())
        lines.append(f"  {final['stored']:,} of {rows:,} rows are stored")
    if "drift" in totals:
        drift = disk.from_plain(DriftDocument, totals["drift"])
        lines += map(printable, lock.drift_lines(drift))
    if args.until != recipe_run.STAGES[-1]:
        return [*lines, f"next: {same_command(args, out, args.entry)}"]
    kept = [f"{name} {view['kept']:,}" for name, view in totals["views"].items()]
    lines.append(f"  rows of its views: {', '.join(kept) or 'none'}")
    view = recipe.views[-1].name if recipe.views else next(iter(totals["views"]), "VIEW")
    following = f"next: python train/run.py --mix {folder}/{view}=1 --out out/run --preset micro"
    scored = {name.partition("@")[0] for name in totals["scores"]}
    kinds = {"tokens": "tokens", **{spec.name: spec.kind or spec.name for spec in recipe.filters}}
    if not any(kinds.get(name) == "tokens" for name in scored):
        following = f"next: python pipeline/score.py {folder} --filters tokens (training needs it)"
    return [
        *lines,
        following,
        f"or:   python pipeline/audit.py {folder} --verify",
    ]


if __name__ == "__main__":
    console.end_process(main)
