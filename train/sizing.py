#!/usr/bin/env python3
"""What a training run needs: the memory of its step on a device, the micro-batch, the hours."""

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
from typing import Any

from manifests import disk
from train.capacity import (
    GIB,
    device_of,
    estimated_speed,
    fit,
    remedies,
    sample_flops,
    unfit_message,
)
from train.config import PRESETS, TrainConfig, configure
from train.hardware import own_sheets
from train.model import MODELS

EXAMPLE = f"""example:
  python train/sizing.py --model ViT-H-14 --device a100-80gb
  python train/sizing.py --preset datacomp_small --device a100-80gb --ranks 4 --set micro_batch=512

devices: {", ".join(own_sheets())}, cpu (this machine), auto (this machine's GPU, if it has one)

"""
EXIT_STATUS = console.exit_help({0: "it fits", console.EXIT_INCOMPLETE: "it does not fit"})


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/sizing.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="such as ViT-B-32 or ViT-H-14")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="named settings to start from")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings, as in train/run.py; micro_batch is auto unless it is set",
    )
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="see below (default: auto)"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes of the run")
    parser.add_argument(
        "--utilisation", type=float, metavar="SHARE", help="of the device's peak (GPU 0.2, CPU 0.7)"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def settings(args: argparse.Namespace) -> TrainConfig:
    """The settings of the command line. ValueError for what no run can have."""
    changes: dict[str, Any] = {"micro_batch": "auto"}
    if args.preset is not None:
        changes["preset"] = args.preset
    if args.model is not None:
        if args.model not in MODELS:
            close = disk.did_you_mean(args.model, MODELS)
            raise ValueError(f"there is no model {args.model!r}{close} (of {', '.join(MODELS)})")
        changes["model"] = args.model
    for change in args.set:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not KEY=VALUE")
        changes[key.strip()] = value.strip()
    return configure(changes)


def run(args: argparse.Namespace) -> int:
    """Print the memory of a step, part by part, and the time of the run. The exit status."""
    if args.ranks < 1:
        raise ValueError(f"--ranks is {args.ranks}; it must be at least 1")
    config = settings(args)
    device = device_of(args.device, args.utilisation, args.ranks)
    result = fit(config, args.ranks, device)
    speed = estimated_speed(config, args.ranks, device, result)
    samples = config.steps * config.batch_size
    memory = disk.to_plain(result.memory)
    pieces = "all at once"
    if result.micro_batch is not None:
        pieces = f"in micro-batches of {result.micro_batch:,}"
    print(f"{config.model}, {result.samples:,} samples a rank {pieces}, on {device.name}")
    for name, size in memory.items():
        print(f"  {name:<12}{size / GIB:>10,.2f} GiB")
    print(f"  {'needed':<12}{result.needed / GIB:>10,.2f} GiB of {device.memory / GIB:,.2f}")
    print(
        f"  {sample_flops(config) / 1e9:,.1f} GFLOP a sample, {speed.samples_per_s:,.0f} samples/s"
    )
    print(f"  {speed.hours(samples):,.1f} hours for {samples:,} samples ({speed.source})")
    ways = [] if result.fits else remedies(config, args.ranks, device)
    if ways:
        print(f"it does not fit: {unfit_message(result)}; {'; '.join(ways)}")
    if args.json:
        document = {
            "fits": result.fits,
            "hours": speed.hours(samples),
            "memory": memory,
            "micro_batch": result.micro_batch,
            "needed": result.needed,
            "remedies": ways,
            "samples_per_s": speed.samples_per_s,
        }
        print(json.dumps(document, sort_keys=True))
    return 0 if result.fits else console.EXIT_INCOMPLETE


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status: 0 it fits, 2 for a mistake, 3 it does not fit."""
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


if __name__ == "__main__":
    raise SystemExit(main())
