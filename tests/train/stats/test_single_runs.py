from __future__ import annotations

import math

import pytest

from train.stats import mcnemar, mean_sd


def test_mean_and_sample_sd() -> None:
    measured = mean_sd([0.25, 0.27, 0.32])
    assert measured.mean == pytest.approx(0.28, abs=1e-12)
    expected = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert measured.sd == pytest.approx(expected, abs=1e-12)
    assert mean_sd([0.3]).sd is None
    with pytest.raises(ValueError, match="at least 1 seed; there are 0"):
        mean_sd([])


def test_mcnemar_counts_the_discordant_samples() -> None:
    first = [True] * 9 + [False] * 2 + [True] * 50 + [False] * 20
    second = [False] * 9 + [True] * 2 + [True] * 50 + [False] * 20
    result = mcnemar(first, second)
    assert (result.only_first, result.only_second) == (9, 2)
    # both tails of Binomial(11, 1/2) from 9 up: 2 (55 + 11 + 1) / 2^11
    assert result.p == pytest.approx(134 / 2048, abs=1e-9)
    assert mcnemar([True, False], [True, False]).p == 1.0
    with pytest.raises(ValueError, match="2 samples cannot be paired with 1"):
        mcnemar([True, False], [True])
