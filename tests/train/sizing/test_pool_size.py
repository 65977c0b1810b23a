from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.sizing.advice import MEASURED, pool_size


def test_a_measured_size_is_the_measured_bytes() -> None:
    document = json.loads(MEASURED.read_text())
    each = document["stored_bytes"]["256"]["mean"]
    pool = pool_size(1000, 256, 8.0)
    assert pool.stored_bytes == pytest.approx(1000 * each)
    assert pool.downloaded_bytes == pytest.approx(1000 * document["downloaded_bytes"])
    # 8 Mbit/s are a megabyte a second
    assert pool.download_days == pytest.approx(pool.downloaded_bytes / 1e6 / 86400)
    assert pool.source.startswith("measured with ")


def test_other_sizes_lie_on_the_line_over_the_pixels(tmp_path: Path) -> None:
    path = tmp_path / "bytes.json"
    stored = {str(side): {"mean": 100 + 2.0 * side * side} for side in (10, 20, 30)}
    path.write_text(json.dumps({"title": "t", "downloaded_bytes": 1, "stored_bytes": stored}))
    pool = pool_size(10, 40, path=path)
    assert pool.bytes_per_pair == pytest.approx(100 + 2 * 1600)
    assert pool.download_days is None
    assert "by the line" in pool.source
    sizes = [pool_size(1, side).bytes_per_pair for side in (32, 128, 300, 512, 4096)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 256), "pairs is 0; it must be at least 1"),
        ((1, 0), r"image size is 0; it must lie in \[32, 4096\]"),
        ((1, 256, 0.0), "bandwidth is 0.0; it must be above 0"),
        ((1, 256, float("nan")), "bandwidth is nan"),
    ],
)
def test_numbers_of_no_pool_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool_size(*arguments)  # type: ignore[arg-type]
