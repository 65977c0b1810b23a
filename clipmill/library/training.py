"""Training and evaluation as functions: what `clipmill train` and `evaluate` run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clipmill.library.calls import guest
from clipmill.manifests import console, disk, reader
from clipmill.manifests.folder_lock import FolderInUse, locked_folder
from clipmill.manifests.layout import PoolLayout, RunLayout
from clipmill.manifests.records import RunRecord, read_document, read_part
from clipmill.manifests.schema import Blend, Suite, TaskSpec
from clipmill.train.config import TrainConfig, check_layout, configure, model_config, plain_changes
from clipmill.train.data.blends import (
    blend_of,
    count_rows,
    is_pool,
    plan_lines,
    read_blend,
    stream_of,
)
from clipmill.train.data.loader import RunLoader
from clipmill.train.evaluation.suite import SuiteResults
from clipmill.train.formats import model_files
from clipmill.train.parallel import process_group, ray_train
from clipmill.train.store import ReadFailed
from clipmill.train.trainer import loop

USED = "images: %s; captions: tokenizer %s"
logger = logging.getLogger("clipmill.library.train")


class RanksEnded(RuntimeError):
    """The processes of a run ended with another status than 0; the last checkpoint stays."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the ranks of the run ended with status {status}: see their last lines")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is asked for. settings: by name, over those of the preset. on_ray: ranks are
    workers of Ray Train."""

    blend: Blend
    preset: str | None
    settings: Mapping[str, Any]
    ranks: int
    resume: Literal["auto", "required", "never"]
    on_ray: bool = False

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"--ranks is {self.ranks}; it must be at least 1")

    def config(self) -> TrainConfig:
        """The settings of the run."""
        changed = dict(self.settings)
        if self.preset is not None:
            changed = {"preset": self.preset, **changed}
        return configure(changed, count_rows(self.blend))


def settings_of(changes: Sequence[str]) -> dict[str, Any]:
    """Settings by name of `KEY=VALUE` words; later ones win. ValueError for one without `=`."""
    values: dict[str, Any] = {}
    for key, value in console.key_values(changes):
        values |= plain_changes({key: value})
    return values


def blend_from(
    blend: str | None, mix: Sequence[str] | None, stream: Sequence[str] | None, seed: int | None
) -> Blend:
    """The blend of the command line. ValueError unless exactly one of BLEND, --mix and --stream is
    given.
    """
    if mix is not None:
        return blend_of(mix, seed or 0)
    if stream is not None:
        return stream_of(stream, seed or 0)
    if blend is None:
        raise ValueError("give either BLEND.yaml or --mix POOL/VIEW=WEIGHT, or --stream TAR")
    if seed is not None:
        raise ValueError("--seed goes with --mix; a blend file has its own seed")
    return read_blend(blend)


def train_model(
    blend: str | os.PathLike[str] | None = None, /, *, mix: Mapping[str, float] | None = None,
    stream: Sequence[str] | None = None, out: str | os.PathLike[str], preset: str | None = None,
    settings: Mapping[str, object] | None = None, seed: int | None = None, ranks: int = 1,
    ray: bool = False, resume: Literal["auto", "required"] = "auto", restart: bool = False
) -> RunRecord:  # fmt: skip
    """Train a CLIP on a blend of views; the same call resumes an interrupted run. Ctrl-C saves the
    run and raises KeyboardInterrupt.

    Args:
        blend: BLEND.yaml, or the blend.json of another run.
        mix: A blend without a file: {POOL/VIEW: weight}.
        stream: Tars, URLs or pipe:COMMAND that are read while the run trains.
        out: The folder of the run; an interrupted run is resumed.
        preset: Settings to start from.
        settings: {name: value} over those of the preset, such as {"lr": 5e-4}.
        seed: Of `mix` and `stream`: what is drawn when.
        ranks: Processes on this machine. Of more than one each is a process of its own.
        ray: Ranks are workers of Ray Train, anywhere on the cluster.
        resume: auto goes on from the newest checkpoint, or begins where there is none; required is
            an error where there is none.
        restart: Start again instead of resuming.

    Returns:
        The record of run.json.

    Raises:
        ValueError: The blend, a view or a setting cannot be trained on, or the folder holds
            another run or is in use; in one line, as the command prints it.
        RuntimeError: The loss was not finite, a store did not answer, or a rank ended.
    """
    with guest():
        words = None if mix is None else [f"{view}={weight}" for view, weight in mix.items()]
        path = None if blend is None else os.fspath(blend)
        if sum(each is not None for each in (path, words, stream)) > 1:
            raise ValueError("give one of a blend, mix and stream")
        options = RunOptions(
            blend=blend_from(path, words, stream, seed),
            preset=preset,
            settings=plain_changes(settings or {}),
            ranks=ranks,
            resume="never" if restart else resume,
            on_ray=ray,
        )
        folder = run_folder(os.fspath(out))
        return train_with(options, options.config(), folder)


def run_folder(out: str | None) -> str:
    """The folder of a run that can be written to. ValueError where there is none."""
    if out is None:
        raise ValueError("--out is missing: the folder of the run")
    out = disk.output_folder(out)
    if is_pool(out):
        raise ValueError(f"--out {out} is a pool; choose a folder for the run beside it")
    return out


def train_with(options: RunOptions, config: TrainConfig, out: str) -> RunRecord:
    """Train in a folder, here or as several ranks; config: that of the options. RanksEnded where
    these did not end well.
    """
    if options.ranks == 1 and not options.on_ray:
        return loop.train(options.blend, config, out, resume=options.resume)
    if status := start_ranks(options, config, out):
        raise RanksEnded(status)
    return read_document(RunLayout(out).run_json, RunRecord)


def attempt(options: RunOptions, out: str | None) -> RunRecord | int:
    """As `train_with` for a process that is the run's own: the record, or the exit status of a run
    that did not end well, after its line is printed.
    """
    folder = run_folder(out)
    config = options.config()  # a store that does not answer before the run began is no failed run
    try:
        return train_with(options, config, folder)
    except RanksEnded as error:
        return error.status
    except FolderInUse as error:  # its process may end without this run: a queue tries again
        if int(os.environ.get("RANK", "0")) == 0:
            console.mistake(str(error))
        return console.EXIT_SAVED
    except (loop.NonFinite, ReadFailed, OSError) as error:
        # Paths, rights and a full disk are for `console.run_command`.
        if isinstance(error, OSError) and error.errno in console.PATH_ERRORS:
            raise
        console.print_error(f"error: {error}")
        return console.EXIT_INCOMPLETE


def train_on_ray(request: Sequence[str]) -> int:
    """Train as the rank that a worker of Ray Train is; the exit status. request: the JSON of
    `start_ranks`.
    """
    rank, asked = int(os.environ.get("RANK", "0")), json.loads(request[0])
    console.start_logging(logging.INFO if rank == 0 else logging.ERROR)

    def train() -> int:
        options = RunOptions(
            blend=read_blend(asked["blend"]),
            preset=asked["preset"],
            settings=asked["settings"],
            ranks=1,
            resume=asked["resume"],
        )
        record = attempt(options, asked["out"])
        return record if isinstance(record, int) else 0

    return console.run_command(train)


def start_ranks(options: RunOptions, config: TrainConfig, out: str) -> int:
    """The same run as several processes on this machine, or on Ray's. Returns their exit status."""
    # Mistakes are found here once, and not by every rank.
    ranks = check_layout(config, options.ranks)
    RunLoader(options.blend, config, model_config(config), 0, ranks)
    layout = RunLayout(out)
    resumes = disk.exists(layout.run_json) or bool(disk.list_names(layout.checkpoints))
    if config.init is not None and (options.resume == "never" or not resumes):
        model_files.initial_weights(config.init, model_config(config))
    with locked_folder(layout.lock, "clipmill train", wait_s=loop.LOCK_WAIT_S):
        disk.write_json(layout.blend_json, options.blend.document())
    if options.on_ray:
        request = {
            "blend": layout.blend_json,
            "out": out,
            "preset": options.preset,
            "settings": options.settings,
            "resume": options.resume,
        }
        return _known(ray_train.start(train_on_ray, [json.dumps(request)], out, options.ranks))
    words = ["train", layout.blend_json, "--out", out]
    words += ["--preset", options.preset] if options.preset else []
    changes = []
    for name, value in options.settings.items():
        changes.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    words += ["--set", *changes] if changes else []
    words += ["--restart"] if options.resume == "never" else ["--resume", options.resume]
    return _known(process_group.launch_ranks(console.program(words), options.ranks))


