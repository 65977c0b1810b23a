#!/usr/bin/env python3
"""What a training run needs: memory, layout, micro-batch, time, money and storage."""

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
import math
from typing import Any

from manifests import disk
from train.capacity import (
    Advice,
    Cell,
    Device,
    PoolSize,
    Speed,
    advise,
    computed_flops,
    device_of,
    estimated_speed,
    own_sheets,
    parse_layout,
    pool_size,
    processor_name,
    read_report,
    requirement_lines,
    requirements,
)
from train.config import PRESETS, TrainConfig, check_world, configure
from train.model import MODELS, training_flops

EXAMPLE = f"""examples:
  python train/sizing.py --model ViT-H-14 --device a100-80gb
  python train/sizing.py --model ViT-L-14 --device h100-80gb --ranks 64 --batch 32768 \\
      --samples 12800000000 --price 2.5
  python train/sizing.py --preset datacomp_small --device a100-80gb --ranks 4 --set micro_batch=512
  python train/sizing.py --model ViT-B-32 --device cpu --measured report.json --json

devices: {", ".join(own_sheets())}, cpu (this machine), auto (this machine's GPU, if it has one),
FILE.json or FILE.json:NAME (in the form of train/capacity/devices.json)

"""
EXIT_STATUS = console.exit_help({0: "it fits", console.EXIT_INCOMPLETE: "it does not fit"})
MOST_LANES = 64
MOST_RANKS = 1_000_000


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/sizing.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="such as ViT-B-32 or ViT-H-14")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="named settings to start from")
    parser.add_argument("--batch", type=int, metavar="N", help="samples of a step, of all ranks")
    parser.add_argument(
        "--parallel",
        metavar="NAME",
        help="dp; fsdp (all ranks share one copy) or fsdpN; tpN; tpN+fsdpN (default: what fits)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings, as in train/run.py; precision, recompute, micro_batch, dp_shard and "
        "tp are chosen unless they are set",
    )
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="see below (default: auto)"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes of the run")
    _add_speed_options(parser)
    _add_pool_options(parser)
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser.parse_args(argv)


def _add_speed_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--utilisation",
        type=float,
        metavar="SHARE",
        help="of the device's peak (default: of published runs of the nearest model)",
    )
    parser.add_argument(
        "--measured",
        metavar="REPORT",
        help="a report that benchmarks/trainer/bench.py --mode train wrote on this kind of device",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="samples seen by the run")
    parser.add_argument("--price", type=float, metavar="MONEY", help="of a device-hour")


def _add_pool_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of a pool to store")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="default: 256")
    parser.add_argument(
        "--bandwidth", type=float, metavar="MBIT", help="Mbit/s of the download of the pool"
    )


# --- what is asked --------------------------------------------------------------------------------


def settings(args: argparse.Namespace) -> tuple[TrainConfig, set[str]]:
    """The settings of the command line, and the names of those that it states.

    ValueError for what no run can have.
    """
    stated: dict[str, Any] = {}
    if args.model is not None:
        if args.model not in MODELS:
            close = disk.did_you_mean(args.model, MODELS)
            raise ValueError(f"there is no model {args.model!r}{close} (of {', '.join(MODELS)})")
        stated["model"] = args.model
    if args.batch is not None:
        if args.batch < 1:
            raise ValueError(f"--batch is {args.batch}; it must be at least 1")
        stated["batch_size"] = args.batch
    if args.parallel is not None:
        layout = parse_layout(args.parallel)
        stated["dp_shard"], stated["tp"] = layout.shards(args.ranks), layout.tp
    for change in args.set:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not KEY=VALUE")
        if key.strip() == "device":
            raise ValueError("device is a setting that --device decides; leave it out")
        if key.strip() in stated:
            raise ValueError(f"{key.strip()} is set twice; leave one of them out")
        stated[key.strip()] = value.strip()
    base = {} if args.preset is None else {"preset": args.preset}
    if args.batch is not None:
        # The length of a run is no matter of its step.
        given = configure(base).samples_seen
        rest = {"lanes": math.gcd(MOST_LANES, args.batch), "warmup": 0}
        base |= {**rest, "samples_seen": max(args.samples or given, args.batch)}
    return configure({**base, **stated}), set(stated)


def _check(args: argparse.Namespace) -> None:
    """ValueError for numbers that no run has, and for options that would be ignored."""
    if not 1 <= args.ranks <= MOST_RANKS:
        raise ValueError(f"--ranks is {args.ranks}; it must be at least 1, at most {MOST_RANKS:,}")
    if args.samples is not None and args.samples < 1:
        raise ValueError(f"--samples is {args.samples}; it must be at least 1")
    if args.price is not None and not 0 < args.price < math.inf:
        raise ValueError(f"--price is {args.price}; it must be above 0")
    if args.measured is not None and args.utilisation is not None:
        raise ValueError("--measured and --utilisation both state the speed; leave one of them out")
    for name in ("image_size", "bandwidth"):
        if args.pairs is None and getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is about a pool; state its pairs with --pairs")


