"""One run: train it on one rank or several, and evaluate it; in a child process or a Ray task."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manifests import console, disk
from manifests.run_layout import RunLayout
from manifests.schema import Blend, TaskSpec, Weights
from train.ablation.arms import WorkRun
from train.ablation.models import ModelRun, model_identity
from train.config import TrainConfig
from train.dist import averaging, launch, process_group, ray_train
from train.evaluation import evaluate
from train.running import loop

ROOT = Path(__file__).resolve().parents[2]
PARENT_S = 0.2  # between two looks whether the parent is still there
Json = dict[str, Any]
logger = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """A run of several ranks that ended without a result."""


def request_of(
    run: WorkRun, tasks: Sequence[TaskSpec], threads: int, *, spread: bool = False
) -> Json:
    """A run as plain JSON values, for `train_and_evaluate`.

    `threads` are those of all its ranks together. With `spread` the ranks are workers of Ray Train,
    on any machines of the cluster.
    """
    request: Json = {
        "out": run.out,
        "ranks": run.ranks,
        "spread": spread,
        "tasks": disk.to_plain(tasks),
        "threads": threads,
        "weights": disk.to_plain(run.weights),
    }
    if isinstance(run, ModelRun):
        return {**request, "model": run.source, "device": run.device}
    return {**request, "blend": disk.to_plain(run.blend), "config": disk.to_plain(run.config)}


def train_and_evaluate(request: Json) -> Json:
    """Train and evaluate one run, or evaluate a model; it never raises an Exception.

    The answer is {"metrics": {task: {metric: value}}}, or {"error": text, "refused": bool}, where
    `refused` marks a ValueError: a second attempt would end in the same way.
    """
    import torch

    torch.set_num_threads(request["threads"])
    try:
        if "model" in request:
            return {"metrics": evaluate_model(request)}
        if request["ranks"] == 1:
            _train(request)
        elif request["spread"]:
            _train_on_cluster(request)
        else:
            _train_on_ranks(request)
        evaluate_it = _evaluate_on_cluster if request["spread"] else evaluate_run
        return {"metrics": evaluate_it(request)}
    except Exception as error:
        logger.exception("a run raised")
        return _error(error)


def _error(error: Exception) -> Json:
    name = "" if isinstance(error, RankFailed) else f"{type(error).__name__}: "
    return {"error": f"{name}{error}", "refused": isinstance(error, ValueError)}


def _train(request: Json) -> None:
    config: TrainConfig = disk.from_plain(TrainConfig, request["config"])
    loop.train(disk.from_plain(Blend, request["blend"]), config, request["out"])


def evaluate_run(request: Json) -> Json:
    """The metrics of a trained run, by task. Its predictions are written."""
    config: TrainConfig = disk.from_plain(TrainConfig, request["config"])
    tasks = [disk.from_plain(TaskSpec, task) for task in request["tasks"]]
    weights: Weights = disk.from_plain(Weights, request["weights"])
    folder = RunLayout(request["out"]).predictions_of(weights)
    model, _ = averaging.load_weights(request["out"], weights)
    device = process_group.init_distributed(config.device).device
    metrics: Json = evaluate(model, tasks, folder, tokenizer=config.tokenizer, device=device)
    return metrics


def evaluate_model(request: Json) -> Json:
    """The metrics of a model that exists, by task. Its predictions and model.json are written."""
    tasks = [disk.from_plain(TaskSpec, task) for task in request["tasks"]]
    layout = RunLayout(request["out"])
    identity = model_identity(request["model"])
    model, _ = averaging.load_weights(request["model"], Weights())
    device = process_group.init_distributed(request["device"]).device
    metrics: Json = evaluate(model, tasks, layout.predictions, device=device)
    disk.write_json(layout.model_json, identity)  # last: the scores are whole
    return metrics


# --- several ranks --------------------------------------------------------------------------------


def _train_on_ranks(request: Json) -> None:
    """Train as processes of this machine. ValueError or RankFailed with the message of a rank."""
    ranks = request["ranks"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "request.json")
        disk.write_json(path, request)
        command = [sys.executable, "-m", "train.ablation.child", path]
        threads = str(max(1, request["threads"] // ranks))
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads}
        variables["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
        status = launch.launch_ranks(command, ranks, variables)
        if status == 0:
            return
        if status == console.EXIT_SAVED or status > 128:
            raise SystemExit(status)
        answers = []
        for rank in range(ranks):
            if disk.exists(_answer_path(path, rank)):
                answers.append(disk.read_json(_answer_path(path, rank)))
        for answer in answers:
            if answer["refused"]:
                raise ValueError(answer["error"].removeprefix("ValueError: "))
        if status < 0:
            name = signal.Signals(-status).name
            raise RankFailed(f"one of {ranks} ranks died by {name}")
        raise RankFailed(answers[0]["error"] if answers else f"a rank ended with {status}")


def _answer_path(request_path: str, rank: int) -> str:
    return f"{request_path}.rank-{rank}"


def train_as_rank(path: str) -> int:
    """Train the run of a request file as the rank that the environment names. The exit status.

    The process ends with its parent: a rank must not go on writing to the folder of a run that is
    tried again.
    """
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    rank = int(os.environ["RANK"])
    console.start_logging(logging.INFO if rank == 0 else logging.ERROR)
    try:
        _train(disk.read_json(path))
    except Exception as error:
        logger.exception("rank %d raised", rank)
        disk.write_json(_answer_path(path, rank), _error(error))
        return console.EXIT_MISTAKE if isinstance(error, ValueError) else console.EXIT_INCOMPLETE
    return 0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(console.EXIT_INCOMPLETE)


def _train_on_cluster(request: Json) -> None:
    """Train as workers of Ray Train, inside a task of the same cluster."""
    status = ray_train.start(
        _train_as_ray_worker, [json.dumps(request)], request["out"], request["ranks"]
    )
    if status:
        raise RankFailed(f"a worker of Ray Train failed (status {status}); its log says why")


def _train_as_ray_worker(arguments: list[str]) -> int:
    _train(json.loads(arguments[0]))
    return 0


def _evaluate_on_cluster(request: Json) -> Json:
    """Evaluate in a task that has a GPU of its own, where the cluster has GPUs."""
    import ray

    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(evaluate_run).options(num_cpus=1, num_gpus=gpus)
    metrics: Json = ray.get(task.remote(request))
    return metrics


# --- a warm process -------------------------------------------------------------------------------


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
