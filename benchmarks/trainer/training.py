"""The modes train, score and loader: steps of training and of scoring, and the loader alone.

The timed steps are those of a run, in ranks of their own (steps.py). The stages of the loader add
up to the processor time of the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from clipmill.bench.cells import measured_cells, read_data
from clipmill.bench.options import SYNTHETIC, BenchOptions, Mode
from clipmill.bench.report_form import Cell, Layout
from clipmill.bench.steps import AHEAD
from clipmill.bench.tables import figure_lines, scaling_lines
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.data.damage import StageTimes
from clipmill.train.data.loader import RunLoader
from clipmill.train.store import ReadFailed

# --- training -------------------------------------------------------------------------------------


def train_cells(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """Every combination of the lists, one after another."""
    return measured_cells(options, "train", trains=True)


def train_lines(cells: Sequence[Cell]) -> list[str]:
    """The figures of every cell, then the tables of weak and strong scaling."""
    return [*figure_lines(cells), *scaling_lines(cells)]


TRAIN = Mode(
    about="""\
Training steps: throughput, step time, memory, and how they scale with the ranks.

Every cell runs in processes of its own, as clipmill train starts them (gloo on a processor, nccl on
GPUs), and takes the trainer's own step. A cell that fails, by memory or by a layout that is not
possible, is reported with the reason, and the others go on.
""",
    figures=("samples_per_s",),
    cells=train_cells,
    lines=train_lines,
)

# --- scoring --------------------------------------------------------------------------------------


def score_cells(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """Every combination of the lists, one after another. ValueError for what trains alone."""
    if "micro_batch" in options.changes:
        raise ValueError("micro_batch is a setting of training; set the batch by -b")
    return measured_cells(options, "score", trains=False)


def score_lines(cells: Sequence[Cell]) -> list[str]:
    """The figures of every cell, the share of synthetic, then the table of scaling."""
    shares = []
    for cell in cells:
        share = cell.figures.get("share_of_synthetic")
        if share is not None:
            synthetic = cell.figures.get("synthetic_samples_per_s") or 0.0
            shares.append(
                f"{cell.label}: {share:.2f} of the {synthetic:,.1f} samples/s of synthetic"
            )
    return [*figure_lines(cells), *(["", *shares] if shares else []), *scaling_lines(cells)]


SCORE = Mode(
    about="""\
Scoring: both towers' forward on decoded images and captions, as a CLIP score takes it.

