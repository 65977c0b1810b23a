"""The block `miniweb`: impossible values are refused when it is made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from manifests.schema import Miniweb


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise": 1.0}, "noise is 1.0"),
        ({"pairs": -3}, "pairs is -3; it must lie in 1..1000000000"),
        ({"hosts": 0}, "hosts is 0; it must lie in 1..100000"),
        ({"fault_kinds": ("html", "gone")}, "miniweb fault_kinds has 'gone'; known are dead_link"),
        ({"captions": "c.csv"}, "miniweb captions is given without photos"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Miniweb(**values)
