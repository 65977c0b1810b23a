"""The held-out sets of a web of drawn images."""

from __future__ import annotations

from pathlib import Path

from examples.miniweb import drawn_web
from examples.miniweb.scenes import CLASSES
from examples.miniweb.settings import Miniweb


def test_the_held_out_sets_grow_with_the_web(tmp_path: Path) -> None:
    totals = drawn_web.write_drawn(tmp_path, Miniweb(pairs=400, trusted_pairs=0))
    assert totals["eval"] == {"objects": 2 * len(CLASSES), "retrieval": 34}
    assert len(list((tmp_path / "eval/objects").rglob("*.jpg"))) == 2 * len(CLASSES)
    assert totals["trusted_pages"] == 0
