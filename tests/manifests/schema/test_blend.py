from __future__ import annotations

import re
from typing import Any

import pytest

from manifests.schema import Blend


def test_a_blend_names_views_of_its_pools() -> None:
    blend = Blend(name="b", pools={"web": "/p"}, views={"web/raw": 1.0})
    assert blend.max_repeats is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pools": {}, "views": {}}, "has no views"),
        ({"pools": {"web": "/p"}, "views": {"wob/raw": 1.0}}, "'wob/raw' is not POOL/VIEW"),
        ({"pools": {"web": "/p"}, "views": {"web": 1.0}}, "'web' is not POOL/VIEW"),
        ({"pools": {"web": "/p"}, "views": {"web/raw": 0.0}}, "the weight of 'web/raw' is 0.0"),
    ],
)
def test_impossible_blends_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Blend(name="b", **values)
