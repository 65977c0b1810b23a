#!/usr/bin/env python3
"""Measure a part of training on this machine, on any blend."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

import os

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in train/run.py

import argparse
import json

from train.benching import MODES
from train.data import ReadFailed
from train.running import count_rows, read_blend

EXAMPLE = """example:
  python train/bench.py --mode loader --data BLEND.yaml --model ViT-B-32 -b 256 --threads 1 \\
      -w 2 -i 20 --json

"""
EXIT_STATUS = console.exit_help(
    {0: "it is measured", console.EXIT_INCOMPLETE: "the data could not be read"}
)


def parser() -> argparse.ArgumentParser:
    """The command-line options: those of all modes, then those of each."""
    stages = "\n".join(f"mode {name}: {mode.__doc__}" for name, mode in MODES.items())
    parser = argparse.ArgumentParser(
        prog="train/bench.py",
        description=__doc__,
        epilog=f"{stages}\n{EXAMPLE}{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mode", choices=sorted(MODES), required=True, help="what is measured")
    parser.add_argument(
        "--data", required=True, metavar="BLEND", help="BLEND.yaml, or the blend.json of a run"
    )
    parser.add_argument("--model", default="ViT-B-32", help="architecture (default: ViT-B-32)")
    parser.add_argument(
        "-b", "--batch-size", type=int, default=256, metavar="N", help="samples of a batch"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings, as in train/run.py, such as read_cache=FOLDER",
    )
    for mode in MODES.values():
        mode.add_options(parser)
    parser.add_argument("--json", action="store_true", help="end with one JSON line on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, and print what was measured. The exit status 0 or 3."""
    mode, blend = MODES[args.mode], read_blend(args.data)
    count_rows(blend)  # its pools and views are there
    try:
        result = {"mode": args.mode, **mode.measure(blend, args)}
    except ReadFailed as error:
        console.print_error(f"error: {error}")
        return console.EXIT_INCOMPLETE
    if args.json:
        print(json.dumps(result, sort_keys=True))
    else:
        print("\n".join(mode.lines(result)))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 measured, 2 a mistake that one line explains, 3 the data could not be read."""
    args = parser().parse_args(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), stopped="nothing was written")


if __name__ == "__main__":
    raise SystemExit(main())
