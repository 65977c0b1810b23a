#!/usr/bin/env python3
"""Write report.html and report.json of an ablation from its results, and print the tables.

With two folders: compare two ablations that asked the same of the same test set.
"""

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
import os

from manifests import disk
from manifests.layout import AblationLayout
from manifests.web_page import MARK
from train.reporting import (
    MARKDOWN_MARK,
    Report,
    collect_report,
    compare_reports,
    comparison_lines,
    render,
    render_comparison,
    report_lines,
    report_markdown,
)

EXAMPLE = """example:
  python train/report.py out/demo
  python train/report.py out/demo --markdown
  python train/report.py out/small out/large --page compared.html

The date on the page is today's, that of --date, or that of SOURCE_DATE_EPOCH; the JSON has none.

"""
EXIT_STATUS = console.exit_help(
    {
        0: "the report is written",
        console.EXIT_INCOMPLETE: "the report is written; a result or a view is missing",
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
    parser.add_argument("other", nargs="?", help="a second one, to compare the two")
    parser.add_argument(
        "--markdown", action="store_true", help="write report.md too, for a pull request"
    )
    parser.add_argument("--date", metavar="YYYY-MM-DD", help="the date that the page shows")
    parser.add_argument("--page", metavar="FILE", help="of two ablations: write the page here")
    parser.add_argument(
        "--json", action="store_true", help="end with the report as one JSON line on stdout"
    )
    return parser.parse_args(argv)


def date_of(text: str | None) -> datetime.date:
    """The date of the page: as given, of SOURCE_DATE_EPOCH, or today's. ValueError for no date."""
    if text is not None:
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            raise ValueError(f"--date {text!r} is no date; write it as 2026-01-31") from None
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return datetime.datetime.now(datetime.UTC).date()
    if not epoch.isdigit():
        raise ValueError(f"SOURCE_DATE_EPOCH is {epoch!r}; it must be seconds since 1970")
    return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()


def read(folder: str) -> Report:
    """The report of a folder. ValueError where it is no ablation's."""
    if not disk.exists(AblationLayout(folder).ablation_json):
        raise ValueError(
            f"{folder} has no ablation.json: give the --out of pipeline/build.py ABLATION"
        )
    return collect_report(folder)


def run(args: argparse.Namespace) -> int:
    """Collect, write and print the report. The exit status: 3 if runs have no result."""
    written = date_of(args.date)
    if args.other is not None:
        return run_comparison(args)
    if args.page is not None:
        raise ValueError("--page goes with two folders; the page of one is FOLDER/report.html")
    layout = AblationLayout(args.folder)
    disk.check_replaceable(layout.report, MARK.encode(), "folder:")
    if args.markdown:
        disk.check_replaceable(layout.report_markdown, MARKDOWN_MARK.encode(), "--markdown:")
    report = read(args.folder)
    disk.output_folder(args.folder, "folder")
    disk.write_json(layout.report_json, report)
    disk.write_bytes(layout.report, render(report, written).encode())
    print("\n".join(report_lines(report)))
    print(f"\nreport: {layout.report}")
    if args.markdown:
        path = layout.report_markdown
        disk.write_bytes(path, report_markdown(report, written).encode())
        print(f"summary: {path}")
    if args.json:
        print(json.dumps(disk.to_plain(report), sort_keys=True))
    return console.EXIT_INCOMPLETE if report.gaps else 0


def run_comparison(args: argparse.Namespace) -> int:
    """Compare two ablations, print it, and write it with --page."""
    if args.markdown:
        raise ValueError("--markdown goes with one folder")
    if args.page is not None:
        disk.check_replaceable(args.page, MARK.encode(), "--page")
    comparison = compare_reports(read(args.folder), read(args.other))
    print("\n".join(comparison_lines(comparison)))
    if args.page is not None:
        disk.write_bytes(args.page, render_comparison(comparison).encode())
        print(f"\npage: {args.page}")
    if args.json:
        print(json.dumps(disk.to_plain(comparison), sort_keys=True))
    return 0


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args), "run the command again")


if __name__ == "__main__":
    console.end_process(main)
