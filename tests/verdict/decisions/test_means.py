"""Verdicts from means, spreads and numbers of runs: those of the runs themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from clipmill.verdict.decide.exports import to_csv, to_latex, to_markdown, to_svg
from clipmill.verdict.decide.page import decision_lines, render_decision
from clipmill.verdict.decide.verdicts import Decision, Question, decide
from clipmill.verdict.tables.reader import read_results
from clipmill.verdict.tables.roles import Options
from tests.support import commands

PAIR = "method,acc_mean,acc_std,n_seeds\nold,0.711,0.021,4\nnew,0.752,0.012,4\n"


def decided(folder: Path, text: str, name: str = "means.csv", **told: object) -> Decision:
    path = folder / name
    path.write_text(text)
    return decide(read_results([str(path)], Options(**told)), Question())


def refusals(decision: Decision) -> str:
    return "; ".join(decision.refusals)


def test_one_arm_has_the_interval_of_a_t_test_from_means(tmp_path: Path) -> None:
    (row,) = decided(tmp_path, PAIR).result.comparisons

    test = stats.ttest_ind_from_stats(0.752, 0.012, 4, 0.711, 0.021, 4)
    half = stats.t.ppf(0.975, 6) * (0.752 - 0.711) / test.statistic
    assert (row.p, row.df, row.n) == (pytest.approx(test.pvalue, rel=1e-9), 6, 4)
    assert (row.low, row.high) == pytest.approx((0.041 - half, 0.041 + half), rel=1e-9)
    assert row.verdict == "better"


def test_arms_of_one_spread_have_the_p_of_welch(tmp_path: Path) -> None:
    text = "method,acc\nold,0.711 ± 0.02\nnew,0.752 ± 0.02\n"
    (row,) = decided(tmp_path, text, runs=5, spread="sd").result.comparisons
    welch = stats.ttest_ind_from_stats(0.752, 0.02, 5, 0.711, 0.02, 5, equal_var=False)
    assert row.p == pytest.approx(welch.pvalue, rel=1e-9)


@settings(max_examples=40, deadline=None)
@example(counts=[1, 1, 6], blocks=3, seed=463)  # spreads that follow √(p(1-p)/n) by chance
@given(
    counts=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    blocks=st.sampled_from([1, 1, 3]),
    seed=st.integers(0, 10_000),
)
def test_means_have_the_intervals_of_their_runs(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], blocks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    runs, means = ["arm,lr,loss"], ["arm,lr,loss_mean,loss_std,n_runs"]
    for arm, count in enumerate(counts):
        for lr in range(blocks):
            own = rng.normal(2 + rng.normal(), 0.1 + rng.random(), count)
            runs += [f"a{arm},lr{lr},{value!r}" for value in map(float, own)]
            sd = repr(float(own.std(ddof=1))) if count > 1 else ""
            means.append(f"a{arm},lr{lr},{float(own.mean())!r},{sd},{count}")
    folder = tmp_path_factory.mktemp("means")
    names = {"block": ("lr",)} if blocks > 1 else {}
    of_runs = decided(folder, "\n".join(runs), names=names)
    of_means = decided(folder, "\n".join(means), names=names)

    if max(counts) == 1:
        assert not of_means.result.comparisons or of_means.over == of_runs.over
        return
    rows = zip(of_runs.result.comparisons, of_means.result.comparisons, strict=True)
    for one, other in rows:
        assert (one.arm, one.n, one.verdict) == (other.arm, other.n, other.verdict)
        for key in ("difference", "low", "high", "p", "p_adjusted", "df", "sd", "low90", "high90"):
            expected = getattr(one, key)
            assert getattr(other, key) == pytest.approx(expected, rel=1e-9, abs=1e-9), key
    assert of_means.result.power == pytest.approx(of_runs.result.power) or (
        of_runs.result.power is not None and of_means.result.power is not None
        and of_means.result.power.smallest == pytest.approx(of_runs.result.power.smallest)
    )  # fmt: skip
    if of_runs.interaction is not None and of_means.interaction is not None:
        assert of_means.interaction.p == pytest.approx(of_runs.interaction.p, rel=1e-6)


def test_no_run_is_invented_and_all_forms_say_it(tmp_path: Path) -> None:
    decision = decided(tmp_path, PAIR)
    assert (decision.values, decision.task_values, decision.signals) == ({}, {}, ())
    assert decision.means is not None
    old = decision.means["acc_mean"]["old"]
    assert (old.n, old.mean, old.sd) == (4, pytest.approx(0.711), pytest.approx(0.021))
    lines = decision_lines(decision)
    assert lines[0].startswith("acc_mean, from means and SDs")
    assert "4    71.1 ± 2.1" in lines[1]
    for write in (to_markdown, to_latex, to_svg, lambda d: render_decision(d, "means.csv")):
        text = write(decision)
        assert "from means and SDs" in text
        assert "ingle runs" not in text
    assert "acc_mean,value,old,old,4,0.711" in to_csv(decision)


@pytest.mark.parametrize(
    ("kind", "spread"), [("sd", 0.02), ("sem", 0.01), ("ci95", 0.01 * 1.959964)]
)
def test_each_kind_of_spread_is_that_of_the_runs(tmp_path: Path, kind: str, spread: float) -> None:
    text = f"method,acc\nold,0.71 ± {spread}\nnew,0.75 ± {spread}\n"
    decision = decided(tmp_path, text, runs=4, spread=kind)
    assert decision.means is not None
    assert decision.means["acc"]["old"].sd == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "told", "asks"),
    [
        ("m,acc\na,0.71 ± 0.01\nb,0.75 ± 0.01\n", {},
         "give --runs N and --spread sd, sem or ci95"),
        ("m,acc\na,0.71 ± 0.01\nb,0.75 ± 0.01\n", {"runs": 3}, "give --spread sd, sem or ci95"),
        ("m,acc\na,0.71 ± 0.01\nb,0.75 ± 0.01\n", {"spread": "sd"}, "give --runs N"),
        ("m,acc (mean ± SD)\na,0.71 ± 0.01\nb,0.75 ± 0.01\n", {}, "give --runs N"),
        ("m,acc,acc_err,seeds\na,0.71,0.01,3\nb,0.75,0.01,3\n", {},
         "give --spread sd, sem or ci95"),
        ("m,acc,sem,n\na,0.71,0.01,3\nb,0.75,0.01,3\n", {},
         "give --runs N (--runs n if that column counts them)"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_asked_for(
    tmp_path: Path, text: str, told: dict[str, object], asks: str
) -> None:
    decision = decided(tmp_path, text, **told)
    assert refusals(decision).endswith(asks)
    assert decision.means is None
    assert not decision.result.comparisons


def test_the_command_asks_and_one_answer_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.csv"
    path.write_text("m,acc,n\na,0.71 ± 0.01,3\nb,0.74 ± 0.01,3\n")
    assert commands.decide([str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "--runs N (--runs n if that column counts them) and --spread" in answer["refusals"][-1]
    assert commands.decide([str(path), "--json", "--runs", "n", "--spread", "sem"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["result"]["comparisons"][0]["verdict"] == "not distinguishable"
    assert answer["means"]["acc"]["a"] == {"n": 3, "mean": 0.71, "sd": pytest.approx(0.0173205)}
    for words in (["--runs", "1"], ["--runs", "-3"], ["--runs", "2.5"], ["--spread", "iqr"]):
        assert commands.decide([str(path), *words]) == 2
    assert commands.decide([str(path), "--runs", "seeds"]) == 2
    assert "there is no column 'seeds'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m,acc\na,0.71\nb,0.75\n", "no value has one"),
        ("m,seed,acc,acc_std\na,0,0.71,0.01\na,1,0.72,0.01\nb,0,0.75,0.01\nb,1,0.75,0.01\n",
         "runs have seeds"),
        ("m,acc\na,0.71 ± 0.01\na,0.72 ± 0.01\nb,0.75 ± 0.01\nb,0.75 ± 0.01\n",
         "arms have several rows"),
        ("m,acc,acc_stderr\na,0.412,0.0101\nb,0.622,0.0099\nc,0.801,0.0082\n",
         "2,375 test samples of one run"),
    ],
)  # fmt: skip
def test_options_for_means_are_refused_where_there_are_none(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        decided(tmp_path, text, runs=3, spread="sd")


def test_spreads_that_a_test_set_leaves_are_none_of_runs(tmp_path: Path) -> None:
    share = np.array([0.31, 0.52, 0.77])
    rows = [f"m{n},{p:.3f},{np.sqrt(p * (1 - p) / 1319):.4f}" for n, p in enumerate(share.tolist())]
    decision = decided(tmp_path, "m,acc,acc_stderr\n" + "\n".join(rows))
    assert any("test samples of one run" in note for note in decision.notes)
    assert "every arm has one run" in refusals(decision)


def test_a_mean_without_a_spread_or_of_one_run_has_no_verdict(tmp_path: Path) -> None:
    text = (
        "method,acc,acc_std,runs,f1\nold,0.71,0.01,3,0.5\nnew,0.75,0.01,3,0.6\n"
        "bare,0.79,,3,0.7\nonce,0.79,,1,0.7\n"
    )
    decision = decided(tmp_path, text)
    assert [row.arm for row in decision.result.comparisons] == ["new"]
    assert "no verdict on bare: no spread or number of runs of the mean" in refusals(decision)
    assert "no verdict on once: one run" in refusals(decision)
    assert "left out: f1, whose means have no spread" in decision.notes


def test_several_tasks_have_no_average(tmp_path: Path) -> None:
    text = "m,cars_mean,cars_std,pets_mean,pets_std\na,71,1,81,1\nb,75,1,88,1\n"
    decision = decided(tmp_path, text, runs=4)
    assert decision.task == "cars_mean"
    assert [row.verdict for row in decision.tasks["pets_mean"].comparisons] == ["higher"]
    assert "no average over the 2 tasks: means of runs do not say" in refusals(decision)


def test_an_average_in_the_file_decides(tmp_path: Path) -> None:
    text = "m,cars,pets,Average\na,71 ± 1,81 ± 2,76 ± 1\nb,75 ± 1,88 ± 2,81.5 ± 1\n"
    decision = decided(tmp_path, text, runs=4, spread="sd")
    assert (decision.task, decision.refusals) == ("Average", ())
    assert set(decision.tasks) == {"cars", "pets", "Average"}


def test_standard_errors_of_lm_eval_are_none_of_runs(tmp_path: Path) -> None:
    for arm, value in (("raw", 0.41), ("b", 0.61)):
        document = {"results": {"piqa": {"acc,none": value, "acc_stderr,none": 0.01}},
                    "model_name": arm, "n-shot": {"piqa": 0}}  # fmt: skip
        (tmp_path / f"{arm}.json").write_text(json.dumps(document))
    decision = decide(read_results([str(tmp_path)]), Question())
    assert "stderr: over the test samples of one run, so no spread of runs" in decision.notes
    assert "every arm has one run" in refusals(decision)
    with pytest.raises(ValueError, match="no value has one"):
        read_results([str(tmp_path)], Options(runs=3, spread="sem"))


def test_a_column_with_a_spread_of_its_own_is_a_value(tmp_path: Path) -> None:
    text = "config,pr_std,pr_std_sd,roc_std\na,0.07,0.02,0.5\nb,0.33,0.02,0.7\n"
    decision = decided(tmp_path, text, runs=5)
    roles = {one.name: one.role for one in decision.account.columns}
    assert roles == {"config": "arm", "pr_std": "metric", "pr_std_sd": "spread",
                     "roc_std": "metric"}  # fmt: skip


def test_rows_of_spreads_stand_beside_their_means(tmp_path: Path) -> None:
    text = (
        ",old,new,newer\n"
        "MSE (Avg) EuroParl 6th,0.31,0.22,0.21\nMSE (Std) EuroParl 6th,0.01,0.02,0.01\n"
        "MSE (Avg) NELA,0.51,0.41,0.45\nMSE (Std) NELA,0.01,0.02,\n"
    )
    decision = decided(tmp_path, text, names={"arm": ("columns",)}, runs=3)
    assert decision.means is not None
    assert set(decision.means) == {"MSE EuroParl 6th", "MSE NELA"}
    assert decision.means["MSE NELA"]["new"].sd == pytest.approx(0.02)
    assert decision.means["MSE NELA"]["newer"].sd is None
    assert [row.verdict for row in decision.result.comparisons] == ["better", "better"]
    one = "stat,method,acc\nmean,old,0.71\nstd,old,0.01\nmean,new,0.75\nstd,new,0.01\n"
    assert decided(tmp_path, one, runs=4).result.comparisons[0].verdict == "better"


def test_seeds_that_differ_are_no_count_of_runs(tmp_path: Path) -> None:
    text = "m,seeds,acc,acc_std\na,1,0.71,0.01\na,2,0.72,0.01\nb,1,0.75,0.01\nb,2,0.77,0.01\n"
    decision = decided(tmp_path, text)
    assert (decision.means, decision.paired, len(decision.values["a"])) == (None, True, 2)


def test_rows_that_are_no_spreads_stay(tmp_path: Path) -> None:
    text = "model,acc\nCLIP,0.71\nCLIP SD,0.75\n"
    assert decided(tmp_path, text).arms == ("CLIP", "CLIP SD")
