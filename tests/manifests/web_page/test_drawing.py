from __future__ import annotations

from manifests import web_page
from manifests.web_page import MINUS


def test_ticks_are_round_and_inside() -> None:
    assert web_page.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert web_page.ticks(-0.13, 0.21, 4) == [-0.1, 0, 0.1, 0.2]
    assert web_page.ticks(3, 3) == [3]
    assert web_page.number(12_800) == "12.8k"
    assert web_page.number(-0.5) == f"{MINUS}0.5"
