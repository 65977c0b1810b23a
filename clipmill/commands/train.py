"""`clipmill train`, `evaluate`, `weights`, `size` and `bench`: a model and the machines for it."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shlex
import signal
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter
from cyclopts.validators import LimitedChoice, MutuallyExclusive

from clipmill.commands.app import MORE, Json, Whole, Words, documented_by, make_app, print_json
from clipmill.library import training
from clipmill.manifests import console, disk, reader
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import RunRecord
from clipmill.manifests.schema import TaskSpec
from clipmill.train.config import (
    PRESETS,
    check_world,
    configure,
    format_settings,
)
from clipmill.train.formats import model_files
from clipmill.train.formats.onnx_export import OnnxOptions, save_onnx
from clipmill.train.trainer.open_clip_line import Translation, translate

logger = logging.getLogger("clipmill.commands.train")

# --- train ----------------------------------------------------------------------------------------

TRAIN = make_app(
    "train",
    """
  clipmill train --mix out/pool/all=1 --out out/run --preset micro \\
      --set lr=5e-4 seed=1
  clipmill train BLEND.yaml --out out/run --ranks 4
  torchrun --nproc-per-node 4 train/run.py BLEND.yaml --out out/run
  clipmill train --from-open-clip '--train-data tars/{0..9}.tar --model ViT-B-32 …'
""",
    {
        0: "the run is finished",
        console.EXIT_INCOMPLETE: "the run failed; the last checkpoint stays",
        console.EXIT_SAVED: "stopped by Ctrl-C, SIGTERM or a closed terminal and saved, or another "
        "process trains in the folder; run again to resume",
        128 + signal.SIGHUP: "the terminal was closed before the first step",
        128 + signal.SIGINT: "stopped by Ctrl-C before the first step, or by a second one",
        128 + signal.SIGTERM: "the same by SIGTERM",
    },
)
DATA = Group(
    "Data",
    help="One of BLEND, --mix and --stream.",
    validator=LimitedChoice(0, 1),
    sort_key=0,
)
START = Group("How it starts", validator=MutuallyExclusive(), sort_key=8)


@TRAIN.default
@documented_by("training", "train_model")
def train_run(
    blend: Annotated[str | None, Parameter(group=DATA)] = None,
    /,
    *,
    mix: Annotated[list[str] | None, Parameter(group=DATA), Words] = None,
    stream: Annotated[list[str] | None, Parameter(group=DATA), Words] = None,
    from_open_clip: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    out: str | None = None,
    preset: str | None = None,
    changes: Annotated[list[str], Parameter("--set"), Words] = [],  # noqa: B006
    seed: Annotated[int | None, Whole] = None,
    ranks: Annotated[int | None, Whole] = None,
    plan: bool = False,
    list_settings: bool = False,
    ray: Annotated[bool, Parameter(group=MORE)] = False,
    resume: Annotated[Literal["auto", "required"] | None, Parameter(group=START)] = None,
    restart: Annotated[bool, Parameter(group=START)] = False,
    as_json: Json = False,
) -> int:
    """Train a CLIP on a blend of views; the same command resumes an interrupted run.

    By default a run is saved every 15 minutes, at its end, and when SIGTERM or Ctrl-C stops it.

    Args:
        mix: A blend without a file: POOL/VIEW=WEIGHT …; RUN/blend.json has it afterwards.
        stream: Tars, URLs or pipe:COMMAND that are read while the run trains; it cannot be resumed.
        from_open_clip: A command line of open_clip's training, in quotes, or the file of a script
            with it, or its params.txt; BLEND, --mix or --stream
            beside it takes the place of its data. It is translated, and what changes is said.
        preset: Settings to start from; --list-settings names them.
        changes: Change settings: KEY=VALUE …; checkpoint_every=N saves every N steps.
        seed: Of --mix and --stream: what is drawn when.
        ranks: Processes on this machine; torchrun starts its own (default: 1).
        plan: Print what would be drawn, and end.
        list_settings: Print all presets and settings with their meaning, and end.
        resume: auto goes on from the newest checkpoint, or begins where there is none;
            required ends with status 2 (default: auto).
    """
    if list_settings:
        console.show(*format_settings().split("\n"), "", f"presets: {', '.join(PRESETS)}")
        return 0
    line: Translation | None = None
    if from_open_clip is not None:
        if preset is not None:
            raise ValueError(
                "--preset and --from-open-clip both say where settings start; give one"
            )
        if len(from_open_clip.split()) == 1 and disk.exists(from_open_clip):
            from_open_clip = disk.read_bytes(from_open_clip).decode()
        line = translate(from_open_clip, has_data=bool(blend or mix or stream), ranks=ranks)
        changes = [*line.changes, *changes]
        ranks, out = line.ranks, out or line.out
        logger.info("as settings here: --ranks %d --set %s", ranks, shlex.join(changes))
        for note in line.notes:
            logger.info("%s", note)
    data = line.blend if line and line.blend else training.blend_from(blend, mix, stream, seed)
    options = training.RunOptions(
        blend=data,
        preset=preset,
        settings=training.settings_of(changes),
        ranks=1 if ranks is None else ranks,
        resume="never" if restart else resume or "auto",
        on_ray=ray,
    )
    if plan:
        console.show(*training.plan_of(options))
        return 0
    return run(options, out, as_json)


def run(options: training.RunOptions, out: str | None, as_json: bool) -> int:
    """Train. Exit status 0, 3 (the run failed) or 75 (stopped and saved)."""
    rank = int(os.environ.get("RANK", "0"))
    layout = RunLayout(out or "")
    is_there = out is not None and disk.exists(layout.run_json) and disk.exists(layout.export)
    record = training.attempt(options, out)
    if isinstance(record, int):
        return record
    if rank == 0 and out is not None:
        log_end(out, record, is_there and options.resume != "never")
        print_json(record, as_json)
    return 0


def log_end(out: str, record: RunRecord, finished_before: bool) -> None:
    """Say where the result is, and what the next command would be."""
    layout = RunLayout(out)
    if finished_before:
        logger.info("%s was finished before: nothing was trained (--restart trains it anew)", out)
    logger.info(
        "%d steps are done; weights in %s, log in %s", record.steps, layout.export, layout.log
    )
    for name, source in record.sources.items():
        if source.get("skipped") or source.get("broken"):
            logger.warning(
                "stream %s: %d samples without image or caption were skipped, %d tars were broken; "
                "run.json has the counts",
                name,
                sum(source["skipped"].values()),
                source["broken"],
            )
    if record.bad.count:
        logger.warning("%d damaged samples were replaced; run.json names them", record.bad.count)
    logger.info("next: clipmill evaluate %s --task TASK.yaml", out)


# --- evaluate -------------------------------------------------------------------------------------

EVALUATE = make_app(
    "evaluate",
    """
  clipmill evaluate out/demo/runs/raw/seed-0 --task objects.yaml
  clipmill evaluate out/run --suite manifests/tasks/datacomp_38.yaml \\
      --average-last 2
  clipmill evaluate benchmark objects.yaml --to out/wds
  torchrun --nproc-per-node 4 train/evaluate.py out/run --task imagenet.yaml
