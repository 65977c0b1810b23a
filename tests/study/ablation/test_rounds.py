"""Seeds in rounds: a table of scores in, the runs that are needed and their order out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import Ablation
from clipmill.study import runner
from clipmill.study.results import collect_results, saved_scores
from clipmill.study.runner import Outcome, run_rounds
from clipmill.verdict import rounds
from clipmill.verdict.conclusions import StudyResults, conclude
from clipmill.verdict.measurements import Measurement, Measurements
from clipmill.verdict.rounds import ReadRun, Rounds, replay
from tests.support.ablations import three_arms, tiny_ablation

EXAMPLES = Path(__file__).parents[3] / "examples"
# clip30 is far better at once; basic is decided after 4 seeds.
TABLE: Mapping[str, Sequence[float]] = {
    "raw": [0.300, 0.312, 0.306, 0.299, 0.305, 0.302, 0.309, 0.304],
    "clip30": [0.500, 0.513, 0.505, 0.499, 0.504, 0.503, 0.508, 0.505],
    "basic": [0.306, 0.316, 0.313, 0.304, 0.310, 0.309, 0.313, 0.311],
}
SEEDS = [4, 0, 1, 2, 3, 5, 6, 7]


def ablation(**changes: Any) -> Ablation:
    fields: dict[str, Any] = {
        "seeds": SEEDS,
        "stop": {"at_least": 2},
        "equivalence": 0.005,
        "evaluate": [{"name": "objects", "kind": "classification", "data": "d"}],
    }
    return three_arms(**{**fields, **changes})


@pytest.mark.parametrize(
    ("seeds", "at_least", "sizes"),
    [(2, 2, (2,)), (5, 2, (2, 3, 5)), (5, 3, (3, 5)), (24, 2, (2, 3, 6, 12, 24)), (4, 4, (4,))],
)
def test_the_looks_are_at_all_half_and_a_quarter_of_the_seeds(
    seeds: int, at_least: int, sizes: tuple[int, ...]
) -> None:
    design = ablation(seeds=list(range(seeds)), stop={"at_least": at_least})
    assert rounds.round_sizes(design) == sizes


def row_of(arm: str, seed: int, value: float, **facts: Any) -> Measurement:
    return Measurement(arm=arm, seed=seed, task="objects", metric="accuracy", value=value, **facts)


def reader(
    table: Mapping[str, Sequence[float]] = TABLE, seeds: Sequence[int] = SEEDS, count: int = 99
) -> ReadRun:
    """Scores of the first `count` seeds, in the order of the ablation."""

    def read(arm: str, seed: int) -> Measurement | None:
        index = seeds.index(seed)
        return row_of(arm, seed, table[arm][index]) if index < count else None

    return read


def per_arm(study: Rounds) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for arm, seed in study.asked:
        rows.setdefault(arm, []).append(seed)
    return rows


def test_rounds_ask_the_arms_that_are_not_decided_and_the_baseline() -> None:
    study = replay(ablation(), reader())
    assert study.complete
    assert study.seeds == {"raw": 4, "clip30": 2, "basic": 4}
    assert study.ends == {"clip30": "decided", "basic": "decided"}
    assert per_arm(study)["clip30"] == SEEDS[:2]
    assert per_arm(study)["raw"] == SEEDS[:4]
    assert sorted(study.scores["clip30"].values["raw"]) == sorted(SEEDS[:2])


def test_every_prefix_of_the_runs_continues_as_the_whole_does() -> None:
    whole = replay(ablation(), reader())
    done: set[tuple[str, int]] = set()
    reads = reader()

    def read(arm: str, seed: int) -> Measurement | None:
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


def test_finished_runs_that_no_round_asks_for_are_not_read() -> None:
    asked: list[tuple[str, int]] = []
    reads = reader()

    def read(arm: str, seed: int) -> Measurement | None:
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
    asked = per_arm(replay(ablation(controls=controls), reader()))
    assert asked["random_like_clip30"] == asked["clip30"]
    assert asked["a_a"] == asked["raw"]


def test_a_failed_run_costs_its_seed_and_the_rounds_go_on() -> None:
    failed = {("raw", SEEDS[1]), ("basic", SEEDS[2])}
    study = replay(ablation(), reader(), failed)
    assert study.complete
    values = study.scores["basic"].values
    assert SEEDS[1] not in values["raw"]
    assert SEEDS[2] not in values["basic"]
    everything = {(arm, seed) for arm in TABLE for seed in SEEDS}
    nothing = replay(ablation(), reader(), everything)
    assert nothing.complete
    assert nothing.scores == {}
    assert set(nothing.ends.values()) == {"out of seeds"}


# --- simulated ablations --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "most_runs", "least_power"),
    [((0.0, 0.0), 1.0, None), ((0.0, 0.06), 0.9, 0.98)],
)
def test_at_most_one_in_twenty_studies_makes_a_false_call(
    truth: tuple[float, float], most_runs: float, least_power: float | None
) -> None:
    """A false call: better or worse for a true difference of 0 or of the other sign."""
    studies, sd = 200, 0.01
    false = finds = runs = 0
    design = ablation(seeds=SEEDS[:5], equivalence=0.01)
    for number in range(studies):
        noise = np.random.default_rng(number).standard_normal((3, 5)) * sd
        noise += np.random.default_rng([number, 1]).standard_normal(5) * 0.02  # of the seeds
        rows = noise + np.array([0, *truth])[:, None]
        table = dict(zip(("raw", "clip30", "basic"), rows.tolist(), strict=True))
        study = replay(design, reader(table))
        runs += len(study.asked)
        wrong = False
        for arm, effect in zip(("clip30", "basic"), truth, strict=True):
            verdict = rounds.compare_in_round(design, study.scores[arm], 1)[arm].verdict
            wrong |= effect == 0 and verdict in ("better", "worse")
            wrong |= effect > 0 and verdict == "worse"
            finds += effect > 0 and verdict == "better"
        false += wrong
    assert false / studies <= 0.07  # two standard errors above the 4.3 % of 1,500 studies
    assert runs / (15 * studies) <= most_runs
    if least_power is not None:
        assert finds / studies >= least_power


def test_a_look_calls_nothing_equal_near_the_floor_and_knows_the_metric() -> None:
    rows = np.random.default_rng(0).normal(0, 0.0003, (2, 8)) + np.array([[0.002], [0.004]])
    low = {**dict(zip(("raw", "clip30"), rows.tolist(), strict=True)), "basic": rows[0].tolist()}
    design = ablation(equivalence=None)
    ends = replay(design, reader(low)).ends
    assert ends["basic"] == "out of seeds", "a difference of 0 at the floor is no equality"
    high = {arm: [0.5 + value for value in row] for arm, row in low.items()}
    assert rounds.compare_in_round(design, replay(design, reader(high)).scores["clip30"], 1)[
        "clip30"
    ].verdict in ("practically equal", "better")
    facts = {"test_samples": 100, "chance": 0.5}
    study = replay(design, lambda arm, seed: row_of(arm, seed, 0.5 + 0.0001 * (seed % 3), **facts))
    assert set(study.ends.values()) == {"out of seeds"}
    assert {(one.test_samples, one.chance) for one in study.scores.values()} == {(100, 0.5)}


def test_fewer_runs_are_expected_where_every_arm_differs_much() -> None:
    design = ablation()
    whole = len(TABLE) * len(SEEDS)
    large = rounds.expected_runs(design, 0.004, effect=0.2, studies=5)
    none = rounds.expected_runs(design, 0.004, studies=5)
    assert 2 * len(TABLE) <= large < none <= whole


# --- in words -------------------------------------------------------------------------------------


def concluded(design: Ablation) -> tuple[StudyResults, Rounds]:
    study = replay(design, reader())
    rows = []
    for task in design.evaluate:
        for arm, seed in study.asked:
            row = row_of(arm, seed, TABLE[arm][SEEDS.index(seed)])
            rows.append(replace(row, task=task.name))
    return conclude(design, Measurements.of(rows), rounds=study), study


def test_an_arm_keeps_the_comparison_of_its_last_look_and_the_text_says_why() -> None:
    other = {"name": "other", "kind": "classification", "data": "d"}
    design = ablation(evaluate=[{**other, "name": "objects"}, other])
    result, study = concluded(design)
    for row in result.comparisons:
        if row.task == "objects":
            look = rounds.compare_in_round(design, study.scores[row.arm], 1)[row.arm]
            assert (row.low, row.high, row.n) == (look.low, look.high, study.seeds[row.arm])
    assert result.average is not None
    assert {row.rounds for row in (*result.comparisons, *result.average.comparisons)} == {3}
    assert [one.arm for one in result.rounds] == ["raw", "clip30", "basic"]
    lines = result.verdict.splitlines()
    assert "clip30: 2 of 8 seeds; decided: better." in lines
    assert any(line.startswith("Seeds were run in rounds") for line in lines)
    assert "could only have seen" not in result.verdict


# --- through the command --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_example_in_rounds_runs_as_shipped_in_the_base_installation(
    tmp_path: Path,
) -> None:
    given, out = str(EXAMPLES / "cifar10_runs" / "cifar10_rounds.yaml"), str(tmp_path / "out")
    code = (
        "import sys\n"
        "class Extras:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('torch', 'ray', 'duckdb', 'safetensors', 'tqdm', 'open_clip'):\n"
        "            raise ModuleNotFoundError(f'{name} is of an extra')\n"
        "sys.meta_path.insert(0, Extras())\n"
        "from clipmill.commands.app import main\n"
        f"given, out = {given!r}, {out!r}\n"
        "for words in (['check', given], ['plan', given], [given]):\n"
        "    assert main(['ablate', *words, '--out', out]) == 0\n"
        "assert main(['report', out]) == 0\n"
    )
    root = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "20 files of predictions" in done.stdout
    results = disk.read_json(AblationLayout(out).results_json)
    assert {row["arm"]: row["seeds"] for row in results["rounds"]} == {
        "raw": 5,
        "clip30": 2,
        "clip50": 2,
        "random_half": 5,
    }
    assert {row["rounds"] for row in results["tasks"]["cifar10"]["comparisons"]} == {3}
    assert "Seeds in rounds" in Path(AblationLayout(out).report).read_text()


# --- real runs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_ablation_stops_early_and_continues_after_a_kill(
    tiny_pool: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    runs = Measurements.read(AblationLayout(out).measurements).runs
    assert sorted(runs) == sorted((arm, seed) for arm in seeds for seed in range(seeds[arm]))

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
