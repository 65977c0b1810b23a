#!/usr/bin/env python3
"""Which small run, and which metric of it, orders twelve datasets as a large run does.

example:
  clipmill demo manifests/ablations/cifar10_scales.yaml --scales small medium repeats \\
      --out out/scales
  python benchmarks/studies/scales.py collect out/scales/scales/small out/scales/scales/medium \\
      out/scales
  python benchmarks/studies/scales.py table
  clipmill decide examples/cifar10_scales.parquet --task cifar10
  python benchmarks/studies/scales.py collect out/scales/scales/repeats out/scales \\
      --to examples/cifar10_scales_repeats.parquet

`collect` keeps the metrics of each run, in examples/cifar10_scales.parquet without --to. `table`
writes that of docs/statistics.md from it. `again` evaluates the exported models of an ablation on
the tasks of the manifest as it is now, without training: it writes an ablation of models into OUT
and runs it, or goes on with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from clipmill.commands.app import main as clipmill
from clipmill.manifests import disk, reader
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.schema import Ablation
from clipmill.verdict import wording
from clipmill.verdict.decide.verdicts import Question, decide
from clipmill.verdict.measurements import Measurements
from clipmill.verdict.stats.scales import ScaleDecision
from clipmill.verdict.tables.reader import read_results

MANIFEST = ROOT / "manifests" / "ablations" / "cifar10_scales.yaml"
DATA = ROOT / "examples" / "cifar10_scales.parquet"
PAGE = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- table of benchmarks/studies/scales.py -->", "<!-- end of the table -->"
NAMED = ("accuracy", "logprob_t")
METRICS = {
    "cifar10": ("accuracy", "logprob_t", "logprob", "margin"),
    "pairs": ("recall@1", "mean_rank", "contrastive_loss_t", "contrastive_loss"),
}


def again(folder: str, out: str) -> int:
    """Evaluate the models of an ablation's folder in `out`. The exit status of clipmill ablate."""
    stored = disk.read_json(AblationLayout(folder).ablation_json)
    tasks = [disk.to_plain(task) for task in reader.read_manifest(MANIFEST, Ablation).evaluate]
    arms = {}
    for arm in stored["arms"]:
        arms[arm] = {"model": RunLayout(f"{folder}/runs/{arm}/seed-{{seed}}").export}
    manifest = {
        "name": f"cifar10_scales_{Path(folder).name}",
        "question": stored["question"],
        "arms": arms,
        "evaluate": [{k: v for k, v in task.items() if v} for task in tasks],
        **{key: stored[key] for key in ("baseline", "seeds", "primary", "equivalence", "train")},
    }
    path = disk.join(out, "again.json")
    disk.write_json(path, manifest)
    return clipmill(["ablate", path, "--out", out])


def collect(folders: list[str], to: Path) -> None:
    """The metrics of each run at some scales, a row for each."""
    rows = []
    for folder in folders:
        layout = AblationLayout(folder)
        samples = reader.read_manifest(layout.ablation_json, Ablation).train["samples_seen"]
        measurements = Measurements.read(layout.measurements)
        columns = ["arm", "seed", "task", "metric", "value"]
        for arm, seed, task, metric, value in measurements.rows(columns):
            if metric in METRICS.get(task, ()):
                rows.append((arm, seed, int(samples), task, metric, value))
    names = ("arm", "seed", "samples_seen", "task", "metric", "value")
    rows.sort(key=lambda row: (row[2], list(METRICS).index(row[3]), METRICS[row[3]].index(row[4])))
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, to, compression="zstd")
    print(f"{to}: {table.num_rows:,} values, {to.stat().st_size:,} bytes")


def table() -> str:
    """The table of docs/statistics.md: a row for each metric and smaller scale."""
    rows = decide(read_results([str(DATA)]), Question(task="cifar10")).scales
    truth = rows[0].truth
    lines = [
        f"| metric | small scale | as {truth[1]} at {rows[0].large} | as itself there "
        "| of the pairs that are clear there | decided, right | abstains | sure on average "
        "| runs for 90 % |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        if one.truth != truth:
            continue
        itself = [
            row
            for row in rows
            if (row.task, row.metric, row.small) == (one.task, one.metric, one.small)
            and row.truth == (row.task, row.metric)
        ]
        own = itself[0].agreement
        clear, stated = one.clear, one.stated
        sure = f"{one.probability:.0%}".replace("%", " %") if one.probability is not None else ""
        cells = (
            wording.column_name(one.task, one.metric),
            f"{int(one.small):,} x {one.seeds}",
            f"{one.agreement.alike} of {one.agreement.pairs}, {wording.share_text(one.agreement)}",
            f"{own.alike} of {own.pairs}",
            f"{clear.alike} of {clear.pairs}" if clear else "",
            f"{stated.pairs}, {stated.alike}" if stated else "none",
            wording.abstained(one),
            sure,
            one.seeds_for_sure or "none",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", calibration(rows, truth)])


def write_table() -> None:
    """Put the table into docs/statistics.md."""
    text = PAGE.read_text()
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:before]}\n{table()}\n{text[after:]}")
    print(f"{PAGE}: written anew; the sentences below the table are by hand")


def calibration(rows: Sequence[ScaleDecision], truth: tuple[str, str]) -> str:
    """How often pairs of each stated probability are right, by the two metrics that were named
    before the first run.
    """
    counts: dict[float, list[int]] = {}
    for one in rows:
        for begin, pairs in one.bins if one.truth == truth and one.metric in NAMED else ():
            count = counts.setdefault(begin, [0, 0])
            count[0] += pairs.pairs
            count[1] += pairs.alike
    parts = [f"{100 * begin:.0f} %: {right} of {n}" for begin, (n, right) in sorted(counts.items())]
    return (
        "Right among the pairs of accuracy and `logprob_t`, by the probability that was stated, "
        f"from {', from '.join(parts)}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("again", help="evaluate exported models on the present tasks")
    verb.add_argument("folder", help="the --out of an ablation")
    verb.add_argument("out")
    verb = verbs.add_parser("collect", help="write the metrics of each run into one file")
    verb.add_argument("folders", nargs="+", help="the --out of each scale")
    verb.add_argument("--to", type=Path, default=DATA)
    verbs.add_parser("table", help="write the table into docs/statistics.md")
    args = parser.parse_args()
    if args.verb == "table":
        write_table()
        return 0
    if args.verb == "again":
        return again(args.folder, args.out)
    collect(args.folders, args.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
