#!/usr/bin/env python3
"""Measure a part of training on this machine, and write the figures to a report."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import os

from clipmill.manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in clipmill train

import argparse
import dataclasses
import json
import logging
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from clipmill.bench import options
from clipmill.bench.comparison import (
    compare_reports,
    comparison_document,
    comparison_lines,
    replace_block,
)
from clipmill.bench.inference import INFER
from clipmill.bench.options import BenchOptions, Mode
from clipmill.bench.report import (
    check_target,
    commit,
    this_machine,
    torch_device,
    without_folders,
    write_report,
)
from clipmill.bench.report_form import Cell, Report, read_report
from clipmill.bench.tables import check_plot, write_plot
from clipmill.bench.training import LOADER, SCORE, TRAIN
from clipmill.manifests import disk
from clipmill.manifests.text import printable

EXAMPLE = """example:
  clipmill bench --mode train --model ViT-B-32 -n 1,2,4,8 -b 512 --dtype bf16 \\
      -i 100 -e 3 -o report.json --plot scaling.svg
  clipmill bench --compare a100.json h100.json
  clipmill bench --mode loader --data BLEND.yaml --model ViT-B-32 -b 256 \\
      --threads 1 -w 2 -i 20 -o loader.json

"""
EXIT_STATUS = console.exit_help(
    {0: "it is measured", console.EXIT_INCOMPLETE: "a part could not be measured; the rest is"}
)
MODES = {"infer": INFER, "loader": LOADER, "score": SCORE, "train": TRAIN}
logger = logging.getLogger("clipmill.bench")


def parser() -> argparse.ArgumentParser:
    """The command-line options: those of all modes, then those of each."""
    stages = "\n".join(f"mode {name}: {mode.about}" for name, mode in MODES.items())
    parser = argparse.ArgumentParser(
        prog="clipmill bench",
        description=__doc__,
        epilog=f"{stages}\n{EXAMPLE}{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--mode", choices=sorted(MODES), help="what is measured")
    options.add_shared_options(parser)
    for mode in MODES.values():
        if mode.add_options is not None:
            mode.add_options(parser)
    parser.add_argument(
        "-o", "--out", metavar="REPORT.json", help="the report; it is written after every part"
    )
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="draw samples/s against ranks, with the perfect line"
    )
    parser.add_argument("--json", action="store_true", help="end with the report as one line")
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="REPORT.json",
        help="measure nothing; show a report, or several beside each other with their ratios",
    )
    parser.add_argument(
        "--into", metavar="PAGE.md", help="with --compare: write it into a page, between comments"
    )
    return parser


def run(args: argparse.Namespace, given: BenchOptions, command: str) -> int:
    """Measure, write and print. The exit status 0 or 3."""
    mode = MODES[args.mode]
    report = Report(
        mode=args.mode,
        date=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        commit=commit(),
        machine=this_machine(torch_device(given.changes.get("device", "auto"))),
        options=given.plain(),
    )
    report = measure(mode, given, args, report)
    plotted = args.plot is None or draw(args.plot, report)
    if args.json:
        print(json.dumps(disk.to_plain(report), sort_keys=True))
    else:
        for line in mode.lines(report.cells):
            print(line)
    complete = report.ended and all(cell.measured for cell in report.cells)
    return 0 if complete and plotted else console.EXIT_INCOMPLETE


def draw(path: str, report: Report) -> bool:
    """Write the plot. False where too many cells have failed for it."""
    try:
        write_plot(path, report.cells)
    except ValueError as error:
        console.print_error(f"error: {error}")
        return False
    return True


def measure(mode: Mode, given: BenchOptions, args: argparse.Namespace, report: Report) -> Report:
    """The report with every cell; it is on disk after each of them."""
    cells: list[Cell] = []
    for cell in mode.cells(given, args):
        cells.append(cell)
        report = dataclasses.replace(report, cells=tuple(cells))
        if args.out is not None:
            write_report(args.out, report)
        if not cell.measured:
            console.print_error(f"error: {cell.reason} ({cell.label}: {cell.state})")
        else:
            logger.info("%s: measured", cell.label)
    report = dataclasses.replace(report, cells=tuple(cells), ended=True)
    if args.out is not None:
        write_report(args.out, report)
    return report


def show(args: argparse.Namespace, command: str) -> int:
    """Print one report, or compare several. The exit status 0."""
    reports = [checked_report(path) for path in args.compare]
    result = compare_reports([os.path.basename(path) for path in args.compare], reports)
    if args.plot is not None:
        if len(reports) > 1:
            raise ValueError("--plot draws one report; --compare names several")
        check_plot(args.plot)
        write_plot(args.plot, reports[0].cells)
    lines = comparison_lines(result)
    if len(reports) == 1:
        lines = [
            f"{reports[0].command}",
            *lines,
            "",
            *MODES[reports[0].mode].lines(reports[0].cells),
        ]
    lines = [printable(line) for line in lines]  # of files that others may have made
    if args.into is not None:
        replace_block(args.into, command, lines)
    elif args.json:
        print(json.dumps(comparison_document(result), sort_keys=True))
    else:
        print("\n".join(lines))
    return 0


def checked_report(path: str) -> Report:
    """A report whose cells have the figures that are shown. ValueError for another one."""
    report = read_report(path)
    if report.mode not in MODES:
        raise ValueError(f"{path} is of a mode {printable(report.mode)!r}, which is not known here")
    for cell in report.cells:
        for number, name in enumerate(MODES[report.mode].figures if cell.measured else ()):
            value = cell.figures.get(name)
            if value is None or value < 0 or (number == 0 and value == 0):
                raise ValueError(
                    f"{path} is damaged: {name} of {printable(cell.label)} is {value}, which a "
                    "measured cell must have"
                )
    return report


def refuse_others(
    parser: argparse.ArgumentParser, args: argparse.Namespace, rest: Sequence[str]
) -> None:
    """ValueError for an option beside --compare that would mean nothing."""
    if rest:
        raise ValueError(f"--compare measures nothing; leave {rest[0]} out")
    for action in parser._actions:
        used = action.dest in ("help", "compare", "into", "json", "plot")
        if not used and getattr(args, action.dest) != action.default:
            flag = action.option_strings[-1]
            raise ValueError(f"--compare measures nothing; leave {flag} out")
    if args.into is not None and args.json:
        raise ValueError("--into writes to a page, and --json to stdout; leave one of them out")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 measured, 2 a mistake that one line explains, 3 a part was not measured."""
    words = sys.argv[1:] if argv is None else argv
    of_command = parser()
    args, rest = of_command.parse_known_args(words)
    console.start_logging()

    def body() -> int:
        if args.compare is not None:
            refuse_others(of_command, args, rest)
            named = shlex.join(["clipmill", "bench", "--compare", *args.compare])
            return show(args, named)
        if args.mode is None:
            raise ValueError(f"--mode is missing: one of {', '.join(sorted(MODES))}; or --compare")
        if args.into is not None:
            raise ValueError("--into goes with --compare")
        options.refuse_unused(args, MODES[args.mode].unused)
        if args.out is not None:
            check_target(args.out)
        if args.plot is not None:
            check_plot(args.plot)
        flags = [flag for action in of_command._actions for flag in action.option_strings]
        given = options.read_options(args, rest, flags)
        if args.plot is not None and len(given.ranks) < 2:
            raise ValueError("--plot draws samples/s against ranks; give several, as in -n 1,2,4")
        shown = [without_folders(word) for word in words]
        return run(args, given, shlex.join(["clipmill", "bench", *shown]))

    return console.run_command(body, stopped="what is measured is in the report of -o")


if __name__ == "__main__":
    console.end_process(main)
