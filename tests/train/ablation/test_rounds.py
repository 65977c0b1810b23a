"""Seeds in rounds: a table of scores in, the runs that are needed and their order out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manifests import disk
from manifests.schema import Ablation
from tests.support.ablations import three_arms, tiny_ablation
from train.ablation import rounds, runner
from train.ablation.rounds import ReadScore, Score, Study, replay, run_rounds
from train.ablation.runner import Outcome
from train.reporting.results import collect_results, saved_scores

# clip30 is far better at once; basic is decided after 4 seeds.
TABLE: Mapping[str, Sequence[float]] = {
    "raw": [0.300, 0.312, 0.306, 0.299, 0.305],
    "clip30": [0.500, 0.513, 0.505, 0.499, 0.504],
    "basic": [0.306, 0.316, 0.313, 0.304, 0.310],
}
SEEDS = [4, 0, 1, 2, 3]


def ablation(**changes: Any) -> Ablation:
    fields: dict[str, Any] = {
        "seeds": SEEDS,
        "stop": {"at_least": 2, "smallest": 0.02},
        "equivalence": 0.005,
        "evaluate": [{"name": "objects", "kind": "classification", "data": "d"}],
    }
    return three_arms(**{**fields, **changes})


def reader(
    table: Mapping[str, Sequence[float]] = TABLE, seeds: Sequence[int] = SEEDS, count: int = 99
) -> ReadScore:
    """Scores of the first `count` seeds, in the order of the ablation."""

    def read(arm: str, seed: int) -> Score | None:
        index = seeds.index(seed)
        return Score(value=table[arm][index]) if index < count else None

    return read


def per_arm(study: Study) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for arm, seed in study.asked:
        rows.setdefault(arm, []).append(seed)
    return rows


@pytest.mark.slow
def test_rounds_ask_the_arms_that_are_not_decided_and_the_baseline() -> None:
    study = replay(ablation(), reader())
    assert study.complete
    assert study.seeds == {"raw": 4, "clip30": 2, "basic": 4}
    assert study.ends["clip30"] == "decided"
    assert per_arm(study)["clip30"] == SEEDS[: study.seeds["clip30"]]
    assert per_arm(study)["raw"] == SEEDS[: study.seeds["raw"]]
    assert study.seeds["raw"] == study.seeds["basic"] > study.seeds["clip30"]
    assert study.looks["clip30"].comparison.state == "better"


@pytest.mark.slow
def test_every_prefix_of_the_runs_continues_as_the_whole_does() -> None:
    whole = replay(ablation(), reader())
    done: set[tuple[str, int]] = set()
    reads = reader()

    def read(arm: str, seed: int) -> Score | None:
        return reads(arm, seed) if (arm, seed) in done else None

    calls = 0
    while not (study := replay(ablation(), read)).complete:
        assert study.asked == whole.asked[: len(study.asked)]
        assert study.ends == {}
        # The process dies after one more run, which may be in the middle of a round.
        missing = [key for key in study.asked if key not in done]
        done.add(missing[-1])
        calls += 1
    assert study == whole
    assert calls == len(whole.asked)


@pytest.mark.slow
def test_finished_runs_that_no_round_asks_for_are_not_read() -> None:
    asked: list[tuple[str, int]] = []
    reads = reader()

    def read(arm: str, seed: int) -> Score | None:
        asked.append((arm, seed))
        return reads(arm, seed)

    study = replay(ablation(), read)
    assert set(asked) == set(study.asked)
    assert ("clip30", SEEDS[4]) not in asked


def test_the_first_round_has_all_arms_and_controls_follow_their_arm() -> None:
    controls = {"random_like": ["clip30"], "a_a": "raw"}
    study = replay(ablation(controls=controls), lambda arm, seed: None)
    assert not study.complete
    assert study.asked == tuple(
        (arm, seed)
        for seed in SEEDS[:2]
        for arm in ("raw", "a_a", "clip30", "random_like_clip30", "basic")
    )
    assert study.seeds == {"raw": 2, "clip30": 2, "basic": 2}


@pytest.mark.slow
def test_controls_stop_with_their_arm() -> None:
    controls = {"random_like": ["clip30"], "a_a": "raw"}
    asked = per_arm(replay(ablation(controls=controls), reader()))
    assert asked["random_like_clip30"] == asked["clip30"]
    assert asked["a_a"] == asked["raw"]


@pytest.mark.slow
def test_a_failed_run_costs_its_seed_and_the_rounds_go_on() -> None:
    failed = {("raw", SEEDS[1]), ("basic", SEEDS[2])}
    study = replay(ablation(), reader(), failed)
    assert study.complete
    assert study.looks["basic"].table.order == tuple(s for s in SEEDS if s != SEEDS[1])
    assert SEEDS[1] not in study.looks["basic"].table.order
    assert SEEDS[2] not in study.looks["basic"].table.values["basic"]
    everything = {(arm, seed) for arm in TABLE for seed in SEEDS}
    nothing = replay(ablation(), reader(), everything)
    assert nothing.complete
    assert nothing.looks == {}
    assert set(nothing.ends.values()) == {"out of seeds"}


@pytest.mark.slow
def test_hopeless_is_given_up_before_the_seeds_are_spent() -> None:
    # Noise far above the band and the smallest difference of interest: 5 seeds decide nothing.
    generator = np.random.default_rng(0)
    table = {arm: (0.3 + 0.1 * generator.standard_normal(5)).tolist() for arm in TABLE}
    study = replay(ablation(), reader(table))
    assert set(study.ends.values()) == {"hopeless"}
    assert study.seeds["raw"] < 5


@pytest.mark.slow
def test_samples_give_a_floor_and_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    scores: dict[tuple[str, int], Score] = {}
    for arm, rate in (("raw", 0.3), ("clip30", 0.5), ("basic", 0.3)):
        own = rng.random(400) < rate  # samples that this arm has right with any seed
        for seed in SEEDS:
            correct = np.where(rng.random(400) < 0.1, rng.random(400) < rate, own)
            scores[arm, seed] = Score(value=float(correct.mean()), samples=(correct * 1.0,))
    study = replay(ablation(), lambda arm, seed: scores[arm, seed])
    look = study.looks["clip30"]
    assert look.table.floor_sd > 0
    assert look.comparison.residual_sd is not None
    assert look.comparison.residual_sd >= look.table.floor_sd
    assert look.table.drawing_sd["clip30"] > 0.02
    narrow = rounds.look_at(ablation(), look.table, drawing=False)["clip30"]
    assert narrow.low is not None
    assert look.comparison.low is not None
    assert narrow.low > look.comparison.low


# --- simulated ablations --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "most_runs", "least_power"),
    [((0.0, 0.0), 0.85, None), ((0.0, 0.06), 0.85, 0.95)],
)
def test_at_most_one_in_twenty_studies_makes_a_false_call(
    truth: tuple[float, float], most_runs: float, least_power: float | None
) -> None:
    """A false call: better or worse for a true difference of 0 or of the other sign."""
    studies, sd = 1000, 0.01
    false = finds = runs = 0
    design = ablation(stop={"at_least": 2, "smallest": 0.02}, equivalence=0.01)
    for number in range(studies):
        noise = np.random.default_rng(number).standard_normal((3, 5)) * sd
        noise += np.random.default_rng([number, 1]).standard_normal(5) * 0.02  # of the seeds
        rows = noise + np.array([0, *truth])[:, None]
        table = dict(zip(("raw", "clip30", "basic"), rows.tolist(), strict=True))
        study = replay(design, reader(table))
        runs += len(study.asked)
        wrong = False
        for arm, effect in zip(("clip30", "basic"), truth, strict=True):
            state = study.looks[arm].comparison.state
            wrong |= effect == 0 and state in ("better", "worse")
            wrong |= effect > 0 and state == "worse"
            finds += effect > 0 and state == "better"
        false += wrong
    assert false / studies <= 0.05
    assert runs / (15 * studies) < most_runs
    if least_power is not None:
        assert finds / studies >= least_power


@pytest.mark.slow
def test_fewer_runs_are_expected_where_every_arm_differs_much() -> None:
    design = ablation()
    whole = len(TABLE) * len(SEEDS)
    large = rounds.expected_runs(design, 0.004, effect=0.2, studies=5)
    none = rounds.expected_runs(design, 0.004, studies=5)
    assert 2 * len(TABLE) <= large < none <= whole
    with pytest.raises(ValueError, match="the value is nan"):
        rounds.expected_runs(design, float("nan"), studies=1)


# --- real runs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_ablation_stops_early_and_continues_after_a_kill(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Differences below 2 are all equal or hopeless: two runs of a second each decide it.
    tiny = tiny_ablation(
        tiny_pool, data, seeds=[0, 1, 2, 3], stop={"at_least": 2}, equivalence=1e-4, jobs=2
    )
    out = str(tmp_path / "out")
    outcomes = run_rounds(tiny, out, "inline", saved_scores(tiny, out))
    results = collect_results(tiny, out)
    seeds = {one.arm: one.seeds for one in results.rounds}
    assert len(outcomes) == sum(seeds.values())
    assert results.incomplete == {}
    assert results.failed == ()
    for arm, count in seeds.items():
        assert sorted(results.arms[arm].runs) == [str(seed) for seed in range(count)]

    # Killed: one run of the last round has no predictions.
    last = outcomes[-1].run
    shutil.rmtree(last.out)
    repeated: list[tuple[str, int]] = []
    real = runner.run_in_children

    def noted(
        to_do: Sequence[Any],
        tasks: Any,
        jobs: int,
        out: str,
        report: Callable[[Outcome], None],
        children: Any,
    ) -> None:
        repeated.extend((run.arm, run.seed) for run in to_do)
        real(to_do, tasks, jobs, out, report, children)

    monkeypatch.setattr(runner, "run_in_children", noted)
    again = run_rounds(tiny, out, "inline", saved_scores(tiny, out))
    assert repeated == [(last.arm, last.seed)]
    assert len(again) == len(outcomes)
    assert disk.to_plain(collect_results(tiny, out).comparisons) == disk.to_plain(
        results.comparisons
    )
    assert run_rounds(tiny, out, "inline", saved_scores(tiny, out))
    assert repeated == [(last.arm, last.seed)], "a finished ablation repeats nothing"
