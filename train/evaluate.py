#!/usr/bin/env python3
"""Evaluate a model on tasks; one Parquet file per task, one row per sample.

The training pools of a run are searched for the tasks' images first: see
train/evaluation/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from train import startup

if __name__ == "__main__":
    startup.end_on_stop_signals()

import argparse
import json
import logging
from collections.abc import Sequence

from manifests import console, disk, reader
from manifests.pool_layout import PoolLayout, RunLayout
from manifests.schema import TaskSpec
from train.dist import process_group
from train.evaluation import (
    evaluate,
    find_shared_images,
    on_rank_0,
    overlap_lines,
    refuse_identical,
)
from train.formats import load_model

EXAMPLE = """example:
  python train/evaluate.py out/demo/runs/raw/seed-0 --task objects.yaml
  torchrun --nproc-per-node 4 train/evaluate.py out/run --task imagenet.yaml

"""
EXIT_STATUS = console.exit_help(
    {
        0: "every task has its predictions and metrics",
    }
)
logger = logging.getLogger(__name__)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/evaluate.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run, an open_clip or Hugging Face folder, or open_clip:NAME/TAG",
    )
    parser.add_argument(
        "--task", required=True, nargs="+", metavar="TASK.yaml", help="name, kind, data …"
    )
    parser.add_argument(
        "--out", help="folder of the predictions (default: eval/ inside the model's folder)"
    )
    parser.add_argument("--device", default="auto", help="cpu or cuda (default: the best there is)")
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON line: {task: {metric: value}}"
    )
    return parser.parse_args(argv)


def check_overlap(run: str, tasks: Sequence[TaskSpec], out: str) -> None:
    """Search the pools of a run for the tasks' images; all that is found goes to OUT/overlap.json.

    ValueError for byte-identical images of a task that does not allow them. A model that is no run
    of ours has no known pools, so nothing is searched.
    """
    if not disk.exists(RunLayout(run).run_json):
        logger.info("%s has no run.json: its training pools are not known or searched", run)
        return
    pools = []
    for pool in disk.read_json(RunLayout(run).run_json)["blend"]["pools"].values():
        if disk.exists(PoolLayout(pool).shards):
            pools.append(pool)
        else:
            logger.warning("the pool %s is not there: it is not searched for the images", pool)
    shared = find_shared_images(pools, tasks)
    path = disk.join(out, "overlap.json")
    disk.write_json(path, shared)
    refuse_identical(shared, tasks, path)
    for line in overlap_lines(shared, tasks, path):
        logger.info("%s", line)


def run(args: argparse.Namespace) -> int:
    """Check the overlap, evaluate, print the metrics."""
    tasks = [reader.read_manifest(path, TaskSpec) for path in args.task]
    if args.model.startswith("open_clip:") and not args.out:
        raise ValueError(f"{args.model} has no folder for the predictions: name one with --out")
    folder = args.model.removeprefix("local-dir:")
    export = RunLayout(folder).export
    out = args.out or RunLayout(folder).predictions
    if args.out or disk.exists(folder):  # before the model is loaded
        disk.output_folder(out)
    ranks = process_group.init_distributed(args.device)
    try:
        model = load_model(export if disk.exists(export) else args.model)
        on_rank_0(ranks, lambda: check_overlap(folder, tasks, out))
        metrics_of = evaluate(model, tasks, out, device=ranks.device, ranks=ranks)
    finally:
        process_group.close(ranks)
    if ranks.rank > 0:
        return 0
    for task, metrics in metrics_of.items():
        values = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        print(f"{task}: {values}")
    print(f"\npredictions: {out}")
    if args.json:
        print(json.dumps(metrics_of))
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status."""
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), "run the command again")


if __name__ == "__main__":
    raise SystemExit(main())
