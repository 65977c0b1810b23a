#!/usr/bin/env python3
"""Write report.html and report.json of an ablation from the files that its runs left, and print the tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import disk
from train.reporting import page, results

EXAMPLE = """example:
  python train/report.py out/demo
"""


def lines(report: Mapping[str, Any]) -> list[str]:
    """Funnels and arms as text for a terminal."""
    text = []
    for funnel in report["funnels"]:
        text.append(
            f"{funnel['title']}: "
            + " > ".join(f"{name} {count:,}" for name, count in funnel["steps"])
        )
    for funnel in report["funnels"]:
        if funnel["reasons"]:
            lost = sorted(funnel["reasons"].items(), key=lambda x: -x[1])
            text.append(
                f"{funnel['title']}, not kept: " + ", ".join(f"{name} {n:,}" for name, n in lost)
            )
    for task in report["tasks"]:
        text += ["", *_table(report, task)]
    if report["null_web"]:
        null = report["null_web"]
        text += [
            "",
            f"{null['name']}: {null['question']}",
            *_table(null, null["tasks"][0]),
            null["verdict"],
        ]
    return text


def _table(report: Mapping[str, Any], task: Mapping[str, Any]) -> list[str]:
    sizes = {arm["arm"]: arm for arm in report["arms"]}
    head = f"{task['task']}, {task['metric']}"
    text = [f"{head:<30}{'pairs':>8}{'repeats':>9}{'mean ± SD, %':>16}   to {report['baseline']}"]
    for row in task["rows"]:
        arm, difference = sizes[row["arm"]], row["difference"]
        spread = f"{100 * row['mean']:.1f} ± {100 * row['sd']:.1f}"
        told = ""
        if difference:
            low, high = 100 * difference["low"], 100 * difference["high"]
            told = f"{100 * difference['mean']:+.1f} [{low:+.1f}, {high:+.1f}]  {difference['verdict']}"
        text.append(
            f"{row['arm']:<30}{arm['rows']:>8,}{arm['repeats']:>9.1f}{spread:>16}   {told}".rstrip()
        )
    return text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="train/report.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="what train/ablate.py wrote")
    parser.add_argument(
        "--json", action="store_true", help="end with the report as one JSON line on stdout"
    )
    args = parser.parse_args(argv)
    try:
        if not disk.exists(disk.join(args.folder, "ablation.json")):
            raise ValueError(
                f"{args.folder} holds no ablation.json: give the --out of pipeline/build.py ABLATION"
            )
        report = results.collect(args.folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    disk.write_json(disk.join(args.folder, "report.json"), report)
    disk.write_bytes(disk.join(args.folder, "report.html"), page.render(report).encode())
    print(
        "\n".join(
            [
                *lines(report),
                "",
                report["verdict"],
                "",
                f"report: {disk.join(args.folder, 'report.html')}",
            ]
        )
    )
    if args.json:
        print(json.dumps(report, sort_keys=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
