"""What an ablation in rounds prints: intervals of the rounds, verdicts and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from manifests.schema import Ablation
from tests.support.ablations import three_arms
from train.ablation.conclusions import Conclusions, conclude
from train.ablation.rounds import Score, Study, analysis_in_rounds, replay
from train.stats.analysis import Analysis, TaskScores, analyse

# As in test_rounds.py, so that the critical values are simulated once in a process.
TABLE: Mapping[str, Sequence[float]] = {
    "raw": [0.300, 0.312, 0.306, 0.299, 0.305],
    "clip30": [0.500, 0.513, 0.505, 0.499, 0.504],
    "basic": [0.308, 0.309, 0.317, 0.300, 0.311],
}


def design(**changes: object) -> Ablation:
    fields: dict[str, object] = {
        "seeds": [0, 1, 2, 3, 4],
        "stop": {"at_least": 2, "smallest": 0.02},
        "evaluate": [{"name": "objects", "kind": "classification", "data": "d"}],
    }
    return three_arms(**{**fields, **changes})


def concluded(ablation: Ablation) -> tuple[Conclusions, Study, dict[str, TaskScores]]:
    study = replay(ablation, lambda arm, seed: Score(value=TABLE[arm][seed]))
    values: dict[str, dict[int, float]] = {arm: {} for arm in TABLE}
    for arm, seed in study.asked:
        values[arm][seed] = TABLE[arm][seed]
    scores = {task.name: TaskScores(values=values) for task in ablation.evaluate}
    return conclude(ablation, scores, study=study), study, scores


@pytest.mark.slow
def test_intervals_and_verdicts_are_those_of_the_last_look_at_each_arm() -> None:
    result, study, _ = concluded(design())
    for row in result.comparisons:
        look = study.looks[row.arm].comparison
        assert (row.low, row.high, row.n) == (look.low, look.high, study.seeds[row.arm])
        assert (row.low90, row.high90, row.adjustment) == (look.low, look.high, "sequential")
        assert row.low is not None
        assert row.high is not None
        assert (row.verdict in ("better", "worse")) == (row.low > 0 or row.high < 0)
        assert (row.p_adjusted <= 0.05) == (row.verdict in ("better", "worse"))
    clip = next(row for row in result.comparisons if row.arm == "clip30")
    assert clip.verdict == "better"
    assert "sequential p \N{LESS-THAN OR EQUAL TO} 0.0" in clip.sentence
    assert result.incomplete == {}


@pytest.mark.slow
def test_the_text_says_how_many_seeds_were_run_and_why_no_more() -> None:
    result, study, _ = concluded(design())
    seeds = study.seeds["clip30"]
    assert seeds < 5
    lines = result.verdict.splitlines()
    assert f"clip30: {seeds} of 5 seeds; decided: better." in lines
    assert any(line.startswith("Seeds were run in rounds") for line in lines)
    assert [one.arm for one in result.rounds] == ["raw", "clip30", "basic"]
    assert result.rounds[0].end is None
    assert "could only have seen" not in result.verdict


@pytest.mark.slow
def test_less_loss_is_better_in_rounds_too() -> None:
    task = {"name": "objects", "kind": "classification", "data": "d", "metric": "calibration_error"}
    result, _, _ = concluded(design(evaluate=[task]))
    clip = next(row for row in result.comparisons if row.arm == "clip30")
    assert clip.verdict == "worse"
    assert "decided: worse" in result.rounds[1].reason


@pytest.mark.slow
def test_every_task_has_intervals_that_hold_for_all_rounds() -> None:
    other = {"name": "other", "kind": "classification", "data": "d"}
    result, _, _ = concluded(design(evaluate=[{**other, "name": "objects"}, other]))
    assert {row.adjustment for row in (*result.comparisons, *result.average)} == {"sequential"}


@pytest.mark.slow
def test_scores_without_a_task_are_refused() -> None:
    ablation = design()
    _, study, scores = concluded(ablation)
    analysis: Analysis = analyse(scores, "raw", arms=["clip30", "basic"], band=0.005)
    with pytest.raises(ValueError, match="there are no scores of task 'objects'"):
        analysis_in_rounds(ablation, analysis, {}, study)
