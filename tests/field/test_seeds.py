"""Unequal numbers of seeds and unequal spreads, as public trackers report them: what a careful
reader of the runs would conclude, through `clipmill decide`. The numbers are rebuilt small.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of arms, the baseline first: in the order of their seeds, or without seeds."""

    source: str
    why: str
    runs: dict[str, tuple[float, ...]]
    verdicts: dict[str, str]
    has_seeds: bool = True


WIDE = (31.2, 24.1, 33.0, 26.3, 28.4)
QUIET = (52.3, 51.6, 52.1, 51.8, 52.4, 51.7, 52.2, 51.9, 52.0, 52.0)
OPEN = "not distinguishable"
ROWS = [
    Runs(
        source="colmap/colmap#4556, five seeds of both",
        why="differences over five common seeds are far beyond their spread",
        runs={"base": WIDE, "msac": (42.6, 37.4, 42.9, 38.9, 40.8)},
        verdicts={"msac": "better"},
    ),
    Runs(
        source="colmap/colmap#4556, seeds that one variant lacks",
        why="two common seeds tell one degree of freedom, however many seeds the other side has",
        runs={"base": WIDE, "msac": (38.0, 35.5)},
        verdicts={"msac": OPEN},
    ),
    Runs(
        source="instadeepai/marl-eval#66, three seeds",
        why="a difference of 3 standard errors is beyond 1.96, but not beyond Student's t of 2 df",
        runs={"a": (40.0, 50.0, 60.0), "b": (43.0, 57.7, 64.8)},
        verdicts={"b": OPEN},
    ),
    Runs(
        source="instadeepai/marl-eval#66, ten seeds",
        why="about as many standard errors with 9 degrees of freedom are enough",
        runs={
            "a": tuple(40.0 + 2 * i for i in range(10)),
            "b": tuple(45.0 + 2 * i + (-1) ** i * 4.0 for i in range(10)),
        },
        verdicts={"b": "better"},
    ),
    Runs(
        source="statsmodels/statsmodels#9478, the smallest group varies most",
        why="the pooled spread is that of the quiet arms: by it all three differ, p < 1e-6",
        runs={"base": (46.0, 50.0), "a": QUIET, "b": QUIET, "c": QUIET},
        verdicts={"a": OPEN, "b": OPEN, "c": OPEN},
        has_seeds=False,
    ),
    Runs(
        source="statsmodels/statsmodels#9478, one small arm varies most",
        why="the wide arm of two runs is open, and a large difference of many runs is one",
        runs={"base": QUIET, "a": tuple(x + 30 for x in QUIET), "b": (55.0, 61.0)},
        verdicts={"a": "better", "b": OPEN},
        has_seeds=False,
    ),
    Runs(
        source="statsmodels/statsmodels#9478, the largest group varies most",
        why="a wide baseline of many runs is known well: a large difference is one",
        runs={"base": (40.0, 44.0, 48.0, 52.0, 56.0, 42.0, 46.0, 50.0), "a": (80.0, 80.5, 81.0)},
        verdicts={"a": "better"},
        has_seeds=False,
    ),
    Runs(
        source="scipy/scipy#18107",
        why="equal spreads and numbers: one variance of all groups decides what no pair alone does",
        runs={
            "control": (7.4, 8.5, 7.2),
            "a": (9.8, 11.2, 10.4),
            "b": (8.1, 7.0, 8.2),
            "c": (7.9, 8.8, 7.1),
        },
        verdicts={"a": "better", "b": OPEN, "c": OPEN},
        has_seeds=False,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_few_runs_are_decided_as_far_as_they_tell(
    row: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["arm,seed,accuracy" if row.has_seeds else "arm,accuracy"]
    for arm, values in row.runs.items():
        for seed, value in enumerate(values):
            lines.append(f"{arm},{seed},{value}" if row.has_seeds else f"{arm},{value}")
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(lines) + "\n")
    status = commands.decide([str(table), "--baseline", next(iter(row.runs)), "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    rows = json.loads(out.strip().splitlines()[-1])["result"]["comparisons"]
    assert {one["arm"]: one["verdict"] for one in rows} == row.verdicts, row.why
