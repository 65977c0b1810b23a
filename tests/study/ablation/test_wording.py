"""Numbers with the digits that they need, and tables of a terminal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.verdict import wording
from clipmill.verdict.wording import MINUS


@pytest.mark.parametrize(
    ("mean", "sd", "unit", "text"),
    [
        (11954.09, 402.3, "", "11954 ± 402"),
        (3.02e-5, 6e-7, "", "3.02e-05 ± 6e-07"),
        (2.4131, 0.0123, "", "2.413 ± 0.012"),
        (2.4131, 0.0961, "bits", "2.41 ± 0.10"),
        (-0.5, 0.04, "", f"{MINUS}0.50 ± 0.04"),
        (1.513e8, 4.1e4, "ms", "1.5130e+08 ± 4e+04"),
        (1.7976e308, 0.0, "", "1.798e+308 ± 0"),
        (2.0**600, 2.0**597, "", "4.1e+180 ± 5e+179"),
        (2.0**-600, 2.0**-604, "", "2.41e-181 ± 1.5e-182"),
        (5e-324, 5e-324, "", "5e-324 ± 5e-324"),
        (3e-8, 8e-7, "", "0 ± 8e-07"),
        (9.99e-6, 4e-7, "", "1.00e-05 ± 4e-07"),
        (2.4131, 4e-16, "", "2.413 ± 0.000"),  # rounding errors of equal values
        (0.0, 0.0, "", "0 ± 0"),
        (2.4131, None, "", "2.413"),
        (3.021e-5, None, "", "3.021e-05"),
        (11954.09, None, "", "11954"),
        (math.nan, 1.0, "", "nan ± 1.0"),
        (math.inf, None, "", "inf"),
        (0.621, 0.0003, "share", "62.100 ± 0.030"),
        (0.621, 0.0005, "share", "62.1 ± 0.1"),
        (0.621, 4e-17, "share", "62.1 ± 0.0"),
        (3e-7, 1e-8, "share", "3.00e-05 ± 1.0e-06"),
    ],
)
def test_a_value_has_the_digits_that_its_noise_leaves(
    mean: float, sd: float | None, unit: str, text: str
) -> None:
    assert wording.mean_and_sd(mean, sd, unit) == text


@pytest.mark.parametrize(
    ("ends", "unit", "text"),
    [
        ((402, -3, 807), "ms", f"+402 [{MINUS}3, +807]"),
        ((1e-9, -6e-7, 6e-7), "", f"+0 [{MINUS}6e-07, +6e-07]"),
        ((-0.12, -0.2, -0.04), "", f"{MINUS}0.12 [{MINUS}0.20, {MINUS}0.04]"),
        ((0.1, None, None), "", "+0.1000"),
        ((4e-16, None, None), "", "+0"),
        ((-2e-16, None, None), "", "+0"),
        ((0.0001, -0.0002, 0.0004), "share", f"+0.010 [{MINUS}0.020, +0.040]"),
        ((0.05, 0.0499, 0.0501), "share", "+5.000 [+4.990, +5.010]"),
        ((0.05, 0.0497, 0.0503), "share", "+5.0 [+5.0, +5.0]"),
    ],
)
def test_a_difference_has_the_digits_of_its_interval(ends, unit: str, text: str) -> None:
    assert wording.interval(*ends, unit) == text


@given(
    st.floats(min_value=-1e305, max_value=1e305),
    st.floats(min_value=0, max_value=1e305),
    st.sampled_from(["share", "", "nats"]),
)
def test_what_is_printed_is_the_number_up_to_its_noise(mean: float, sd: float, unit: str) -> None:
    factor = 100 if unit == "share" else 1
    texts = wording.mean_and_sd(mean, sd, unit).replace(MINUS, "-").split(" ± ")
    shown, noise = (float(text) for text in texts)
    coarsest = max(0.06 if unit == "share" else 0, factor * sd / 2, 1e-3 * abs(factor * mean))
    assert shown == pytest.approx(factor * mean, abs=coarsest)
    assert noise <= factor * sd * 1.15 + (0.05 if unit == "share" else 0)
    if sd > 1e-11 * abs(mean) and unit != "share":
        assert noise >= factor * sd / 1.15


def test_a_column_is_as_wide_as_its_cells_and_two_spaces_from_the_next() -> None:
    rows = [("name", "runs", "mean"), ("日本語", "10", "11954 ± 402"), ("a\x1b[31m\nb", "2", "")]
    assert wording.aligned(rows, right=(1, 2)) == [
        "name            runs         mean",
        "日本語            10  11954 ± 402",
        r"a\x1b[31m\x0ab     2",
    ]
    assert wording.aligned([]) == []


def test_a_name_that_leaves_no_room_has_its_own_line() -> None:
    rows = [("name", "1"), ("x" * 30, "2"), ("日" * 9, "3"), ("y" * 17, "4")]
    assert wording.aligned(rows, indent=2, width=22) == [
        f"  name{13 * ' '}  1",
        f"  {'x' * 30}",
        f"  {17 * ' '}  2",
        f"  {'日' * 9}",
        f"  {17 * ' '}  3",
        f"  {'y' * 17}  4",
    ]
    assert wording.aligned(rows[1:2], width=10) == ["x" * 30, "  2"]


@given(st.text(st.characters(codec="utf-8")), st.integers(min_value=2, max_value=30))
def test_wrapped_text_loses_nothing_and_fits(text: str, width: int) -> None:
    lines = wording.wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(wording.cells(line) <= width for line in lines)


def test_text_is_wrapped_at_spaces_first() -> None:
    assert wording.wrapped("ab cd efghijk", 5) == ["ab cd", "efghi", "jk"]
    assert wording.wrapped("日本語 x", 4) == ["日本", "語 x"]
