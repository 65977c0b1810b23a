#!/usr/bin/env python3
"""Evaluate a model on tasks; one Parquet file per task, one row per sample.

The training pools of a run are searched for the tasks' images first: see
train/evaluation/overlap.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()

import argparse
import json
import logging
from collections.abc import Sequence

from manifests import disk, reader
from manifests.layout import PoolLayout, RunLayout
from manifests.schema import Suite, TaskSpec, Weights
from train.eval_data import write_benchmark
from train.evaluation import (
    evaluate,
    evaluate_suite,
    find_shared_images,
    on_rank_0,
    overlap_lines,
    read_samples,
    readable_tasks,
    refuse_identical,
    refuse_near,
)
from train.model import CLIP
from train.parallel import checkpoint, process_group

EXAMPLE = """example:
  python train/evaluate.py out/demo/runs/raw/seed-0 --task objects.yaml
  python train/evaluate.py out/run --suite manifests/tasks/datacomp_38.yaml --average-last 2
  torchrun --nproc-per-node 4 train/evaluate.py out/run --task imagenet.yaml

"""
EXIT_STATUS = console.exit_help(
    {
        0: "every task whose data is there has its predictions and metrics",
        3: "a task of the suite failed; the others have theirs",
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
        nargs="?",
        metavar="MODEL",
        help="a run, an open_clip or Hugging Face folder, or open_clip:NAME/TAG",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--task", nargs="+", metavar="TASK.yaml", help="name, kind, data …")
    what.add_argument(
        "--suite", metavar="SUITE.yaml", help="many tasks: those whose data is there are evaluated"
    )
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--average-last",
        type=int,
        metavar="N",
        help="of a run: the mean of the weights of its last N checkpoints",
    )
    weights.add_argument(
        "--ema", action="store_true", help="of a run: the moving average in its last checkpoint"
    )
    parser.add_argument(
        "--write-benchmark",
        metavar="DIR",
        help="no MODEL: write each task to DIR/TASK in CLIP_benchmark's webdataset layout",
    )
    parser.add_argument(
        "--out", help="folder of the predictions (default: eval/ inside the model's folder)"
    )
    parser.add_argument("--device", default="auto", help="cpu or cuda (default: the best there is)")
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON line: {task: {metric: value}}"
    )
    args = parser.parse_args(argv)
    if args.write_benchmark and (args.model or not args.task):
        parser.error("--write-benchmark takes --task and no MODEL")
    if not args.write_benchmark and args.model is None:
        parser.error("MODEL is missing")
    return args


def check_overlap(run: str, tasks: Sequence[TaskSpec], out: str) -> None:
    """Search the pools of a run for the tasks' images; all that is found goes to OUT/overlap.json.

    ValueError for byte-identical images of a task that does not allow them, and for near duplicates
    in a view of the run where the task refuses these. A model that is no run of ours has no known
    pools, so nothing is searched.
    """
    if not disk.exists(RunLayout(run).run_json):
        logger.info("%s has no run.json: its training pools are not known or searched", run)
        return
    blend = disk.read_json(RunLayout(run).run_json)["blend"]
    pools = []
    for pool in blend["pools"].values():
        if disk.exists(PoolLayout(pool).shards):
            pools.append(pool)
        else:
            logger.warning("the pool %s is not there: it is not searched for the images", pool)
    shared = find_shared_images(pools, tasks)
    path = disk.join(out, "overlap.json")
    disk.write_json(path, shared)
    views = []
    for name in blend.get("views", {}):  # a run on streamed tars has none
        pool_name, _, view = name.partition("/")
        if blend["pools"][pool_name] in pools:
            views.append((blend["pools"][pool_name], view))
    refuse_identical(shared, tasks, path, {pool for pool, _ in views})
    refuse_near(shared, tasks, views)
    for line in overlap_lines(shared, tasks, path):
        logger.info("%s", line)


def load(args: argparse.Namespace) -> tuple[CLIP, dict[str, str]]:
    """The model, with the weights that --average-last or --ema ask for, and their hashes."""
    model, which = checkpoint.load_weights(args.model, weights_of(args))
    logger.info("%s: %s", args.model, which)
    return model, checkpoint.hashes_of(args.model, weights_of(args))


def weights_of(args: argparse.Namespace) -> Weights:
    """The weights that --average-last or --ema ask for."""
    return Weights(ema=args.ema, average_last=args.average_last)


def predictions_folder(args: argparse.Namespace) -> str:
    """--out, or a folder beside the model: weights that were averaged have one of their own."""
    if args.out:
        return str(args.out)
    if args.model.startswith("open_clip:"):
        raise ValueError(f"{args.model} has no folder for the predictions: name one with --out")
    return RunLayout(args.model.removeprefix("local-dir:")).predictions_of(weights_of(args))


def write_layouts(tasks: Sequence[TaskSpec], folder: str) -> int:
    """Each task in CLIP_benchmark's layout, in FOLDER/TASK."""
    for task in tasks:
        out = disk.join(folder, task.name)
        count = write_benchmark(read_samples(task), out, task.split)
        print(f"{task.name}: {count} images in CLIP_benchmark's layout: {out}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Check the overlap, evaluate, print the metrics."""
    tasks = [reader.read_manifest(path, TaskSpec) for path in args.task or ()]
    if args.write_benchmark:
        return write_layouts(tasks, args.write_benchmark)
    suite = reader.read_manifest(args.suite, Suite) if args.suite else None
    out, folder = predictions_folder(args), args.model.removeprefix("local-dir:")
    if args.out or disk.exists(folder):  # before the model is loaded
        disk.output_folder(out)
    ranks = process_group.init_distributed(args.device)
    try:
        model, hashes = load(args)
        searched = tasks if suite is None else readable_tasks(suite.tasks)
        on_rank_0(ranks, lambda: check_overlap(folder, searched, out))
        if suite is not None:
            results = evaluate_suite(
                model, suite, out, device=ranks.device, ranks=ranks, weights=hashes
            )
        else:
            metrics_of = evaluate(
                model, tasks, out, device=ranks.device, ranks=ranks, weights=hashes
            )
    finally:
        process_group.close(ranks)
    if ranks.rank > 0:
        return 0
    if suite is not None:
        print("\n".join([*results.lines(), f"\npredictions: {out}"]))
        if args.json:
            print(json.dumps(disk.to_plain(results)))
        return console.EXIT_INCOMPLETE if results.failed else 0
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
    console.end_process(main)
