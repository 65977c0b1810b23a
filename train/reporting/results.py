"""An ablation's folder as one dictionary: every number of the report, from the files that the runs left behind.

Metrics are computed again from the per-sample predictions; nothing is copied from a summary. Shares are in 0..1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from manifests import disk
from manifests.schema import Ablation, TaskSpec
from train.ablation import conclude, runner, stats
from train.evaluation import HEADLINE
from train.reporting import gallery

Json = dict[str, Any]


def collect(out: str) -> Json:
    """The report dictionary of an ablation's folder (page.render shows it). ValueError where runs are missing."""
    ablation: Ablation = disk.from_plain(Ablation, disk.read_json(disk.join(out, "ablation.json")))
    seen: dict[str, str] = {}  # files that numbers come from -> sha256
    runs = _runs(out, ablation, seen)
    hits = {task.name: _predictions(out, runs, task, seen) for task in ablation.evaluate}
    values = {
        task: {
            arm: {seed: _headline(x) for seed, x in by_seed.items()}
            for arm, by_seed in found.items()
        }
        for task, found in hits.items()
    }
    told = conclude(ablation, values)
    compared = {(row["task"], row["arm"]): row for row in told["comparisons"]}
    views = gallery.open_views(runs)
    first = next(iter(runs[ablation.baseline].values()))
    return {
        "name": ablation.name,
        "question": ablation.question,
        "baseline": ablation.baseline,
        "primary": ablation.primary,
        "equivalence": ablation.equivalence,
        "seeds": list(ablation.seeds),
        "samples_seen": first["config"]["samples_seen"],
        "verdict": told["verdict"],
        "arms": [
            _arm(arm, ablation, runs[arm], values, compared, told["aa"], views) for arm in runs
        ],
        "tasks": [
            _task(
                task,
                ablation,
                hits[task.name],
                values[task.name],
                compared,
                disk.join(first["folder"], "eval", f"{task.name}.parquet"),
            )
            for task in ablation.evaluate
        ],
        "curves": list(_curves(out, runs, seen)),
        "funnels": gallery.funnels(views),
        "histograms": gallery.histograms(views),
        "gallery": gallery.shots(views, ablation.baseline),
        "overlap": gallery.overlap(views),
        "controls": told["controls"],
        "aa": told["aa"],
        "null_web": _null_web(out, ablation),
        "costs": _costs(out),
        "provenance": _provenance(out, runs, seen),
    }


def note(path: str, out: str, seen: dict[str, str]) -> str:
    """Remember a file's sha256 under its path inside `out`; gives the path back."""
    seen[path.removeprefix(out.rstrip("/") + "/")] = hashlib.sha256(
        disk.read_bytes(path)
    ).hexdigest()
    return path


# --- runs ----------------------------------------------------------------------------------------------------------


def _runs(out: str, ablation: Ablation, seen: dict[str, str]) -> dict[str, dict[int, Json]]:
    """run.json of every run and where it lies: {arm: {seed of the ablation: …}}."""
    runs: dict[str, dict[int, Json]] = {
        ablation.baseline: {}
    }  # first, whatever the order of the arms
    for run in runner.expand(ablation, out, built=False):
        path = disk.join(run.out, "run.json")
        if not disk.exists(path):
            raise ValueError(
                f"{path} is not there: run python train/ablate.py {out}/ablation.json --out {out} first"
            )
        runs.setdefault(run.arm, {})[run.pair] = {
            **disk.read_json(note(path, out, seen)),
            "folder": run.out,
        }
    return runs


def _predictions(
    out: str, runs: Mapping[str, Mapping[int, Json]], task: TaskSpec, seen: dict[str, str]
) -> dict[str, dict[int, list[np.ndarray]]]:
    """{arm: {seed: boolean arrays}}: one array of hits per direction, samples in the order of the file."""
    return {
        arm: {
            seed: _hits(
                disk.read_parquet(
                    note(disk.join(run["folder"], "eval", f"{task.name}.parquet"), out, seen)
                ),
                task,
            )
            for seed, run in by_seed.items()
        }
        for arm, by_seed in runs.items()
    }


def _hits(table: Any, task: TaskSpec) -> list[np.ndarray]:
    if task.kind == "classification":
        return [table["correct"].to_numpy()]
    first = table["rank"].to_numpy() == 0
    direction = np.asarray(table["direction"].to_pylist())
    return [first[direction == d] for d in ("image_to_text", "text_to_image")]


def _headline(hits: list[np.ndarray]) -> float:
    return float(np.mean([h.mean() for h in hits]))


