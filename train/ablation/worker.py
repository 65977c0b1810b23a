"""One run: train and evaluate it. In a child process, as a Ray task, or here."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any

from manifests import console, disk
from manifests.pool_layout import RunLayout
from manifests.schema import Blend, TaskSpec
from train import loop
from train.ablation.arms import Run
from train.config import TrainConfig
from train.dist import process_group
from train.evaluation import evaluate
from train.formats import open_clip_files

Json = dict[str, Any]
logger = logging.getLogger(__name__)


def request_of(run: Run, tasks: Sequence[TaskSpec], threads: int) -> Json:
    """A run as plain JSON values, for `train_and_evaluate`."""
    return {
        "blend": disk.to_plain(run.blend),
        "config": disk.to_plain(run.config),
        "out": run.out,
        "tasks": disk.to_plain(tasks),
        "threads": threads,
    }


def train_and_evaluate(request: Json) -> Json:
    """Train and evaluate one run; it never raises an Exception.

    The answer is {"metrics": {task: {metric: value}}}, or {"error": text, "refused": bool}, where
    `refused` marks a ValueError: a second attempt would end in the same way.
    """
    import torch

    torch.set_num_threads(request["threads"])
    config: TrainConfig = disk.from_plain(TrainConfig, request["config"])
    tasks = [disk.from_plain(TaskSpec, task) for task in request["tasks"]]
    layout = RunLayout(request["out"])
    try:
        loop.train(disk.from_plain(Blend, request["blend"]), config, request["out"])
        model = open_clip_files.load_export(layout.export)
        device = process_group.init_distributed(config.device).device
        metrics = evaluate(
            model, tasks, layout.predictions, tokenizer=config.tokenizer, device=device
        )
        return {"metrics": metrics}
    except Exception as error:
        logger.exception("a run raised")
        return {
            "error": f"{type(error).__name__}: {error}",
            "refused": isinstance(error, ValueError),
        }


def serve() -> int:
    """Answer every line of stdin with one line on stdout. All other output goes to stderr.

    The process ends with its parent: a run must not outlive the reader of its answer.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    console.start_logging()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read_requests() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read_requests, daemon=True).start()
    while True:
        answers.write(json.dumps(train_and_evaluate(json.loads(lines.get()))) + "\n")
