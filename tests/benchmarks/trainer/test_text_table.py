from __future__ import annotations

import pytest

from benchmarks.trainer.tables import short, text_table

ROWS = [["ViT", "1.5"], ["B", "10.25"]]


def test_columns_are_aligned() -> None:
    assert text_table(["model", "rate"], ROWS) == [
        "model   rate",
        "ViT      1.5",
        "B      10.25",
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_table(["model", "rate"], [["ViT", "1", "2"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1234.5, "1,234"),
        (99.4, "99.4"),
        (0.01234, "0.0123"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert short(value) == text
