"""A decision on the terminal and as a page: digits, names of strangers, how the file was read."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from clipmill.manifests.text import is_printable
from clipmill.verdict.decide.page import decision_lines, render_decision
from clipmill.verdict.decide.verdicts import Decision, Question, decide
from clipmill.verdict.tables.account import Account, account_texts
from clipmill.verdict.wording import MINUS
from tests.support.measurements import Measurement, results_of
from tests.verdict.decisions.test_account import ACCOUNT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read(Decision):
    """A decision on rows that were read from a file."""

    account: Account


def decided(means: dict[str, float], noise: float = 0.01, seeds: int = 4, **more: str) -> Decision:
    rng = np.random.default_rng(0)
    rows = []
    for arm, mean in means.items():
        for seed in range(seeds):
            value = mean + noise * float(rng.normal())
            one = {"task": "cars", "metric": "accuracy", **more}
            rows.append(Measurement(arm=arm, seed=seed, value=value, **one))
    return decide(results_of(rows, scales={0.0: ""}, costs=True), Question())


def in_unit(decision: Decision, unit: str) -> Decision:
    """The decision as of a metric with another unit."""
    comparisons = tuple(dataclasses.replace(row, unit=unit) for row in decision.result.comparisons)
    result = dataclasses.replace(decision.result, unit=unit, comparisons=comparisons)
    return dataclasses.replace(decision, result=result)


def with_account(decision: Decision, account: Account = ACCOUNT) -> Read:
    fields = {one.name: getattr(decision, one.name) for one in dataclasses.fields(decision)}
    return Read(**{**fields, "account": account})


def row_of(lines: list[str], arm: str) -> list[str]:
    """The cells of an arm's row: columns are at least two spaces apart."""
    (line,) = [line for line in lines if line.startswith(f"{arm} ")]
    return re.split(" {2,}", line)


@pytest.mark.parametrize(
    ("mean", "noise", "score"),
    [
        (11954.0, 402.0, r"\d{5} ± \d{3}"),
        (3e-5, 6e-7, r"[23]\.\d+e-05 ± \d(\.\d)?e-0[67]"),
        (2.4, 0.01, r"2\.[34]\d+ ± 0\.0\d+"),
    ],
)
def test_a_loss_has_the_digits_of_its_noise_and_neither_percent_nor_points(
    mean: float, noise: float, score: str
) -> None:
    means = {"raw": mean, "b": mean + 9 * noise, "c": mean}
    decision = in_unit(decided(means, noise, metric="loss"), "")
    lines = decision_lines(decision)
    assert re.split(" {2,}", lines[0]) == ["cars, loss", "runs", "mean ± SD", "to raw"]
    name, runs, shown, difference, verdict = row_of(lines, "b")
    assert (name, runs, verdict) == ("b", "4", "worse")
    assert re.fullmatch(score, shown)
    mean_shown, low, high = (float(number) for number in re.findall(r"[-+][\d.e-]+", difference))
    assert low < mean_shown < high
    page = render_decision(decision, "runs.csv")
    for text in ("\n".join(lines[: lines.index("") + 3]), re.sub("<style>.*</style>", "", page)):
        assert " points" not in text
        assert "mean ± SD, %" not in text
    assert f"is worse than raw: {difference} (cars, loss)." in page


def test_the_unit_of_a_metric_is_printed_where_it_has_one() -> None:
    decision = decided({"raw": 3.0, "b": 4.0}, metric="logprob")
    lines = decision_lines(decision)
    assert lines[0].endswith("mean ± SD, nats  to raw")
    assert any(
        re.match(r"The smallest visible difference is [\d.]+ nats: of", one) for one in lines
    )