With --data the samples are those of a blend, a view or tars, through the loader, and every repeat
is measured on synthetic samples too: the share of synthetic says what reading costs. Ranks score by
themselves, each in a process of its own.
""",
    unused=("global_batch", "parallel"),
    figures=("samples_per_s",),
    cells=score_cells,
    lines=score_lines,
)

# --- the loader -----------------------------------------------------------------------------------

STAGES = ("read", "fetch", "decode", "resize", "collate")


def add_loader_options(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    parser.add_argument("--threads", type=int, help="decoding threads of a rank (default: 4)")


def loader_cells(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """The rate of a loader and the time of its stages, without its first batches."""
    if options.data == SYNTHETIC:
        raise ValueError(
            "--data is missing: mode loader reads a blend, as in --data BLEND.yaml; of synthetic "
            "data nothing is read"
        )
    blend = read_data(options.data)
    threads = {} if args.threads is None else {"threads": str(args.threads)}
    for model, batch in itertools.product(options.models, options.batches):
        config = _loader_config(options, model, batch, threads)
        same: dict[str, Any] = {"ranks": 1, "batch": batch, "global_batch": batch}
        same |= {"model": model, "dtype": "", "data": f"blend {blend.name}"}
        try:
            yield _loader_cell(blend, config, options, same)
        except ReadFailed as error:
            yield Cell(**same, state="failed", reason=str(error))


def _loader_config(
    options: BenchOptions, model: str, batch: int, threads: dict[str, str]
) -> TrainConfig:
    steps = options.warmup + options.repeats * max(1, options.iterations_of(batch)) + AHEAD
    changed = {**options.changes, **threads, "device": "cpu"}
    given = dataclasses.replace(options, changes=changed)
    return given.config(model, "fp32", batch, Layout(name="dp"), 1, steps)


def _loader_cell(
    blend: Blend, config: TrainConfig, options: BenchOptions, same: dict[str, Any]
) -> Cell:
    iterations = options.iterations_of(config.batch_size)
    if iterations < 1:
        raise ValueError(
            f"num_examples {options.num_examples} is less than one batch of {config.batch_size}"
        )
    times = StageTimes()
    loader = RunLoader(blend, config, model_config(config), times=times)
    batches = loader.batches()
    started = time.perf_counter()
    rates = []
    try:
        next(batches)
        first_s = time.perf_counter() - started
        for _ in range(options.warmup - 1):
            next(batches)
        times.clear()
        damaged, cpu, began = 0, time.process_time(), time.perf_counter()
        for _ in range(options.repeats):
            wall = time.perf_counter()
            for batch in itertools.islice(batches, iterations):
                damaged += batch.damaged
            rates.append(iterations * config.batch_size / (time.perf_counter() - wall))
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    finally:
        batches.close()
    samples = options.repeats * iterations * config.batch_size
    stages = {stage: times.cpu_s[stage] for stage in STAGES}
    stages["other"] = max(0.0, cpu_s - sum(stages.values()))
    stages["wait"] = max(0.0, times.wall_s["read"] - times.cpu_s["read"])
    figures: dict[str, float | None] = {
        "threads": config.threads,
        "samples": samples,
        "damaged": damaged,
        "first_batch_s": first_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "samples_per_s": samples / wall_s,
        "samples_per_cpu_s": samples / cpu_s,
    }
    figures |= {f"{stage}_ms": 1000 * seconds / samples for stage, seconds in stages.items()}
    return Cell(**same, figures=figures, rates=tuple(rates))


def loader_lines(cells: Sequence[Cell]) -> list[str]:
    """What a person reads of the cells."""
    text = []
    for cell in cells:
        if not cell.measured:
            continue
        values = {name: value or 0.0 for name, value in cell.figures.items()}
        text += [
            f"{cell.data}: {values['samples']:,.0f} samples of {cell.model} in batches of "
            f"{cell.batch} with {values['threads']:.0f} threads, after a first batch in "
            f"{values['first_batch_s']:.2f} s",
            f"{values['samples_per_s']:,.0f} samples/s, {values['samples_per_cpu_s']:,.0f} samples "
            "for a second of processor time",
        ]
        for stage in (*STAGES, "other", "wait"):
            text.append(f"  {stage:<8}{values[f'{stage}_ms']:>8.3f} ms")
        if values["damaged"]:
            text.append(f"{values['damaged']:,.0f} damaged samples were replaced")
    return text


LOADER = Mode(
    about="""\
How fast a blend becomes batches on this machine, and where the time goes. No model is built.

The stages, in milliseconds for a sample, of all threads together:

read     the processor time of the decoding threads for the bytes of local tars
fetch    that of the threads that read ahead from a store, or that read streams
decode   bytes to pixels
resize   the crop, in the size of the model
collate  positions, random numbers and tokens of a batch
other    what is left of the process: its columns, the client of a store, Python
wait     by the clock: decoding threads wait for bytes that are on their way
""",
    unused=("ranks", "global_batch", "dtype", "parallel"),
    figures=(
        "samples_per_s", "samples_per_cpu_s", "samples", "threads", "first_batch_s", "damaged",
        *(f"{stage}_ms" for stage in (*STAGES, "other", "wait")),
    ),
    add_options=add_loader_options,
    cells=loader_cells,
    lines=loader_lines,
)  # fmt: skip