def _curves(
    out: str, runs: Mapping[str, Mapping[int, Json]], seen: dict[str, str]
) -> Iterator[Json]:
    for arm, by_seed in runs.items():
        for seed, run in by_seed.items():
            path = note(disk.join(run["folder"], "log.jsonl"), out, seen)
            lines = [json.loads(line) for line in disk.read_bytes(path).decode().splitlines()]
            yield {
                "arm": arm,
                "seed": seed,
                "points": [[x["samples"], x["loss"], x["accuracy"]] for x in lines],
            }


# --- tables --------------------------------------------------------------------------------------------------------


def _difference(row: Mapping[str, Any] | None) -> Json | None:
    if row is None:
        return None
    return {
        "mean": row["difference"],
        **{k: row[k] for k in ("low", "high", "p", "p_holm", "mde", "verdict")},
    }


def _arm(
    arm: str,
    ablation: Ablation,
    runs: Mapping[int, Json],
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
    compared: Mapping[tuple[str, str], Json],
    aa: Json | None,
    views: list[gallery.ArmView],
) -> Json:
    sources = next(iter(runs.values()))["sources"]
    rows = sum(s["rows"] for s in sources.values())
    drawn = sum(s["drawn"] for s in sources.values())
    return {
        "arm": arm,
        "role": _role(arm, ablation),
        "view": " + ".join(sources),
        "rows": rows,
        "share": rows / max(1, sum(int(v.stored.sum()) for v in views if v.arm == arm)),
        "drawn": drawn,
        "repeats": drawn / max(1, rows),
        "metrics": {task: _spread(v[arm]) for task, v in values.items()},
        "difference": _difference(
            aa if arm == runner.A_A else compared.get((ablation.primary, arm))
        ),
    }


def _role(arm: str, ablation: Ablation) -> str:
    if arm == runner.A_A:
        return "a_a"
    if arm == ablation.baseline:
        return "baseline"
    return "arm" if arm in ablation.arms else "random"


def _spread(values: Mapping[int, float]) -> Json:
    found = stats.spread(list(values.values()))
    return {"mean": found.mean, "sd": found.sd, "values": {str(k): v for k, v in values.items()}}


def _task(
    task: TaskSpec,
    ablation: Ablation,
    hits: Mapping[str, Mapping[int, list[np.ndarray]]],
    values: Mapping[str, Mapping[int, float]],
    compared: Mapping[tuple[str, str], Json],
    predictions: str,
) -> Json:
    first = ablation.seeds[0]
    reference = hits[ablation.baseline][first]
    rows = []
    for arm, by_seed in hits.items():
        row = compared.get((task.name, arm))
        p = (
            stats.mcnemar(np.concatenate(by_seed[first]), np.concatenate(reference)).p
            if row
            else None
        )
        rows.append(
            {"arm": arm, **_spread(values[arm]), "difference": _difference(row), "mcnemar": p}
        )
    samples = len(reference[0])
    classes = (
        len(disk.read_metadata(predictions)["classes"])
        if task.kind == "classification"
        else samples
    )
    return {
        "task": task.name,
        "kind": task.kind,
        "metric": HEADLINE[task.kind],
        "samples": samples,
        "chance": 1 / classes,
        "rows": rows,
    }


def _null_web(out: str, ablation: Ablation) -> Json | None:
    folder = disk.join(out, "null")
    if not ablation.controls.null_web or not disk.exists(disk.join(folder, "ablation.json")):
        return None
    return collect(folder)


# --- cost and provenance -------------------------------------------------------------------------------------------


def _costs(out: str) -> list[tuple[str, float]]:
    path = disk.join(out, "costs.json")
    return (
        [(name, float(s)) for name, s in disk.read_json(path).items()] if disk.exists(path) else []
    )


def _command(out: str) -> str:
    """The command that made the whole folder, or the one that made its runs."""
    path = disk.join(out, "command.json")
    found = (
        disk.read_json(path)
        if disk.exists(path)
        else f"python train/ablate.py {out}/ablation.json --out {out}"
    )
    return str(found)


def _provenance(out: str, runs: Mapping[str, Mapping[int, Json]], seen: Mapping[str, str]) -> Json:
    first = next(iter(next(iter(runs.values())).values()))
    facts: Json = {
        "ablation": disk.content_hash(disk.read_json(disk.join(out, "ablation.json"))),
        "training settings, seed apart": sorted(
            {
                disk.content_hash({**r["config"], "seed": None})
                for by_seed in runs.values()
                for r in by_seed.values()
            }
        ),
        "device": first["device"],
        **{f"version of {name}": version for name, version in first["versions"].items()},
        "run again with": _command(out),
    }
    return {"facts": facts, "files": sorted(seen.items())}
