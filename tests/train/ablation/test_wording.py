from __future__ import annotations

import pytest

from train.ablation import wording
from train.ablation.stats import compare
from train.ablation.wording import DASH, MINUS

RAW = {0: 0.30, 1: 0.34, 2: 0.32}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0412, "+4.1"),
        (-0.0412, f"{MINUS}4.1"),
        (0.0, "+0.0"),
        (-0.0001, f"{MINUS}0.0"),
        (None, DASH),
    ],
)
def test_points_always_have_a_sign(value: float | None, shown: str) -> None:
    assert wording.points(value) == shown


def test_intervals_are_written_one_way() -> None:
    assert wording.interval(0.041, -0.029, 0.053) == f"+4.1 [{MINUS}2.9, +5.3]"
    assert wording.interval(0.041, None, None) == "+4.1"
    assert wording.mean_and_sd(0.341, 0.01) == "34.1 ± 1.0"
    assert wording.mean_and_sd(0.341, None) == "34.1"
    assert wording.mean_and_sd(None, None) == DASH


def test_a_difference_is_described_in_points() -> None:
    (clip30,) = compare({"raw": RAW, "clip30": {0: 0.401, 1: 0.439, 2: 0.422}}, "raw", 0.005)
    assert wording.describe(clip30, "objects") == (
        "clip30 is better than raw on objects: +10.1 [+9.7, +10.4] points "
        "(3 seeds, Holm p < 0.001)."
    )


def test_a_tiny_difference_is_named_as_inside_the_band() -> None:
    (tiny,) = compare({"raw": RAW, "a": {0: 0.2981, 1: 0.3380, 2: 0.3179}}, "raw", 0.005)
    text = wording.describe(tiny, "objects")
    assert f"a is worse than raw on objects: {MINUS}0.2 [" in text
    assert text.endswith("; it is inside the band of ±0.5 points that counts as equal.")


def test_what_could_not_have_been_found_is_said_where_nothing_was() -> None:
    (noisy,) = compare({"raw": RAW, "a": {0: 0.33, 1: 0.30, 2: 0.35}}, "raw", 0.005)
    text = wording.describe(noisy, "objects")
    assert "a is not distinguishable from raw on objects" in text
    assert text.endswith(
        f"differences below {100 * (noisy.mde or 0):.1f} points could not have been found."
    )


def test_identical_scores_are_described_without_a_claim() -> None:
    (same,) = compare({"raw": RAW, "a": RAW}, "raw", 0.005)
    assert wording.describe(same, "objects") == (
        "a is not distinguishable from raw on objects: +0.0 points (3 seeds, Holm p = 1.000); "
        "every seed gives the same difference, so the noise is not known."
    )