""",
    {
        0: "every task whose data is there has its predictions and metrics",
        console.EXIT_INCOMPLETE: "a task of the suite failed; the others have theirs",
    },
)
TASKS = Group("Tasks", validator=LimitedChoice(1, 1), sort_key=0)


@EVALUATE.default
@documented_by("training", "evaluate_model")
def evaluate(
    model: str,
    /,
    *,
    task: Annotated[list[str] | None, Parameter(group=TASKS), Words] = None,
    suite: Annotated[str | None, Parameter(group=TASKS)] = None,
    out: str | None = None,
    average_last: Annotated[int | None, Whole, Parameter(group=MORE)] = None,
    device: Annotated[str, Parameter(group=MORE)] = "auto",
    as_json: Json = False,
) -> int:
    """
    Args:
        task: Files with the name, kind, data … of a task each.
    """
    done = training.evaluate_model(
        model, tasks=task or (), suite=suite, out=out, average_last=average_last, device=device
    )
    if done is None:  # another rank speaks
        return 0
    if done.suite is not None:
        console.show(*done.suite.lines(), "", f"predictions: {done.predictions}")
        print_json({**disk.to_plain(done.suite), "used": done.used}, as_json)
        return console.EXIT_INCOMPLETE if done.suite.failed else 0
    for name, metrics in done.metrics.items():
        values = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        console.show(f"{name}: {values}")
    console.show("", f"predictions: {done.predictions}")
    print_json({**done.metrics, "used": {**done.used, "notes": done.notes}}, as_json)
    return 0


@EVALUATE.command
def benchmark(tasks: Annotated[list[str], Parameter(required=True)], /, *, to: str) -> int:
    """Write each task to TO/TASK in CLIP_benchmark's webdataset layout. Nothing is evaluated.

    Args:
        tasks: Files with the name, kind, data … of a task each.
        to: The folder.
    """
    from clipmill.train.eval_data.samples import write_benchmark
    from clipmill.train.evaluation.tasks import read_samples

    for task in [reader.read_manifest(path, TaskSpec) for path in tasks]:
        out = disk.join(to, task.name)
        count = write_benchmark(read_samples(task), out, task.split)
        console.show(f"{task.name}: {count} images in CLIP_benchmark's layout: {out}")
    return 0


# --- weights --------------------------------------------------------------------------------------

WEIGHTS_STATUS = {0: "the folder is written and was read back, ONNX by onnxruntime if it is there"}
WEIGHTS = make_app(
    "weights",
    """
  clipmill weights out/run --to out/run_huggingface --format huggingface
  clipmill weights onnx out/run --to out/run_onnx --dtype fp16
