#!/usr/bin/env python3
"""Put reports of `clipmill bench --mode infer` together: the results file and docs/inference.md.

example: python benchmarks/latency.py b32.json micro.json
Without a report the tables are written again from the results that are there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from clipmill.bench.comparison import replace_block
from clipmill.bench.inference import infer_lines
from clipmill.bench.report_form import Report, read_report
from clipmill.manifests import console, disk

RESULTS = ROOT / "benchmarks/results/latency_cpu.json"
PAGE = ROOT / "docs/inference.md"
COMMAND = "benchmarks/latency.py"


def tables(reports: Sequence[Report]) -> list[str]:
    """What was measured on, then the tables of all reports."""
    lines = []
    for report in reports:
        machine, versions = report.machine, report.machine.versions
        lines.append(
            f"{report.date[:10]}, {machine.device}, {machine.cores} cores,"
            f" torch {versions.get('torch')}, {report.options['repeats']} repeats of"
            f" {report.options['iterations']} calls"
        )
        lines += infer_lines(report.cells)
    return lines[:-1]


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 written, 2 a file that is no report of this mode."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="*", metavar="REPORT.json")
    args = parser.parse_args(argv)

    def body() -> int:
        if args.reports:
            plain = []
            for path in args.reports:
                report = read_report(path)
                if report.mode != "infer":
                    raise ValueError(f"{path} is a report of mode {report.mode}; give one of infer")
                words = [os.path.basename(word) or word for word in report.command.split()]
                words[1] = report.command.split()[1]  # the program; no other folder is kept
                plain.append(disk.to_plain(report) | {"command": " ".join(words)})
            disk.write_json(RESULTS, {"reports": plain})
        reports = []
        for value in disk.read_json(RESULTS)["reports"]:
            reports.append(disk.from_plain(Report, value))
        replace_block(str(PAGE), COMMAND, tables(reports))
        return 0

    return console.run_command(body)


if __name__ == "__main__":
    raise SystemExit(main())
