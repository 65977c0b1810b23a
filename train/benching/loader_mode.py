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
import itertools
import math
import os
import time
from typing import Any

from manifests.schema import Blend
from train.config import TrainConfig, configure, model_config
from train.data import StageTimes
from train.running import open_loader

STAGES = ("read", "fetch", "decode", "resize", "collate")
MOST_LANES = 64
AHEAD = 8  # batches after the last that counts: as many are read ahead at the end as at the start


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    parser.add_argument("--threads", type=int, default=4, help="decoding threads (default: 4)")
    parser.add_argument(
        "-w", "--warmup", type=int, default=2, metavar="N", help="batches that do not count"
    )
    parser.add_argument(
        "-i", "--iterations", type=int, default=20, metavar="N", help="batches that count"
    )


def settings(args: argparse.Namespace) -> TrainConfig:
    """The settings of a run of so many batches. ValueError for what no run can have."""
    for name in ("batch_size", "warmup", "iterations"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}; it must be at least 1")
    values: dict[str, Any] = {
        "model": args.model,
        "batch_size": args.batch_size,
        "lanes": math.gcd(MOST_LANES, args.batch_size),
        "samples_seen": args.batch_size * (args.warmup + args.iterations + AHEAD),
        "warmup": 0,
        "threads": args.threads,
        "device": "cpu",
    }
    for change in args.set:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not KEY=VALUE")
        values[key.strip()] = value.strip()
    return configure(values)


def measure(blend: Blend, args: argparse.Namespace) -> dict[str, Any]:
    """The rate of a loader and the time of its stages, without its first batches."""
    config, times = settings(args), StageTimes()
    loader = open_loader(blend, config, model_config(config), times=times)
    batches = loader.batches()
    started = time.perf_counter()
    try:
        next(batches)
        first_s = time.perf_counter() - started
        for _ in range(args.warmup - 1):
            next(batches)
        times.clear()
        samples = damaged = 0
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in itertools.islice(batches, args.iterations):
            samples += len(batch.keys)
            damaged += batch.damaged
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        batches.close()
    stages = {stage: times.cpu_s[stage] for stage in STAGES}
    stages["other"] = max(0.0, cpu_s - sum(stages.values()))
    waited = max(0.0, times.wall_s["read"] - times.cpu_s["read"])
    return {
        "blend": blend.name,
        "model": config.model,
        "batch_size": config.batch_size,
        "threads": config.threads,
        "processors": os.cpu_count(),
        "samples": samples,
        "damaged": damaged,
        "first_batch_s": first_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "samples_per_s": samples / wall_s,
        "samples_per_cpu_s": samples / cpu_s,
        "ms_per_sample": {
            **{stage: 1000 * seconds / samples for stage, seconds in stages.items()},
            "wait": 1000 * waited / samples,
        },
    }


def lines(result: dict[str, Any]) -> list[str]:
    """What a person reads of the result."""
    text = [
        f"blend {result['blend']}: {result['samples']:,} samples of {result['model']} with "
        f"{result['threads']} threads, after a first batch in {result['first_batch_s']:.2f} s",
        f"{result['samples_per_s']:,.0f} samples/s, {result['samples_per_cpu_s']:,.0f} samples "
        "for a second of processor time",
    ]
    for stage, cost in result["ms_per_sample"].items():
        text.append(f"  {stage:<8}{cost:>8.3f} ms")
    if result["damaged"]:
        text.append(f"{result['damaged']:,} damaged samples were replaced")
    return text
