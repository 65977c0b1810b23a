"""Verdicts on tables: the same as an ablation's, small scales against large, and refusals."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from clipmill.verdict.decide.page import decision_lines
from clipmill.verdict.decide.verdicts import Question, decide
from clipmill.verdict.measurements import Measurement as StudyRow
from clipmill.verdict.measurements import Measurements
from clipmill.verdict.stats.analysis import TaskScores, analyse
from clipmill.verdict.tables.reader import Results, read_results
from clipmill.verdict.tables.roles import Options
from tests.support import commands
from tests.support.measurements import Measurement, results_of

EXAMPLES = Path(__file__).parents[3] / "examples"
RUNS = EXAMPLES / "cifar10_120_runs.parquet"


def table(
    means: dict[str, float],
    seeds: int = 4,
    *,
    task: str = "cars",
    metric: str = "accuracy",
    scale: float = 0.0,
    noise: float = 0.01,
    **more: object,
) -> list[Measurement]:
    rng = np.random.default_rng(len(means) + seeds)
    return [
        Measurement(arm, seed, task, metric, mean + noise * float(rng.normal()), scale, **more)
        for arm, mean in means.items()
        for seed in range(seeds)
    ]


def results(rows: list[Measurement]) -> Results:
    return results_of(rows, costs=True)


def test_the_verdicts_are_those_of_an_ablation() -> None:
    rows = table({"raw": 0.3, "clip30": 0.4, "other": 0.3})
    values = {
        arm: {r.seed: r.value for r in rows if r.arm == arm} for arm in ("raw", "clip30", "other")
    }

    decision = decide(results(rows), Question())

    scores = TaskScores(values=values, limit=1.0, metric="accuracy")
    expected = analyse({"cars": scores}, "raw", arms=("clip30", "other"), band=0.0)
    assert decision.result == expected.tasks["cars"]
    assert [row.verdict for row in decision.result.comparisons] == ["better", "not distinguishable"]


def test_per_sample_values_give_the_interval_over_samples() -> None:
    decision = decide(read_results([str(RUNS)]), Question())
    row = next(row for row in decision.result.comparisons if row.arm == "clip30")
    assert (decision.baseline, len(decision.values["raw"])) == ("raw", 24)
    assert row.verdict == "better"
    assert row.low_samples is not None
    assert row.difference == pytest.approx(0.121, abs=0.001)


@pytest.mark.parametrize(("first", "second"), [([1, 0, 1, 1], [1, 0]), ([1, 0], [0, 0, 0, 0])])
def test_values_per_sample_of_something_else_are_refused(first, second) -> None:
    rows = [
        Measurement("raw", 0, "cars", "accuracy", 0.5, per_sample=np.array(first)),
        Measurement("b", 0, "cars", "accuracy", 0.5, per_sample=np.array(second)),
    ]
    with pytest.raises(ValueError, match="values per sample is"):
        decide(results(rows), Question())
    for row in rows:
        row.per_sample[:] = [1, 0] * (len(row.per_sample) // 2)
    with pytest.raises(ValueError, match="runs have values of 2 and 4 samples"):
        decide(results(rows), Question())


def test_the_direction_is_stated_told_or_read_from_the_name() -> None:
    means = {"raw": 3.0, "clip30": 2.0}
    for rows, question in (
        (table(means, metric="val_loss"), Question()),
        (table(means, metric="score"), Question(lower=("score",))),
        (table(means, metric="score", higher=False), Question()),
    ):
        assert decide(results(rows), question).result.comparisons[0].verdict == "better"
    assert decide(results(table(means)), Question()).result.comparisons[0].verdict == "worse"


def test_percentages_are_shares_and_a_loss_is_not() -> None:
    shares = decide(results(table({"raw": 0.3, "b": 0.4})), Question())
    rows = [row._replace(value=100 * row.value) for row in table({"raw": 0.3, "b": 0.4})]
    percentages = decide(results(rows), Question())
    assert percentages.result.unit == "share"
    for one, other in zip(percentages.result.comparisons, shares.result.comparisons, strict=True):
        assert one.difference == pytest.approx(other.difference)
        assert one.low == pytest.approx(other.low)
    losses = decide(results([row._replace(metric="loss") for row in rows]), Question())
    assert losses.result.unit == ""


def test_two_directions_of_one_metric_are_refused() -> None:
    rows = table({"raw": 0.3}, higher=True) + table({"clip30": 0.4}, higher=False)
    with pytest.raises(ValueError, match="both directions"):
        decide(results(rows), Question())


@pytest.mark.parametrize(
    ("rows", "refusal"),
    [
        (table({"raw": 0.3, "b": 0.4}, seeds=1), "every arm has one run"),
        (table({"raw": 0.3, "b": 0.4}, noise=0.0), "nothing varies"),
        (
            table({"raw": 0.3, "b": 0.4}) + table({"raw": 3, "b": 4}, task="c", metric="loss"),
            "both directions",
        ),
        (
            table({"raw": 0.3, "b": 0.4}) + table({"raw": 3, "b": 4}, task="c", metric="speed"),
            "different units",
        ),
        (
            table({"raw": 0.3, "b": 0.4, "c": 0.4}) + table({"raw": 0.3, "b": 0.4}, task="pets"),
            "c not compared: a task is missing",
        ),
    ],
)
def test_what_cannot_be_decided_is_said(rows: list[Measurement], refusal: str) -> None:
    assert any(refusal in text for text in decide(results(rows), Question()).refusals)


def test_one_run_an_arm_has_what_the_samples_leave() -> None:
    rows = table({"raw": 0.5, "b": 0.5}, seeds=1, noise=0.0, samples=10_000)
    rows[1] = rows[1]._replace(value=0.51)
    decision = decide(results(rows), Question())
    assert not decision.result.comparisons
    assert decision.sampling == pytest.approx(1.96 * np.sqrt(2 * 0.25 / 10_000), rel=0.01)


def test_the_price_of_an_effect_falls_with_its_size() -> None:
    rows = table({"raw": 0.3, "clip30": 0.4})
    prices = [decide(results(rows), Question(effect=e)).seeds_for_effect for e in (0.005, 0.02)]
    assert prices[0] > prices[1] >= 2


def test_runs_without_a_common_seed_are_compared_unpaired() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for arm, first, share in (("raw", 0, 0.3), ("b", 10, 0.5)):
        for seed in range(first, first + 4):
            right = rng.random(1000) < share
            rows.append(
                Measurement(arm, seed, "cars", "accuracy", float(right.mean()), per_sample=right)
            )
    decision = decide(results(rows), Question())
    assert decision.result.comparisons[0].n == 4
    assert any("not paired" in note for note in decision.notes)


def test_one_arm_with_other_seeds_is_compared_too() -> None:
    rows = table({"raw": 0.3, "b": 0.4, "c": 0.4})
    rows = [
        row._replace(seed=row.seed + 3) if row.arm == "c" else row for row in rows
    ]  # one shared
    decision = decide(results(rows), Question())
    assert [row.n for row in decision.result.comparisons] == [4, 4]
    assert "seed: c has not 3 seeds of raw, so runs are not paired by seed" in decision.notes


@pytest.mark.parametrize("shift", [0, 100])
def test_the_intervals_hold_for_heavy_tails_and_for_seeds_that_differ(shift: int) -> None:
    """95 % is stated; of 200 tables 97 % hold. No arm differs."""
    generator, held = np.random.default_rng(5), 0
    for _ in range(200):
        noise = generator.standard_t(3, size=(4, 3))
        rows = [
            Measurement(
                f"a{arm}", seed + shift * arm, "loss", "value", 10 + float(noise[arm, seed])
            )
            for arm in range(4)
            for seed in range(3)
        ]
        found = decide(results(rows), Question()).result.comparisons
        held += len(found) == 3 and all(row.low <= 0 <= row.high for row in found)
    assert held >= 188


def test_an_effect_and_a_band_are_in_the_unit_of_percentages() -> None:
    shares = table({"raw": 0.3, "b": 0.31})
    percentages = [row._replace(value=100 * row.value) for row in shares]
    one, other = (
        decide(results(rows), Question(effect=0.01 * unit, band=0.1 * unit))
        for rows, unit in ((shares, 1), (percentages, 100))
    )
    assert one.seeds_for_effect == other.seeds_for_effect
    verdicts = [[row.verdict for row in d.result.comparisons] for d in (one, other)]
    assert verdicts == [["practically equal"]] * 2


def test_the_price_of_an_effect_is_that_of_the_report() -> None:
    """Also where the comparisons of several tasks hold together."""
    rows = table({"raw": 0.3, "b": 0.4}) + table({"raw": 3.0, "b": 4.0}, task="c", metric="loss")
    power = decide(results(rows), Question()).result.power
    assert decide(results(rows), Question(effect=power.half)).seeds_for_effect == (
        power.seeds_for_half
    )


def test_a_scale_with_one_arm_is_left_out() -> None:
    rows = table({"raw": 0.3, "b": 0.4}, scale=1.0) + table({"b": 0.5}, scale=2.0)
    decision = decide(results(rows), Question())
    assert decision.scale == "1"
    assert "left out: scales with one arm, 2" in decision.notes
    with pytest.raises(ValueError, match="one arm, raw: a comparison needs two"):
        decide(results(table({"raw": 0.3})), Question())


def test_metrics_of_one_unit_and_direction_are_averaged_as_by_an_ablation() -> None:
    rows = table({"raw": 0.3, "b": 0.4}) + table({"raw": 0.3, "b": 0.4}, task="c", metric="f1")
    decision = decide(results(rows), Question())
    assert (decision.task, decision.metric) == ("average", "2 metrics")
    assert "the average is of 2 metrics, accuracy, f1" in decision.notes


@pytest.mark.parametrize("told", [None, "raw"])
def test_a_copy_is_equal_in_every_answer_and_the_baseline_is_none(told: str | None) -> None:
    """Arms that tie on every value are arms: on a test set of 100 that happens by chance."""
    rng = np.random.default_rng(0)
    rows = []
    for arm in ("b", "raw", "c"):
        for seed in range(3):
            answers = rng.random(100) < 0.5
            value = float(answers.mean())
            rows.append(Measurement(arm, seed, "cars", "accuracy", value, per_sample=answers))
    ties = [row._replace(arm="tie", per_sample=None) for row in rows if row.arm == "raw"]
    copies = [row._replace(arm="copy") for row in rows if row.arm == "raw"]
    decision = decide(results([*copies, *rows, *ties]), Question(baseline=told))
    assert decision.baseline == "raw"
    assert set(decision.arms) == {"raw", "b", "c", "tie"}
    assert any(note.startswith("left out: copy") for note in decision.notes)


def test_pairs_that_a_smaller_scale_orders_as_the_largest() -> None:
    small = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    large = {"a": 0.5, "b": 0.7, "c": 0.6, "d": 0.8}  # b and c change places
    rows = table(small, 1, scale=1.0, noise=0.0) + table(large, 1, scale=2.0, noise=0.0)

    (one,) = decide(results(rows), Question(baseline="a")).scales

    assert (one.small, one.large) == ("1", "2")
    assert (one.agreement.alike, one.agreement.pairs) == (5, 6)


def test_every_metric_of_a_small_scale_is_held_against_the_headline_and_against_itself() -> None:
    arms = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    rows = []
    for scale in (1000.0, 4000.0, 16000.0):
        rows += table(arms, scale=scale, noise=0.02)
        losses = {arm: 3 - value for arm, value in arms.items()}
        rows += table(losses, scale=scale, noise=0.02, metric="loss")

    decision = decide(results(rows), Question())

    pairs = {(one.metric, one.small, one.truth[1]) for one in decision.scales}
    assert pairs == {
        (metric, small, truth)
        for metric, truths in (("accuracy", ["accuracy"]), ("loss", ["accuracy", "loss"]))
        for small in ("1000", "4000")
        for truth in truths
    }
    assert all(one.agreement.share.value == 1 for one in decision.scales)
    assert all(one.with_shift for one in decision.scales)
    assert {one.cost for one in decision.scales} == {1 / 16, 1 / 4}
    lines = decision_lines(decision)
    text = "\n".join(lines)
    assert re.search(r"loss +1000 .* 6 of 6, ", text)
    assert "cars, accuracy: with 4 runs of each arm at 1000, 6.2 % of what" in text


def test_the_order_of_an_average_is_that_of_the_tasks_that_all_scales_have() -> None:
    small, large = {"a": 0.1, "b": 0.2, "c": 0.3}, {"a": 0.1, "b": 0.2, "c": 0.15}
    rows = []
    for scale, arms in ((1.0, small), (2.0, large)):
        rows += table(arms, 1, scale=scale, noise=0.0, task="cars")
        rows += table(arms, 1, scale=scale, noise=0.0, task="pets")
    rows += table({"a": 9, "b": 1, "c": 5}, 1, scale=2.0, noise=0.0, task="late", metric="accuracy")
    first = decide(results(rows), Question()).scales[0]
    assert (first.task, first.agreement.alike, first.agreement.pairs) == ("average", 2, 3)


DATACOMP = r"(?P<arm>datacomp|commonpool)_(?P<scale>[SCALES])_(?P<arm2>\w+_)?s"


@pytest.mark.parametrize(
    ("task", "noise", "scales", "expected"),
    [
        ("ImageNet 1k", 0.002, "sl", (20, 16, 16, 12)),
        ("Average perf. on 38 datasets", 0.006, "sl", (20, 13, 7, 5)),
        # What moved from s to m makes the small scale abstain
        ("ImageNet 1k", 0.002, "sml", (20, 16, 0, 0)),
        ("Average perf. on 38 datasets", 0.006, "sml", (20, 13, 0, 0)),
    ],
)
def test_datacomps_small_scale_decides_by_its_published_noise(
    task: str, noise: float, scales: str, expected: tuple[int, ...]
) -> None:
    columns = Options(pattern=DATACOMP.replace("SCALES", scales))
    table = read_results([str(EXAMPLES / "datacomp_scales.csv")], columns)
    decision = decide(table, Question(task=task, noise=noise))
    (one,) = [
        row for row in decision.scales if (row.task, row.small, row.truth[0]) == (task, "s", task)
    ]
    decided = (one.stated.pairs, one.stated.alike) if one.stated else (0, 0)
    assert (one.agreement.pairs, one.agreement.alike, *decided) == expected
    assert one.cost is None


def test_scales_are_the_results_of_ablations_in_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder may hold others, beside files that are no results."""
    arms = {"raw": 0.3, "b": 0.4, "c": 0.5}
    for name in ("", "scales/small", "scales/low lr"):
        folder = tmp_path / "study" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ablation.json").write_text("{}")
        rows = [
            StudyRow(
                arm=arm, seed=seed, task="cars", metric="accuracy", value=value + 0.001 * seed,
                scale=8000 if name else 12800,
            )
            for arm, value in arms.items()
            for seed in range(2)
        ]  # fmt: skip
        Measurements.of(rows).write(str(folder / "measurements.parquet"))
        (folder / "report.json").write_text("{}")
    null = tmp_path / "study" / "null"
    null.mkdir()
    for file in ("ablation.json", "measurements.parquet"):
        (null / file).write_bytes((tmp_path / "study" / file).read_bytes())
    assert commands.decide([str(tmp_path / "study")]) == 0
    out = capsys.readouterr().out
    assert "orders two arms as cars, accuracy at 12800 does" in out
    for scale in ("8000 scales/small", "8000 scales/low lr"):
        assert re.search(rf"cars, accuracy +{scale} +3 of 3 +3 of 3,", out)
    assert commands.decide([str(tmp_path / "study"), "--noise", "nan"]) == 2
    assert "--noise is nan" in capsys.readouterr().err


