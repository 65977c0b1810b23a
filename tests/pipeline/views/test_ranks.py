"""The k-th value in bounded memory is the k-th value."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from clipmill.pipeline.views import choose as choosing
from clipmill.pipeline.views.choose import Ranks

RNG = np.random.default_rng(0)
CASES = {
    "floats": RNG.normal(size=3000),
    "float16": RNG.normal(size=3000).astype(np.float16),
    "small numbers": RNG.integers(-5, 5, 3000),
    "large numbers": RNG.integers(0, 2**63 - 1, 3000),
    "zeros and infinities": np.array([0.0, -0.0, 0.0, -1, np.inf, -np.inf]),
    "a single one": np.array([1.5]),
    "unsigned": RNG.integers(0, 2**64 - 1, 500, dtype=np.uint64),
    "many": RNG.permutation(20_000) // 2,
}


@pytest.mark.parametrize("name", CASES)
def test_the_value_and_its_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values come in seven parts, beside others, and some after a rank was found."""
    monkeypatch.setattr(choosing, "RANKED_AT_ONCE", 1000)
    values = CASES[name]
    ranks = Ranks(tmp_path)
    for part in np.array_split(values, 7):
        ranks.add("others", np.arange(3))
        ranks.add("values", part)
        ranks.find("values", lambda count: count)
    for share in (0.001, 0.3, 1.0):
        k = math.ceil(share * len(values))
        expected = np.partition(values, len(values) - k)[len(values) - k]
        result = ranks.find("values", lambda count, k=k: count - k + 1)
        assert result is not None
        assert (result.value, result.count) == (expected.item(), len(values))
        assert type(result.value) is type(expected.item())
        assert result.count - result.below == int((values >= expected).sum())
        assert result.equal == int((values == expected).sum())


def test_without_values_there_is_no_result(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.add("x", np.empty(0))
    assert ranks.find("x", lambda count: 1) is None
    assert ranks.find("y", lambda count: 1) is None


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "0.values").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*0\.values"):
        Ranks(tmp_path).add("x", np.zeros(10_000))