def _known(status: int) -> int:
    """An exit status that a command ends with."""
    known = status in (0, console.EXIT_MISTAKE, console.EXIT_SAVED) or status > 128
    return status if known else console.EXIT_INCOMPLETE


def plan_of(options: RunOptions) -> list[str]:
    """What a run would draw, in lines."""
    config = options.config()
    ranks = check_layout(config, options.ranks)
    loader = RunLoader(options.blend, config, model_config(config), 0, ranks)
    return list(plan_lines(options.blend, loader.order.repeats(config.steps)))


# --- evaluation -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a model is worth. metrics: {task: {metric: value}}. predictions: the folder with a file
    of a row a sample for each task. used: the preprocessing and the tokenizer. suite: what became
    of every task of a suite. notes: of single tasks.
    """

    metrics: dict[str, dict[str, float]]
    predictions: str
    used: dict[str, Any]
    notes: dict[str, Any]
    suite: SuiteResults | None = None


def evaluate_model(
    model: str | os.PathLike[str],
    /,
    *,
    tasks: str | Sequence[str] = (),
    suite: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    average_last: int | None = None,
    device: str = "auto",
) -> Evaluation | None:
    """Evaluate a model on tasks; one Parquet file per task, one row per sample. The training pools
    of a run are searched for the tasks' images first.

    Args:
        model: A run, an open_clip or Hugging Face folder, open_clip:NAME/TAG, or a file of weights
            with its configuration beside it.
        tasks: Files with the name, kind, data … of a task each.
        suite: A file of many tasks: those whose data is there are evaluated.
        out: The folder of the predictions (default: eval/ inside the model's folder).
        average_last: The mean of the weights of its last N checkpoints.
        device: cpu or cuda (default: the best there is).

    Returns:
        What the model is worth; None on the ranks but the first one of torchrun.

    Raises:
        ValueError: A model, a task or its data is not as it must be, or images of a task are in
            the training pools; in one line, as the command prints it.
    """
    with guest():
        paths = (tasks,) if isinstance(tasks, str) else tasks
        if bool(paths) == (suite is not None):
            raise ValueError("give either tasks or a suite")
        if average_last is not None and average_last < 1:
            raise ValueError(f"--average-last is {average_last}; it must be at least 1")
        return _evaluate(
            os.fspath(model),
            [reader.read_manifest(path, TaskSpec) for path in paths],
            None if suite is None else reader.read_manifest(os.fspath(suite), Suite),
            None if out is None else os.fspath(out),
            average_last,
            device,
        )


def _evaluate(
    model: str,
    tasks: Sequence[TaskSpec],
    of_suite: Suite | None,
    out: str | None,
    average_last: int | None,
    device: str,
) -> Evaluation | None:
    from clipmill.train.evaluation import tasks as evaluating
    from clipmill.train.evaluation.suite import evaluate_suite, readable_tasks
    from clipmill.train.evaluation.tasks import on_rank_0
    from clipmill.train.parallel import checkpoint

    folder = model.removeprefix("local-dir:")
    if out is None and (model.startswith("open_clip:") or model_files.is_file(model)):
        raise ValueError(f"{model} has no folder for the predictions: name one with --out")
    # Weights that were averaged have a folder of their own.
    layout = RunLayout(folder)
    target = out or layout.predictions
    if out is None and average_last is not None:
        target = layout.averaged_predictions(average_last)
    if out or disk.exists(folder):  # before the model is loaded
        disk.output_folder(target)
    ranks = process_group.init_distributed(device)
    try:
        clip, which = checkpoint.load_weights(model, average_last)
        logger.info("%s: %s", model, which)
        used = evaluating.used_of(clip)
        logger.info(USED, used["images"], used["captions"])
        hashes = checkpoint.hashes_of(model, average_last)
        searched = tasks if of_suite is None else readable_tasks(of_suite.tasks)
        on_rank_0(ranks, lambda: check_overlap(folder, searched, target))
        where: dict[str, Any] = {"device": ranks.device, "ranks": ranks, "weights": hashes}
        if of_suite is not None:
            results = evaluate_suite(clip, of_suite, target, **where)
        else:
            metrics_of = evaluating.evaluate(clip, tasks, target, **where)
    finally:
        process_group.close(ranks)
    if ranks.rank > 0:
        return None
    if of_suite is not None:
        return Evaluation(
            metrics=results.metrics, predictions=target, used=used, notes={}, suite=results
        )
    notes = {}
    for name in metrics_of:
        notes[name] = disk.read_metadata(disk.join(target, f"{name}.parquet"))["notes"]
    return Evaluation(metrics=metrics_of, predictions=target, used=used, notes=notes)


def check_overlap(run: str, tasks: Sequence[TaskSpec], out: str) -> None:
    """Search the pools of a run for the tasks' images; all that is found goes to OUT/overlap.json.

    ValueError for byte-identical images of a task that does not allow them, and for near duplicates
    in a view of the run where the task refuses these. A model that is no run of ours has no known
    pools, so nothing is searched.
    """
    from clipmill.train.evaluation.overlap import (
        find_shared_images,
        overlap_lines,
        refuse_identical,
        refuse_near,
    )

    if not disk.exists(RunLayout(run).run_json):
        logger.info("%s has no run.json: its training pools are not known or searched", run)
        return
    blend = read_part(RunLayout(run).run_json, "blend")
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
    refuse_identical(shared, tasks, path)
    refuse_near(shared, tasks, views)
    for line in overlap_lines(shared, tasks, path):
        logger.info("%s", line)