def test_an_average_in_the_table_is_not_averaged_again() -> None:
    rows = [
        *itertools.chain.from_iterable(
            table({"raw": 0.3, "b": 0.4}, task=task) for task in ("cars", "pets", "Average perf.")
        )
    ]
    assert set(decide(results(rows), Question()).tasks) == {"cars", "pets"}


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(baseline="row"), "no arm 'row'"),
        (Question(task="car"), "no task 'car'"),
        (Question(metric="acc"), "no metric 'acc'"),
        (Question(without=("x",)), "no task 'x'"),
        (Question(without=("b",)), "no task 'b' .*it is an arm: --where"),
        (Question(lower=("x",)), "no metric or task 'x'"),
        (Question(task="cars", without=("cars",)), "is left out"),
    ],
)
def test_an_unknown_name_is_refused(question: Question, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decide(results(table({"raw": 0.3, "b": 0.4})), question)


def test_pairs_of_dclms_form_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invented rows in the columns of DCLM's table: data sets, repeats, two sizes, gaps."""
    lines = ["Dataset,name,params,tokens,Core"]
    small = {"c4": (0.30, 0.32), "rpj": (0.33,), "rw": (0.36, 0.34), "mix": (0.31,), "old": (0.2,)}
    large = {"c4": 0.50, "rpj": 0.49, "rw": 0.60, "mix": 0.55, "new": 0.7}
    for name, values in small.items():
        lines += [f"{name},/eval,1439795200,28795904000,{value}" for value in values]
    lines += [f"{name},/eval,6889410560,137788211200,{value}" for name, value in large.items()]
    lines += ["c4,/eval,6889410560,275576422400,0.9", "rw,/eval,1439795200,28795904000,"]
    path = tmp_path / "models.csv"
    path.write_text("\n".join(lines))
    words = [str(path), "--arm", "Dataset", "--scale", "params", "--task", "Core"]
    assert commands.decide([*words, "--where", "tokens=28795904000", "tokens=137788211200"]) == 0
    # c4 and mix are tied at the small size, and rpj is the other way round with both of them
    out = capsys.readouterr().out
    assert re.search(r"Core +1439795200 +3 of 5 +3 of 5, ", out)
    assert "every arm has one run" in out


def test_a_file_that_is_missing_and_a_wrong_choice_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.decide([str(tmp_path / "no.csv")]) == 2
    assert commands.decide([str(RUNS), "--where", "arm"]) == 2
    assert commands.decide([str(RUNS), "--effect", "0"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error"] * 3


def test_the_command_prints_the_verdict_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "verdicts.html"
    words = [str(RUNS), "--effect", "0.01", "--page", str(page), "--json"]
    assert commands.decide(words) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("clip30 ") and line.endswith("better") for line in lines)
    assert json.loads(last)["baseline"] == "raw"
    assert "clip30 is better than raw" in page.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Top-1 of what? Beside errors it may be one.
        (
            "model,clean_top1,mCE\nraw,23.9,76.7\nraw,24.1,77.0\nclip,22.0,70.0\nclip,21.8,70.4\n",
            "higher (guess: it may be an error, as mCE: --lower-is-better if it is wrong",
        ),
        ("arm,seed,acc_std\na,0,0.5\na,1,0.6\nb,0,0.6\nb,1,0.5\n", "--value acc_std compares them"),
        (
            "model,acc\n/x/raw_a8f3/last.ckpt,0.5\n/x/clip_c013/last.ckpt,0.6\n",
            "or --pattern '(?P<arm>…)(?P<seed>…)' where these paths hold arm and seed",
        ),
        (
            "method,fold,lr,acc\n"
            + "".join(
                f"{arm},{fold},{lr},0.{n}{fold}\n"
                for n, arm in enumerate(("raw", "clip"), 5)
                for fold in (1, 2)
                for lr in (0.1, 0.2)
            ),
            "--seed fold --block lr (what counts runs, and what crosses the arms)",
        ),
    ],
    ids=["top-1 beside errors", "spreads alone", "paths", "folds and a setting"],
)
def test_what_a_table_does_not_say_is_named_with_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    status = commands.decide([str(tmp_path / "t.csv")])
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert status in (0, 2)
