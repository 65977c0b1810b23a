"""Dataclasses as plain values and back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from manifests import disk
from manifests.schema import Blend


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "Blend is 5; it must be a mapping"),
        ({"name": "b", "pools": {"w": "x"}}, "Blend has no value for 'views'"),
        ({"name": "b", "poools": {}, "views": {}}, "did you mean 'pools'?"),
    ],
)
def test_a_document_that_is_no_dataclass(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        disk.from_plain(Blend, value)