def _pool(args: argparse.Namespace) -> PoolSize | None:
    if args.pairs is None:
        return None
    size = 256 if args.image_size is None else args.image_size
    return pool_size(args.pairs, size, args.bandwidth)


# --- a speed that was measured --------------------------------------------------------------------


def measured_speed(path: str, advice: Advice, ranks: int, device: Device) -> Speed:
    """The speed that a report of benchmarks/trainer/bench.py gives for a run.

    A cell of the same model, text length and precision counts as it is, for each rank; of these the
    one whose ranks, layout and batch are nearest. Else the share of the peak that the nearest model
    reached counts. ValueError for a report of another device, without a cell of the mode train, or
    of a model that is not known here.
    """
    report = read_report(path)
    name = report.machine.device
    is_same = report.machine.kind == "cpu" if device.kind == "cpu" else device.is_called(name)
    if not is_same:
        raise ValueError(f"{path} was measured on {name}, not on {device.name}; change --device")
    cells = [cell for cell in report.cells if cell.measured and cell.rates]
    config = advice.config
    cells = [cell for cell in cells if cell.dtype == config.precision]
    if report.mode != "train" or not cells:
        raise ValueError(
            f"{path} has no speed of training in {config.precision} (mode {report.mode}); measure "
            "it: python benchmarks/trainer/bench.py --mode train --dtype "
            f"{config.precision.replace('_', '-')}"
        )
    flops = computed_flops(config, pieces=advice.fit.micro_batch is not None)
    length = report.options.get("text_length")

    def is_same_model(cell: Cell) -> bool:
        known = MODELS[cell.model].context_length
        return cell.model == config.model and (length or known) == (config.context_length or known)

    def distance(cell: Cell) -> tuple[float, float, bool, float]:
        """How far a cell is from the run: by model, ranks, layout and samples of a rank."""
        work = _measured_flops(cell, length, path)
        far = 0.0 if is_same_model(cell) else 1 + abs(math.log(work / flops))
        layout = parse_layout(cell.parallel)
        is_other = (layout.shards(cell.ranks) > 1, layout.tp) != (config.dp_shard > 1, config.tp)
        samples = cell.global_batch / cell.ranks
        return (
            far,
            abs(math.log(cell.ranks / ranks)),
            is_other,
            abs(math.log(samples * ranks / config.batch_size)),
        )

    cell = min(cells, key=distance)
    rate = sum(cell.rates) / len(cell.rates)
    if device.kind != "cpu":  # ranks share a processor, and each has a GPU of its own
        rate *= ranks / cell.ranks
    source = f"measured for {cell.label}"
    if device.kind == "cpu" and name != processor_name():
        source += f", on {name}"
    if device.kind != "cpu" and ranks != cell.ranks:
        source += f", times {ranks:,}/{cell.ranks:,} ranks"
    if not is_same_model(cell):
        work = _measured_flops(cell, length, path)
        rate *= work / flops
        source += f", at the same operations a second, {flops / work:.3g} x as many a sample"
    return Speed(samples_per_s=rate, source=source)


def _measured_flops(cell: Cell, text_length: int | None, path: str) -> float:
    """Operations of a sample of a cell. ValueError for a model that is not known here."""
    model = MODELS.get(cell.model)
    if model is None:
        raise ValueError(f"{path} measured a model {cell.model!r}, which is not known here")
    return training_flops(model).sample(text_length or model.context_length)


def run(args: argparse.Namespace) -> int:
    """Print what the run needs. The exit status."""
    _check(args)
    config, stated = settings(args)
    device = device_of(args.device, args.utilisation, args.ranks)
    advice = advise(config, args.ranks, device, stated)
    check_world(advice.config, args.ranks // advice.config.tp)
    if args.measured is not None:
        speed = measured_speed(args.measured, advice, args.ranks, device)
    else:
        speed = estimated_speed(advice.config, args.ranks, device, advice.fit)
    samples = args.samples or config.steps * config.batch_size
    needs = requirements(
        advice, args.ranks, device, speed, samples=samples, price=args.price, pool=_pool(args)
    )
    print("\n".join(requirement_lines(needs)))
    if args.json:
        print(json.dumps(disk.to_plain(needs), sort_keys=True))
    return 0 if needs.fits else console.EXIT_INCOMPLETE


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status: 0 it fits, 2 for a mistake, 3 it does not fit."""
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


if __name__ == "__main__":
    console.end_process(main)
