"""Every shape has an inside and an outside, at any size of grid."""

from __future__ import annotations

import numpy as np
import pytest

from examples.miniweb.shapes import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_negative_inside_and_positive_in_the_corners(name: str) -> None:
    x, y = np.meshgrid(np.linspace(-1, 1, 65), np.linspace(-1, 1, 65))
    parts = SHAPES[name](x.astype(np.float32), y.astype(np.float32))
    union = np.minimum.reduce([distance for distance, _ in parts])
    assert union.shape == (65, 65)
    assert 0.1 < (union < 0).mean() < 0.9
    assert min(union[0, 0], union[0, -1], union[-1, 0], union[-1, -1]) > 0
    for _, colour in parts:
        assert colour is None or all(0 <= channel <= 255 for channel in colour)


def test_a_shape_that_is_not_drawn_is_unknown() -> None:
    with pytest.raises(KeyError):
        SHAPES["triangle"]
