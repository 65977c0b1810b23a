#!/usr/bin/env python3
"""Zero-shot classification and retrieval: one row per sample, and the metrics in the file's footer.

Example: python train/evaluate.py out/demo/runs/raw/seed-0 --task objects.yaml
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import disk, reader
from manifests.schema import TaskSpec
from train.dist import process_group
from train.evaluation import zero_shot
from train.formats import open_clip_files

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(
        prog="train/evaluate.py",
        description="Evaluate a run or an open_clip folder on tasks; writes one Parquet file per task.",
        epilog="example: python train/evaluate.py out/demo/runs/raw/seed-0 --task objects.yaml",
    )
    parser.add_argument(
        "model",
        metavar="RUN|FOLDER",
        help="a run, or a folder with open_clip_config.json and weights",
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
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    try:
        tasks = [reader.read_manifest(path, TaskSpec) for path in options.task]
        export = disk.join(options.model, "export")
        model = open_clip_files.load_export(export if disk.exists(export) else options.model)
        device = process_group.init_distributed(options.device).device
        found = zero_shot.evaluate(
            model, tasks, options.out or disk.join(options.model, "eval"), device=device
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, metrics in found.items():
        logger.info(
            "%s: %s", name, ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        )
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
