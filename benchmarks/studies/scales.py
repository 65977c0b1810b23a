#!/usr/bin/env python3
"""Which small run, and which metric of it, orders twelve datasets as a large run does.

example:
  clipmill demo manifests/ablations/cifar10_scales.yaml --scales small medium --out out/scales
  python benchmarks/studies/scales.py collect out/scales/scales/small out/scales/scales/medium \\
      out/scales
  clipmill decide examples/cifar10_scales.parquet --metric accuracy

`collect` keeps the metrics of each run in examples/cifar10_scales.parquet. `again` evaluates the
exported models of an ablation on the tasks of the manifest as it is now, without training: it
writes an ablation of models into OUT and runs it, or goes on with it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from clipmill.app import main as clipmill
from manifests import disk, reader
from manifests.layout import AblationLayout, RunLayout
from manifests.schema import Ablation

MANIFEST = ROOT / "manifests" / "ablations" / "cifar10_scales.yaml"
DATA = ROOT / "examples" / "cifar10_scales.parquet"
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


def collect(folders: list[str]) -> None:
    """examples/cifar10_scales.parquet, from the results of each scale."""
    rows = []
    for folder in folders:
        layout = AblationLayout(folder)
        samples = reader.read_manifest(layout.ablation_json, Ablation).train["samples_seen"]
        runs = disk.read_json(layout.results_json)["runs"]
        for arm, seeds in runs.items():
            for seed, tasks in seeds.items():
                for task, names in METRICS.items():
                    for name in names:
                        value = tasks[task][name]
                        rows.append((arm, int(seed), int(samples), task, name, value))
    names = ("arm", "seed", "samples_seen", "task", "metric", "value")
    rows.sort(key=lambda row: (row[2], list(METRICS).index(row[3]), METRICS[row[3]].index(row[4])))
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, DATA, compression="zstd")
    print(f"{DATA}: {table.num_rows:,} values, {DATA.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("again", help="evaluate exported models on the present tasks")
    verb.add_argument("folder", help="the --out of an ablation")
    verb.add_argument("out")
    verb = verbs.add_parser("collect", help="write examples/cifar10_scales.parquet")
    verb.add_argument("folders", nargs="+", help="the --out of each scale")
    args = parser.parse_args()
    if args.verb == "again":
        return again(args.folder, args.out)
    collect(args.folders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
