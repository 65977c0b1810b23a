from __future__ import annotations

import pytest

from train.mixture.order import Repeats


def test_a_source_with_one_text_column_says_nothing_of_captions() -> None:
    one = Repeats(drawn=4, rows=8, repeats=0.5, share=1.0, unique=4)
    assert one.document() == {"drawn": 4, "rows": 8, "repeats": 0.5, "share": 1.0, "unique": 4}
    several = Repeats(drawn=2, rows=8, repeats=0.25, share=1.0, unique=2, captions={"a": 2})
    assert several.document()["captions"] == {"a": 2}
    with pytest.raises(TypeError):
        Repeats(drawn=4, rows=8)  # type: ignore[call-arg]
