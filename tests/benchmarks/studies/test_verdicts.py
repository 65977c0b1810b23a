from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.studies import verdicts
from clipmill.verdict.stats.analysis import TaskScores, analyse


@pytest.mark.parametrize(("arms", "extra", "seeds"), [(1, 2, 3), (3, 0, 2), (2, 1, 5)])
def test_many_tables_at_once_have_the_intervals_of_an_analysis(
    arms: int, extra: int, seeds: int
) -> None:
    values = np.random.default_rng(3).standard_normal((6, 1 + arms + extra, seeds))
    values[:, 1] *= 4
    names = ["base", *(f"a{i}" for i in range(arms)), *(f"x{i}" for i in range(extra))]
    half = verdicts.half_widths(values, arms)
    last = len(names) - 1
    of_control = verdicts.paired_half_width(values, last)
    for table, row in enumerate(values):
        scores = {name: dict(enumerate(row[i].tolist())) for i, name in enumerate(names)}
        result = analyse(
            {"t": TaskScores(values=scores)},
            "base",
            arms=names[1 : arms + 1],
            controls=[(names[last], "base")] if extra else [],
            band=0.0,
        ).tasks["t"]
        for one, expected in zip(result.comparisons, half[table], strict=True):
            assert one.high is not None
            assert one.high - one.difference == pytest.approx(expected, rel=2e-3)
        for one in result.controls:
            assert one.high is not None
            # the analysis caps the degrees of freedom that are shared
            assert one.high - one.difference >= of_control[table] * (1 - 2e-3)


def test_a_study_of_few_tables_has_every_row() -> None:
    row = verdicts.simulate("equal, A/A and a control", 2, 3, 50)
    assert 80 <= row.held <= 100
    assert row.control_called is not None
    looks = verdicts.simulate_looks(1, (3, 6), 50)
    assert looks.halved <= looks.same
    tasks = verdicts.simulate_tasks(3, 50)
    assert tasks.together <= tasks.primary <= tasks.alone
    for lines in (
        verdicts.lines([row]),
        verdicts.looks_lines([looks]),
        verdicts.tasks_lines([tasks]),
    ):
        assert len(list(lines)) > 2


@pytest.mark.parametrize(
    ("name", "by_place", "held_seeds", "interaction"),
    [
        ("4 arms, 5 runs", True, False, False),
        ("arms of 9, 2 and 5 runs, 200 test samples", False, True, False),
        ("3 blocks of 1 run, 3 arms", False, False, False),
        ("3 blocks of 3 seeds, 3 arms, interaction", False, False, True),
    ],
)
def test_a_layout_of_few_tables_has_its_figures(
    name: str, by_place: bool, held_seeds: bool, interaction: bool
) -> None:
    row = verdicts.simulate_layout(name, 30)
    assert row.held >= 80
    assert row.held + row.called == pytest.approx(100)
    known = (row.by_place, row.held_seeds, row.interaction)
    assert tuple(one is not None for one in known) == (by_place, held_seeds, interaction)
    if by_place:
        assert row.by_place > row.called + 20  # type: ignore[operator]
    assert len(list(verdicts.layout_lines([row]))) == 3


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize(
    ("runs", "spreads"),
    [
        ((3, 9, 9, 9), (3, 1, 1, 1)),
        ((9, 2, 9), (1, 3, 1)),
        ((5, 2, 3, 7), (1, 1, 4, 1)),
        ((4, 4, 4), (3, 1, 1)),
        ((2, 6), (1, 1)),
    ],
)
def test_many_tables_of_unlike_runs_have_the_intervals_of_an_analysis(
    runs: tuple[int, ...], spreads: tuple[float, ...], pairs: bool
) -> None:
    layout = verdicts.Layout(runs=runs, spreads=spreads)
    values = verdicts.unlike_values(layout, np.random.default_rng(2), 5)
    differences, half = verdicts.unlike_half_widths(values, runs, pairs)
    names = [f"a{number}" for number in range(len(runs))]
    for row, of_row, of_half in zip(values, differences, half, strict=True):
        parts = np.split(row, np.cumsum(runs)[:-1])
        scores = {
            name: dict(enumerate(part.tolist())) for name, part in zip(names, parts, strict=True)
        }
        result = analyse(
            {"t": TaskScores(values=scores)},
            "a0",
            arms=names[1:],
            band=0.0,
            groups=None if pairs else dict.fromkeys(range(max(runs)), 0),
        ).tasks["t"]
        for one, difference, expected in zip(result.comparisons, of_row, of_half, strict=True):
            assert one.high is not None
            assert one.difference == pytest.approx(difference, abs=1e-9)
            assert one.high - one.difference == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize(
    "name",
    ["baseline 3 seeds and SD 3, 4 arms x 10", "one arm 3 seeds and SD 3, all others 10, 4 arms"],
)
def test_intervals_of_95_percent_hold_where_few_seeds_vary_most(name: str) -> None:
    """Of 4,000 tables with fixed seeds, the aim of the page."""
    assert verdicts.simulate_unlike(name, 4000).held >= verdicts.LEAST_HELD


def test_the_page_has_every_table_of_the_result() -> None:
    study = json.loads(verdicts.RESULT.read_text())
    text = verdicts.PAGE.read_text()
    assert verdicts.page_of(text, study) == text
    assert [row["layout"] for row in study["unlike"]] == list(verdicts.UNLIKE)
    assert {row["tables"] for row in study["unlike"]} == {
        verdicts.UNLIKE_TABLES,
        verdicts.MODEL_TABLES,
    }
