"""Measurements one by one, as tests write and read them, and the columns of the product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from clipmill.manifests.arrays import Integers
from clipmill.verdict.tables.account import Account
from clipmill.verdict.tables.reader import Results

NO_ACCOUNT = Account(
    form="measurements", columns=(), metrics=(), rows=0, rows_used=0, rows_left_out=(), cells=0,
    cells_used=0, cells_left_out=(),
)  # fmt: skip


class Measurement(NamedTuple):
    """One value of one run. scale: how large the run was, in any unit; 0 where all are alike.

    samples: of the test set, 0 where it is not known. higher: whether more is better, None where
    the file does not say. per_sample: the values whose mean is the value, where the file has them.
    block: what crosses the arms, 0 where nothing does.
    """

    arm: str
    seed: int
    task: str
    metric: str
    value: float
    scale: float = 0.0
    samples: int = 0
    higher: bool | None = None
    per_sample: np.ndarray | None = None
    block: int = 0


def results_of(rows: Iterable[Measurement], **more: Any) -> Results:
    """The results that hold these measurements."""
    listed = list(rows)
    codes: dict[str, Integers] = {}
    names: dict[str, tuple[str, ...]] = {}
    for key in ("arm", "task", "metric"):
        known: dict[str, int] = {}
        texts = [str(getattr(row, key)) for row in listed]
        codes[key] = np.array([known.setdefault(text, len(known)) for text in texts], np.int64)
        names[key] = tuple(known)
    scales = {row.scale: f"{row.scale:g}" for row in listed}
    has_lists = any(row.per_sample is not None for row in listed)
    higher = [-1 if row.higher is None else int(row.higher) for row in listed]
    whole = {
        "arms": names["arm"], "tasks": names["task"], "metrics": names["metric"],
        "arm_N": codes["arm"], "task_N": codes["task"], "metric_N": codes["metric"],
        "seed_N": np.array([row.seed for row in listed], np.int64),
        "value_N": np.array([row.value for row in listed], np.float64),
        "scale_N": np.array([row.scale for row in listed], np.float64),
        "samples_N": np.array([row.samples for row in listed], np.int64),
        "higher_N": np.array(higher, np.int64),
        "block_N": np.array([row.block for row in listed], np.int64),
        "per_sample": tuple(row.per_sample for row in listed) if has_lists else None,
        "scales": scales, "notes": (), "account": NO_ACCOUNT,
    }  # fmt: skip
    return Results(**(whole | more))


def rows_of(results: Results) -> tuple[Measurement, ...]:
    """The measurements of results, one by one."""
    r = results
    return tuple(
        Measurement(
            r.arms[r.arm_N[n]], int(r.seed_N[n]), r.tasks[r.task_N[n]],
            r.metrics[r.metric_N[n]], float(r.value_N[n]), float(r.scale_N[n]),
            int(r.samples_N[n]), None if r.higher_N[n] < 0 else bool(r.higher_N[n]),
            None if r.per_sample is None else r.per_sample[n], int(r.block_N[n])
        ) for n in range(len(r.value_N))
    )  # fmt: skip
