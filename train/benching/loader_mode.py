"""How fast a blend becomes batches on this machine, and where the time goes. No model is built.

The stages, in milliseconds for a sample, of all threads together:

read     the processor time of the decoding threads for the bytes of local tars
fetch    that of the threads that read ahead from a store, or that read streams
decode   bytes to pixels
resize   the crop, in the size of the model
collate  positions, random numbers and tokens of a batch
other    what is left of the process: its columns, the client of a store, Python
wait     by the clock: decoding threads wait for bytes that are on their way
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from manifests.schema import Blend
from train.benching.data import read_data
from train.benching.options import SYNTHETIC, BenchOptions, Layout
from train.benching.report import Cell
from train.config import TrainConfig, model_config
from train.data import ReadFailed, StageTimes
from train.trainer import open_loader

STAGES = ("read", "fetch", "decode", "resize", "collate")
AHEAD = 8  # batches after the last that counts: as many are read ahead at the end as at the start
UNUSED: tuple[str, ...] = ("ranks", "global_batch", "dtype", "parallel")
FIGURES: tuple[str, ...] = (
    "samples_per_s", "samples_per_cpu_s", "samples", "threads", "first_batch_s", "damaged",
    *(f"{stage}_ms" for stage in (*STAGES, "other", "wait")),
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    parser.add_argument("--threads", type=int, help="decoding threads of a rank (default: 4)")


def measure(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """The rate of a loader and the time of its stages, without its first batches."""
    if options.data == SYNTHETIC:
        raise ValueError(
            "--data is missing: mode loader reads a blend, as in --data BLEND.yaml; of synthetic "
            "data nothing is read"
        )
    blend = read_data(options.data)
    threads = {} if args.threads is None else {"threads": str(args.threads)}
    for model, batch in itertools.product(options.models, options.batches):
        config = _config(options, model, batch, threads)
        same: dict[str, Any] = {"ranks": 1, "batch": batch, "global_batch": batch}
        same |= {"model": model, "dtype": "", "data": f"blend {blend.name}"}
        try:
            yield _cell(blend, config, options, same)
        except ReadFailed as error:
            yield Cell(**same, state="failed", reason=str(error))


def _config(options: BenchOptions, model: str, batch: int, threads: dict[str, str]) -> TrainConfig:
    steps = options.warmup + options.repeats * max(1, options.iterations_of(batch)) + AHEAD
    changed = {**options.changes, **threads, "device": "cpu"}
    given = dataclasses.replace(options, changes=changed)
    return given.config(model, "fp32", batch, Layout(name="dp"), 1, steps)


def _cell(blend: Blend, config: TrainConfig, options: BenchOptions, same: dict[str, Any]) -> Cell:
    iterations = options.iterations_of(config.batch_size)
    if iterations < 1:
        raise ValueError(
            f"num_examples {options.num_examples} is less than one batch of {config.batch_size}"
        )
    times = StageTimes()
    loader = open_loader(blend, config, model_config(config), times=times)
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


def lines(cells: Sequence[Cell]) -> list[str]:
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
