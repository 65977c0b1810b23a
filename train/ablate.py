#!/usr/bin/env python3
"""Run the arms of an ablation with every seed, evaluate them, and say what can be told apart."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import disk, reader
from manifests.schema import Ablation, TaskSpec
from train.ablation import Outcome, conclude, runner
from train.config import configure, model_config
from train.data import Loader
from train.evaluation import zero_shot

EXAMPLE = """example:
  python train/ablate.py manifests/ablations/demo.yaml --out out/demo

The pools must have been built: python pipeline/build.py ABLATION does that and calls this.
With --engine ray, runs go to the cluster that RAY_ADDRESS names (--out on storage that all of its machines share), or
to this machine.
"""
Json = dict[str, Any]
Values = dict[str, dict[int, float]]  # {arm: {seed of the ablation: headline metric}}


# --- before anything is trained ------------------------------------------------------------------------------------


def check(ablation: Ablation, out: str) -> None:
    """ValueError for what can be known before the pools are built: settings, arms, the tasks' data."""
    if not ablation.equivalence > 0:
        raise ValueError(
            f"equivalence is {ablation.equivalence}; it must be above 0 (a share: 0.005 = 0.5 points)"
        )
    if ablation.scorer:
        configure({**ablation.train, **ablation.scorer.train})
        if ablation.scorer.view.partition("/")[0] not in ablation.pools:
            raise ValueError(
                f"scorer.view is {ablation.scorer.view!r}; its pool must be of {sorted(ablation.pools)}"
            )
    names = [task.name for task in ablation.evaluate]
    if len(set(names)) < len(names):
        raise ValueError(f"evaluate has two tasks of one name: {', '.join(names)}")
    runner.expand(ablation, out, built=False)
    for task in ablation.evaluate:
        zero_shot.samples(task)


def check_pools(ablation: Ablation, out: str) -> dict[str, int]:
    """ValueError for what the pools tell: missing or stale views, too few rows, evaluation pictures among them.

    Returns the number of evaluation pictures of each task that a pool stores too (allowed ones).
    """
    runs = runner.expand(ablation, out)
    for run in {run.arm: run for run in runs}.values():
        Loader(run.blend, run.config, model_config(run.config))
    pools = {pool for run in runs for pool in run.blend.pools.values()}
    if ablation.scorer:
        pools.add(ablation.pool_folder(out, ablation.scorer.view.partition("/")[0]))
    return zero_shot.refuse_overlap(sorted(pools), ablation.evaluate)


# --- what came out -------------------------------------------------------------------------------------------------


def headlines(outcomes: Sequence[Outcome], task: TaskSpec) -> Values:
    """The task's headline metric of every run that ended, under the ablation's seed that it stands for."""
    values: Values = {}
    for outcome in outcomes:
        if outcome.metrics is not None:
            metric = outcome.metrics[task.name][zero_shot.HEADLINE[task.kind]]
            values.setdefault(outcome.run.arm, {})[outcome.run.pair] = metric
    return values


def concluded(ablation: Ablation, outcomes: Sequence[Outcome]) -> Json:
    """What the runs that ended say, and which did not."""
    failed = [
        {"arm": o.run.arm, "seed": o.run.seed, "error": o.error}
        for o in outcomes
        if o.metrics is None
    ]
    values = {task.name: headlines(outcomes, task) for task in ablation.evaluate}
    return conclude(ablation, values, failed, len(outcomes))


def results(ablation: Ablation, outcomes: Sequence[Outcome], shared: Mapping[str, int]) -> Json:
    """results.json: every metric of every run under its own seed, and what is concluded from them."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for outcome in outcomes:
        runs = table.setdefault(outcome.run.arm, {"runs": {}})["runs"]
        if outcome.metrics is not None:
            runs[str(outcome.run.seed)] = outcome.metrics
    return {
        "ablation_hash": disk.content_hash(ablation),
        "arms": table,
        "overlap": dict(shared),
        **concluded(ablation, outcomes),
    }


# --- the command ---------------------------------------------------------------------------------------------------


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/ablate.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "ablation", help="a manifest, or ablation.json as pipeline/build.py resolves it"
    )
    parser.add_argument("--out", required=True, help="folder of the runs and of results.json")
    parser.add_argument(
        "--engine",
        choices=["inline", "ray"],
        default="inline",
        help="where runs go (default: inline)",
    )
    parser.add_argument(
        "--scale", help="a block of the manifest's `scales` to merge over it, such as debug"
    )
    parser.add_argument(
        "--check", action="store_true", help="check what can be known without the pools, and end"
    )
    parser.add_argument(
        "--json", action="store_true", help="end with results.json as one line on stdout"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status: 0, 2 for a mistake, 3 where a run ended without a result."""
    args = options(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    try:
        out = disk.output_folder(args.out)
        ablation = reader.read_manifest(args.ablation, Ablation, scale=args.scale)
        check(ablation, out)
        if args.check:
            number = len(runner.expand(ablation, out, built=False))
            told = f"{ablation.name}: {number} runs; nothing is wrong that can be known before its pools are built"
            print(
                json.dumps({"ablation_hash": disk.content_hash(ablation), "runs": number})
                if args.json
                else told
            )
            return 0
        shared = check_pools(ablation, out)
        disk.write_json(disk.join(out, "ablation.json"), ablation)
        found = results(ablation, runner.run_all(ablation, out, args.engine), shared)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    disk.write_json(disk.join(out, "results.json"), found)
    print(found["verdict"])
    if args.json:
        print(json.dumps(found, sort_keys=True))
    return 3 if found["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
