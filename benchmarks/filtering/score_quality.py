#!/usr/bin/env python3
"""How well scores tell right captions from wrong ones, where the truth is known.

example: clipmill export POOL raw --to rows.parquet
         python benchmarks/filtering/score_quality.py rows.parquet --truth truth.csv \\
             --name cifar10 --columns clip_score clip_dfn near_size:low

rows.parquet has url, caption and the scores of the stored rows. truth.csv (or .parquet) has url,
caption and good: 1 where the caption is right. `:low` behind a column: low values are good.
For each score: the area under the ROC curve, the average precision, and at shares of the rows that
a top() rule would keep the threshold, the precision (share of the kept rows that are good) and the
recall (share of the good rows that are kept). Ties at a threshold are kept, as a rule keeps them. A
row without a score is never kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clipmill.manifests import disk

RESULTS = ROOT / "benchmarks/results/score_quality.json"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHOWN = (0.1, 0.3, 0.5, 0.7)
KEY = ["url", "caption"]
LOW = ":low"


def read_truth(path: str) -> pa.Table:
    """url, caption and good, one row a pair. ValueError where a pair is both."""
    table = pq.read_table(path) if path.endswith(".parquet") else pyarrow.csv.read_csv(path)
    table = table.select([*KEY, "good"]).set_column(2, "good", pc.cast(table["good"], pa.bool_()))
    counts = table.group_by(KEY).aggregate([("good", "min"), ("good", "max")])
    both = pc.sum(pc.not_equal(counts["good_min"], counts["good_max"])).as_py()
    if both:
        raise ValueError(f"{path} calls {both} pairs both good and not")
    return counts.select([*KEY, "good_min"]).rename_columns([*KEY, "good"])


def join_truth(rows: pa.Table, truth: pa.Table) -> pa.Table:
    """The rows whose pair the truth knows, with `good`. ValueError where it knows none."""
    joined = rows.join(truth, keys=KEY, join_type="inner")
    if not len(joined):
        raise ValueError("the truth knows none of these rows; do url and caption agree?")
    return joined


def quality(values: NDArray[np.float64], good: NDArray[np.bool_]) -> dict[str, Any]:
    """Figures of one score. values: (rows,) NaN where there is none; high values are good."""
    has_score = ~np.isnan(values)
    ranked = np.where(has_score, values, -np.inf)
    order = np.argsort(-ranked, kind="stable")
    ordered, hits = ranked[order], np.cumsum(good[order])
    total, kept = int(good.sum()), np.arange(1, len(good) + 1)
    last_of_tie = np.append(ordered[1:] != ordered[:-1], True)  # a threshold keeps all of a tie
    precision, recall = hits[last_of_tie] / kept[last_of_tie], hits[last_of_tie] / total
    false = (kept - hits)[last_of_tie] / (len(good) - total)
    points = []
    for share in SHARES:
        threshold = ordered[int(np.ceil(share * len(good))) - 1]
        if not np.isfinite(threshold):
            continue  # fewer rows than that have a score
        keep = ranked >= threshold
        points.append(
            {
                "share": share,
                "threshold": float(threshold),
                "kept": float(keep.mean()),
                "precision": float(good[keep].mean()),
                "recall": float(good[keep].sum() / total),
            }
        )
    return {
        "scored": int(has_score.sum()),
        "auc": float(np.trapezoid(np.append(0, recall), np.append(0, false))),
        "average_precision": float(np.sum(np.diff(recall, prepend=0) * precision)),
        "points": points,
    }


def measure(rows: str, truth: str, columns: Sequence[str]) -> dict[str, Any]:
    """The figures of some columns of a Parquet file."""
    names = [column.removesuffix(LOW) for column in columns]
    table = pq.read_table(rows, columns=[*KEY, *dict.fromkeys(names)])
    joined = join_truth(table, read_truth(truth))
    good = joined["good"].to_numpy(zero_copy_only=False).astype(bool)
    if good.all() or not good.any():
        raise ValueError("all of these rows are good, or none is")
    scores = {}
    for column, name in zip(columns, names, strict=True):
        values = pc.cast(joined[name], pa.float64()).to_numpy(zero_copy_only=False)
        scores[column] = quality(-values if column.endswith(LOW) else values, good)
    return {"rows": len(joined), "of": len(table), "good": float(good.mean()), "scores": scores}


def markdown(results: dict[str, Any]) -> str:
    """A table for each data set: areas, and precision and recall at the shares."""
    parts = []
    for name, result in sorted(results.items()):
        parts.append(
            f"{name}: {result['rows']:,} rows, {100 * result['good']:.1f} % of the captions "
            f"are right; measured {result['date']}.\n\n"
            "| score | area under ROC | average precision | "
            + " | ".join(f"{100 * share:.0f} %" for share in SHOWN)
            + " |\n|---|---:|---:|"
            + "---:|" * len(SHOWN)
        )
        for score, figures in result["scores"].items():
            cells = {round(point["share"], 2): point for point in figures["points"]}
            texts = []
            for share in SHOWN:
                point = cells.get(share)
                if point is None:
                    texts.append("")
                    continue
                texts.append(f"{100 * point['precision']:.1f} / {100 * point['recall']:.1f}")
            areas = f"{figures['auc']:.3f} | {figures['average_precision']:.3f}"
            parts.append(f"| {score} | {areas} | " + " | ".join(texts) + " |")
        parts.append("")
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="?", help="a Parquet file with the scores of a pool")
    parser.add_argument("--truth", help="a table of url, caption and good")
    parser.add_argument("--name", help="of the data set in the results")
    parser.add_argument("--columns", nargs="+", default=[])
    parser.add_argument("--out", default=str(RESULTS))
    args = parser.parse_args(argv)
    out = Path(args.out)
    results: dict[str, Any] = disk.read_json(out) if out.exists() else {}
    if args.rows:
        if not (args.truth and args.name and args.columns):
            parser.error("--truth, --name and --columns go with the rows")
        result = measure(args.rows, args.truth, args.columns)
        results[args.name] = {**result, "date": date.today().isoformat()}
        disk.write_json(out, results)
        print(markdown({args.name: results[args.name]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
