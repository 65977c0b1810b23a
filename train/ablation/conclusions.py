"""What an ablation's numbers say: comparisons, controls, the A/A pair, and the verdict in plain words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manifests import disk
from manifests.schema import Ablation, TaskSpec
from train.ablation import stats
from train.ablation.runner import A_A
from train.evaluation import HEADLINE

Json = dict[str, Any]
Values = Mapping[str, Mapping[int, float]]  # {arm: {seed of the ablation: headline metric}}


def against(
    values: Values, arm_names: Sequence[str], baseline: str, band: float
) -> list[stats.Comparison]:
    """Those of the arms that share two seeds with the baseline, compared with it; Holm over them."""
    base = values.get(baseline, {})
    enough = [
        a for a in arm_names if a != baseline and len(set(values.get(a, {})) & set(base)) >= 2
    ]
    return (
        stats.compare({a: values[a] for a in [baseline, *enough]}, baseline, band) if enough else []
    )


def conclude(
    ablation: Ablation, values: Mapping[str, Values], failed: Sequence[Json] = (), runs: int = 0
) -> Json:
    """All comparisons and the verdict, from {task: values}. `failed` of `runs` runs ended without a result.

    comparisons: every arm against the baseline, primary task first, Holm over the arms of one task; controls: arms
    against the random subset of their size, and aa: equal data under other seeds, both on the primary task and
    families of their own.
    """
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    band, primary = ablation.equivalence, values[ablation.primary]
    names = [arm for arm in dict.fromkeys(a for v in values.values() for a in v) if arm != A_A]
    comparisons = [
        _row(task, found)
        for task in tasks
        for found in against(values[task.name], names, ablation.baseline, band)
    ]
    found = [
        c
        for a in ablation.controls.random_like
        for c in against(primary, [a], f"random_like_{a}", band)
    ]
    adjusted = stats.holm([c.p for c in found])
    controls = [
        _row(tasks[0], stats.adjust(c, p, len(found))) for c, p in zip(found, adjusted, strict=True)
    ]
    aa = against(primary, [A_A], ablation.controls.a_a, band) if ablation.controls.a_a else []
    result: Json = {
        "comparisons": comparisons,
        "controls": controls,
        "aa": _row(tasks[0], aa[0]) if aa else None,
        "failed": list(failed),
    }
    return {**result, "verdict": sentence(ablation, result, runs)}


def _row(task: TaskSpec, found: stats.Comparison) -> Json:
    plain: Json = disk.to_plain(found)
    return {
        "task": task.name,
        "metric": HEADLINE[task.kind],
        **plain,
        "told": stats.tell(found, task.name),
    }


def sentence(ablation: Ablation, result: Mapping[str, Any], runs: int) -> str:
    """The verdict in plain words, from the rows of `conclude`: arms, their controls, A/A, and what is missing."""
    parts = [row["told"] for row in result["comparisons"] if row["task"] == ablation.primary]
    if not parts:
        parts = ["Nothing can be compared: no arm shares two finished seeds with the baseline."]
    parts += [f"Against a random subset of its size: {row['told']}" for row in result["controls"]]
    if aa := result["aa"]:
        parts.append(f"A/A, equal data under other seeds: {aa['told']}")
        if aa["verdict"] in ("better", "worse"):
            parts.append(
                "As equal data differ, no verdict above should be believed without more seeds."
            )
    if failed := result["failed"]:
        first = failed[0]
        parts.append(
            f"{len(failed)} of {runs} runs ended without a result; the first is {first['arm']} seed {first['seed']}: "
            f"{first['error']}"
        )
    return "\n".join(parts)
