#!/usr/bin/env python3
"""Write report.html and report.json of an ablation from its results, and print the tables."""

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
import datetime
import json

from manifests import disk
from manifests.pool_layout import AblationLayout
from train.reporting import collect_report, render, report_lines

EXAMPLE = """example:
  python train/report.py out/demo

"""
EXIT_STATUS = console.exit_help(
    {
        0: "the report is written",
        console.EXIT_INCOMPLETE: "the report is written; some run has no result",
    }
)


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train/report.py",
        description=__doc__,
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="the --out of train/ablate.py")
    parser.add_argument(
        "--json", action="store_true", help="end with the report as one JSON line on stdout"
    )
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Collect, write and print the report. The exit status: 3 if runs have no result."""
    layout = AblationLayout(args.folder)
    if not disk.exists(layout.ablation_json):
        raise ValueError(
            f"{args.folder} has no ablation.json: give the --out of pipeline/build.py ABLATION"
        )
    disk.output_folder(args.folder, "folder")
    report = collect_report(args.folder)
    page = render(report, datetime.datetime.now(datetime.UTC).date())
    disk.write_json(layout.report_json, report)
    disk.write_bytes(layout.report, page.encode())
    print("\n".join(report_lines(report)))
    print(f"\nreport: {layout.report}")
    if args.json:
        print(json.dumps(disk.to_plain(report), sort_keys=True))
    return console.EXIT_INCOMPLETE if report.gaps else 0


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), "run the command again")


if __name__ == "__main__":
    raise SystemExit(main())