def test_names_of_any_length_and_kind_leave_the_table_whole() -> None:
    names = {
        "raw": 0.3,
        "日本語の腕": 0.5,
        "é́": 0.3,
        "filtered_" * 20: 0.4,
        "\x1b[2J\nnext\u202e": 0.4,
    }
    lines = decision_lines(decided(names, task="a\x07b"), width=100)
    assert all(is_printable(line) for line in lines)
    table = lines[: lines.index("")]
    assert len(table) == len(names) + 2  # the head, and a line more for the long name
    assert "filtered_" * 20 in table
    scores = [re.search(r"\d\d\.\d ± ", line) for line in table]
    from rich.cells import cell_len

    ends = {cell_len(m.string[: m.end()]) for m in scores if m}
    assert len(ends) == 1
    assert "\\x1b[2J\\x0anext\\u202e" in "\n".join(table)


def test_a_sentence_with_a_name_does_not_act_on_the_terminal() -> None:
    lines = decision_lines(decided({"raw\x1b[2J": 0.3, "b": 0.4}))
    assert "  baseline: raw\\x1b[2J" in lines


def test_a_table_fits_its_terminal() -> None:
    means = {"raw": 0.3, "a_filter_with_a_name_of_40_letters_in_all": 0.4, "short": 0.4}
    decision = decided(means)
    narrow, wide = (decision_lines(decision, width) for width in (80, 200))
    assert max(len(line) for line in narrow[: narrow.index("")]) <= 80
    assert len(narrow) == len(wide) + 1
    assert len(wide[: wide.index("")]) == 4


def test_the_page_says_how_the_file_was_read() -> None:
    decision = decided({"raw": 0.3, "b": 0.4})
    read = with_account(decision)
    lines = decision_lines(read)
    assert "  " + account_texts(ACCOUNT)[1] in lines[lines.index("Read as:") :]
    page = render_decision(read, "runs.csv")
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page.split("<h2>Read as</h2>")[1]))
    for part in (
        "a table, one row for each run",
        "rows 40 38 2 without an arm",
        "cells 114 110 3 empty; 1 no number",
        "method arm its name",
        "bs setting guess: the same in every row",
        "foo value lower guess as they are by values",
        "baseline: raw",
    ):
        assert part in text
    assert "<strong>guess: the same in every row</strong>" in page
    assert "Columns (6)" not in render_decision(decision, "runs.csv")


def test_nothing_on_the_page_turns_its_direction_or_is_a_tag() -> None:
    names = {"raw\u202e": 0.3, "<b>x</b>\x1b[2J": 0.4}
    page = render_decision(decided(names, task="a\x07\u2066b"), "runs\u202e.csv")
    assert all(is_printable(line) for line in page.splitlines())
    assert "&lt;b&gt;x&lt;/b&gt;\\x1b[2J" in page
    assert "<b>x" not in page


def test_a_long_name_of_the_baseline_does_not_widen_the_table() -> None:
    lines = decision_lines(decided({"x" * 50: 0.3, "b": 0.4}), width=100)
    assert lines[0].endswith("to the first")


def test_the_minus_is_the_sign_and_an_exponent_can_be_copied() -> None:
    decision = in_unit(decided({"raw": 4e-5, "b": 3e-5}, 6e-7, metric="loss"), "")
    difference = row_of(decision_lines(decision), "b")[3]
    assert difference.startswith(f"{MINUS}")
    assert "e-0" in difference


def test_runs_that_are_as_many_in_each_arm_are_said_once_on_the_page() -> None:
    """Beside each name they make a row of the table wrap."""
    runs = [("raw", seed) for seed in range(4)] + [("clip30", seed) for seed in range(4)]
    rows = [
        Measurement(arm=arm, seed=seed, task="cars", metric="accuracy", value=0.3 + seed / 90)
        for arm, seed in runs
    ]
    equal, fewer = (
        render_decision(decide(results_of(part, scales={0.0: ""}, costs=True), Question()), "a.csv")
        for part in (rows, rows[:-1])
    )
    assert "over 4 runs of each arm" in equal
    assert "(4 runs)" not in equal
    assert "(4 runs)" in fewer
    assert "(3 runs)" in fewer
