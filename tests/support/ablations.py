"""A tiny ablation, evaluation images for it, and outcomes that no run made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.metrics import deciding_metric
from clipmill.manifests.schema import Ablation
from clipmill.study.runner import Outcome, request_of, train_and_evaluate
from clipmill.verdict.measurements import Measurement, Measurements

Ran = tuple[Ablation, str, list[Outcome]]  # what the fixture `ran` gives
TRAIN = {
    "model": "test", "samples_seen": 64, "batch_size": 16, "lanes": 4, "threads": 0,
    "precision": "fp32", "device": "cpu", "warmup": 1,
}  # fmt: skip


def tiny_ablation(pool: str, data: str, **changes: object) -> Ablation:
    """Two arms, two seeds, one task. Each run takes a second."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "question": "Is half as good as all?",
        "pools": {"web": {"out": pool}},
        "arms": {"raw": "web/all", "half": "web/half"},
        "baseline": "raw",
        "seeds": [0, 1],
        "train": TRAIN,
        "evaluate": [{"name": "colours", "kind": "classification", "data": data}],
        "primary": "colours",
    }
    fields |= changes
    fields["arms"] = arms_of(fields["arms"])
    made: Ablation = disk.from_plain(Ablation, fields)
    return made


def arms_of(arms: Any) -> dict[str, Any]:
    """Arms as a manifest may write them: POOL/VIEW, or the fields of an Arm."""
    return {name: {"view": arm} if isinstance(arm, str) else arm for name, arm in arms.items()}


def changed(ablation: Ablation, **changes: object) -> Ablation:
    """The ablation with other values of some fields."""
    fields = {**disk.to_plain(ablation), **changes}
    fields["arms"] = arms_of(fields["arms"])
    other: Ablation = disk.from_plain(Ablation, fields)
    return other


def in_process(to_do: Any, tasks: Any, jobs: int, out: str, report: Any) -> None:
    """Instead of `run_in_children`: the same requests, in this process."""
    for run in to_do:
        answer = train_and_evaluate(request_of(run, tasks, 1))
        report(Outcome(run=run, metrics=answer.get("metrics"), error=answer.get("error", "")))


def two_classes(folder: Path) -> str:
    """Two classes of four images of noise."""
    for c, name in enumerate(("red", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            rng = np.random.default_rng(10 * c + i)
            pixels = rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return str(folder)


def three_arms(**changes: object) -> Ablation:
    """An ablation of a pool that does not exist: for conclusions."""
    fields: dict[str, Any] = {
        "name": "n",
        "question": "q",
        "pools": {"web": {"out": "/p"}},
        "arms": {"raw": "web/raw", "clip30": "web/clip30", "basic": "web/basic"},
        "baseline": "raw",
        "seeds": [0, 1, 2],
        "train": {"preset": "micro"},
        "evaluate": [
            {"name": "other", "kind": "retrieval", "data": "d"},
            {"name": "objects", "kind": "classification", "data": "d"},
        ],
        "primary": "objects",
        **changes,
    }
    fields["arms"] = arms_of(fields["arms"])
    made: Ablation = disk.from_plain(Ablation, fields)
    return made


def measured(
    ablation: Ablation, values: Mapping[str, Mapping[str, Sequence[float | None]]], **facts: Any
) -> Measurements:
    """The table of {TASK or TASK METRIC: {arm: a value of each seed from 0}}; None is a run without
    a result. facts: of every row.
    """
    deciding = {task.name: deciding_metric(task) for task in ablation.evaluate}
    rows = []
    for key, of_arms in values.items():
        task, _, metric = key.partition(" ")
        for arm, of_seeds in of_arms.items():
            for seed, value in enumerate(of_seeds):
                if value is not None:
                    row = Measurement(
                        arm=arm,
                        seed=seed,
                        task=task,
                        metric=metric or deciding[task],
                        value=value,
                        **facts,
                    )
                    rows.append(row)
    return Measurements.of(rows)
