"""The parts of benchmarks/studies/curves.py that compute: log lines, windows, intervals,
tars; nothing is trained.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import curve_numbers
from tests.support.late import stats


def line(step: int, loss: float, *, of: int = 3, batch: int = 128) -> str:
    """As open_clip_train 3.3 writes it."""
    return (
        f"2026-01-02,03:04:05 | INFO | Train Epoch: 0 [{step * batch:>4}/{of * batch} "
        f"({100 * step / of:.0f}%)] "
        "Data (t): 0.320 Batch (t): 1.767, 72.4469/s, 72.4469/s/gpu "
        f"LR: {step * 5e-5:5f} Logit Scale: 14.286 Contrastive_loss: {loss:#.5g} (4.8000) Loss: "
        f"{loss:#.5g} (4.8000)"
    )


def test_the_log_gives_the_losses_of_steps_and_not_their_means() -> None:
    text = "\n".join(
        ["2026-01-02,03:04:05 | INFO | Start epoch 0", line(1, 4.9286), line(2, 4.5), line(3, 12.0)]
    )
    log = curve_numbers.parse_log(text, 128)
    assert log == {
        "loss": [4.9286, 4.5, 12.0],
        "lr": [5e-5, 1e-4, 1.5e-4],
        "factor": [14.286] * 3,
    }


def test_a_comparison_gives_the_difference_beside_the_spread_of_seeds() -> None:
    ours = [[4.0, 3.0], [4.2, 3.0], [4.4, 3.0]]
    theirs = [[4.1, 2.0], [4.3, 2.0], [4.5, 2.0]]
    comparison = curve_numbers.compare(ours, theirs)
    assert comparison["difference"] == pytest.approx([-0.1, 1.0])
    assert comparison["mean_absolute_difference"] == pytest.approx(0.55)
    assert comparison["mean_signed_difference"] == pytest.approx(0.45)
    assert comparison["seed_sd"] == pytest.approx(
        0.1
    )  # 0.2 in the first window, none in the second
    assert comparison["ratio"] == pytest.approx(5.5)
    assert (comparison["windows"], comparison["windows_outside_welch"]) == (2, 1)
    assert comparison["ratio_if_equal"] == pytest.approx(0.6515, abs=1e-4)
    with pytest.raises(ValueError, match="at least 2"):
        curve_numbers.compare(ours[:1], theirs)


def test_the_interval_is_scipys() -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(4, 0.1, (3, 5)), random.normal(4, 0.3, (4, 5))
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert curve_numbers.welch_half(ours, theirs) == pytest.approx(
        (interval.high - interval.low) / 2
    )