""",
    WEIGHTS_STATUS,
)
HOW_TO_LOAD = {
    "open_clip": 'open_clip.create_model_and_transforms("local-dir:{}"), or --set init={}',
    "huggingface": 'transformers.CLIPModel.from_pretrained("{}"), or --set init={}',
    "onnx": 'onnxruntime.InferenceSession("{}/image.onnx"), and text.onnx in {}',
}
TOKENIZER_NOTE = (
    "transformers' tokenizer does not clean texts as open_clip's does: call html.unescape and"
    " ftfy.fix_text on them first, or curly quotes and the like get other tokens"
)
CROP_NOTE = (
    "transformers' image processor rounds half a pixel of the crop's margin down, open_clip's"
    " transform to even: some pictures are cropped one pixel apart, and their numbers differ a bit"
)
Source = Annotated[
    str,
    Parameter(
        help="A finished run, an open_clip or Hugging Face CLIP folder, or open_clip:NAME/TAG."
    ),
]


@WEIGHTS.default
def weights(
    model: Source,
    /,
    *,
    to: str,
    form: Annotated[Literal["open_clip", "huggingface"], Parameter("--format")] = "open_clip",
    as_json: Json = False,
) -> int:
    """Write a trained model, or one from elsewhere, as a folder of open_clip or Hugging Face.

    Args:
        to: A new folder for weights and configuration.
        form: open_clip is the format of RUN/export too.
    """
    disk.output_folder(to, "--to")
    clip = model_files.load_model(model)
    model_files.save_model(clip, to, form)
    return _print_written(clip, {"model": model, "to": to, "format": form}, as_json)


@WEIGHTS.command
def onnx(
    model: Source,
    /,
    *,
    to: str,
    dtype: Literal["fp32", "fp16"] = "fp32",
    text_length: Annotated[int | None, Whole] = None,
    pixels: Literal["normalised", "uint8"] = "normalised",
    as_json: Json = False,
) -> int:
    """Write both towers of a model as image.onnx and text.onnx.

    Args:
        to: A new folder.
        dtype: Of the weights; the embeddings are fp32.
        text_length: The tokens of every text (default: any number up to the context).
        pixels: Images are normalised (fp32, channels first, as open_clip's transform makes them) or
            uint8 (RGB, channels last, as decoded).
    """
    disk.output_folder(to, "--to")
    options = OnnxOptions(dtype=dtype, text_length=text_length, pixels=pixels)
    clip = model_files.load_model(model)
    differences = save_onnx(clip, to, options, model)
    written = {"model": model, "to": to, "format": "onnx", **dataclasses.asdict(options)}
    return _print_written(clip, {**written, "differences": differences}, as_json)


def _print_written(clip: Any, written: dict[str, Any], as_json: bool) -> int:
    """Say what was written and how it is loaded; the exit status 0."""
    values = clip.state_dict()
    written["parameters"] = sum(value.numel() for value in values.values())
    from clipmill.train.evaluation.tasks import used_of

    written |= used_of(clip)
    written["weights_sha256"] = model_files.weights_sha256(values)
    folder = written["to"]
    load = HOW_TO_LOAD[written["format"]].format(folder, folder)
    logger.info("%s: %s parameters; load it with %s", folder, f"{written['parameters']:,}", load)
    logger.info(training.USED, written["images"], written["captions"])
    if written["format"] == "huggingface":
        logger.info("%s", TOKENIZER_NOTE)
    crops_floor = clip.config.preprocess.crop_floor
    if written["format"] == "huggingface" or (written["format"] == "open_clip" and crops_floor):
        logger.info("%s", CROP_NOTE)
    if differences := written.get("differences"):
        logger.info(
            "largest difference to PyTorch in fp32: image %.2g, text %.2g",
            differences["image"],
            differences["text"],
        )
    print_json(written, as_json)
    return 0


# --- size -----------------------------------------------------------------------------------------

SIZE = make_app(
    "size",
    """
  clipmill size --model ViT-H-14 --device a100-80gb
  clipmill size --model ViT-L-14 --device h100-80gb --ranks 64 --batch 32768 \\
      --samples 12800000000 --set dp_shard=8
  clipmill size --preset datacomp_small --device a100-80gb --ranks 4 \\
      --set micro_batch=512
  clipmill size --model ViT-B-32 --device cpu --json
""",
    {0: "it fits", console.EXIT_INCOMPLETE: "it does not fit"},
)
MOST_LANES = 64
MOST_RANKS = 1_000_000


@SIZE.default
def size(
    *,
    model: str | None = None,
    preset: str | None = None,
    batch: Annotated[int | None, Whole] = None,
    device: str = "auto",
    ranks: Annotated[int, Whole] = 1,
    samples: Annotated[int | None, Whole] = None,
    changes: Annotated[list[str], Parameter("--set", group=MORE), Words] = [],  # noqa: B006
    utilisation: Annotated[float | None, Parameter(group=MORE)] = None,
    as_json: Json = False,
) -> int:
    """What a training run needs: memory, layout, micro-batch and time.

    Devices are those of train/sizing/devices.json, cpu (this machine), and auto (this machine's
    GPU, if it has one).

    Args:
        model: Such as ViT-B-32 or ViT-H-14.
        preset: Named settings to start from.
        batch: Samples of a step, of all ranks.
        device: Its name.
        ranks: Processes of the run.
        samples: Samples seen by the run.
        changes: Change settings: KEY=VALUE …; precision, recompute, micro_batch, dp_shard and tp
            are chosen unless they are set.
        utilisation: Of the device's peak (default: of published runs of the nearest model).
    """

    from clipmill.train.sizing.advice import advise, requirement_lines, requirements
    from clipmill.train.sizing.device_fit import device_of, estimated_speed

    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"--ranks is {ranks}; it must be at least 1, at most {MOST_RANKS:,}")
    if samples is not None and samples < 1:
        raise ValueError(f"--samples is {samples}; it must be at least 1")
    stated = _stated(model, batch, changes)
    base: dict[str, Any] = {} if preset is None else {"preset": preset}
    if batch is not None:
        # The length of a run is no matter of its step.
        given = configure(base).samples_seen
        rest = {"lanes": math.gcd(MOST_LANES, batch), "warmup": 0}
        base |= {**rest, "samples_seen": max(samples or given, batch)}
    config = configure({**base, **stated})
    sheet = device_of(device, utilisation, ranks)
    advice = advise(config, ranks, sheet, set(stated))
    check_world(advice.config, ranks // advice.config.tp)
    speed = estimated_speed(advice.config, ranks, sheet, advice.fit)
    samples = samples or config.steps * config.batch_size
    needs = requirements(advice, ranks, sheet, speed, samples=samples)
    console.show(*requirement_lines(needs))
    print_json(needs, as_json)
    return 0 if advice.fit.fits else console.EXIT_INCOMPLETE


def _stated(model: str | None, batch: int | None, changes: Sequence[str]) -> dict[str, Any]:
    """The settings that a command line states. ValueError for what no run can have."""
    stated: dict[str, Any] = {}
    if model is not None:
        stated["model"] = model
    if batch is not None:
        if batch < 1:
            raise ValueError(f"--batch is {batch}; it must be at least 1")
        stated["batch_size"] = batch
    for key, value in console.key_values(changes):
        if key == "device":
            raise ValueError("device is a setting that --device decides; leave it out")
        if key in stated:
            raise ValueError(f"{key} is set twice; leave one of them out")
        stated[key] = value
    return stated


# --- bench ----------------------------------------------------------------------------------------

BENCH = App(name="bench", help_flags=[], version_flags=[])


@BENCH.default
def bench(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Measure a part of training on this machine, and write the figures to a report.

    Args:
        words: The options of benchmarks/trainer/bench.py.
    """
    from clipmill.bench.bench import main

    return main(list(words))
