"""Small pools of drawn pictures for the tests that run whole stages."""

from __future__ import annotations

import atexit
import csv
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

TINY = """
name: tiny
source: {kind: files, paths: [captions.csv]}
fetch: {image_size: 32, rows_per_shard: 20}
filters: [tokens, caption]
views:
  raw: []
  long: [{words: caption_words > 3}]
"""

# The imports of the tests leave a million objects that live to the end. No collection of garbage
# looks at them while they are made, nor later: that is a tenth of the quick tests.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # the end of the process collects them as usual
        gc.enable()


def draw(folder: Path, count: int, shift: int = 0) -> None:
    """`count` pictures with captions.csv; every second caption has six words, the others three."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "captions.csv", "w", newline="") as f:
        table = csv.writer(f)
        table.writerow(["file", "caption"])
        for i in range(count):
            picture = Image.new("RGB", (32, 32), (5 * i % 256, (250 - 3 * i) % 256, shift))
            ImageDraw.Draw(picture).ellipse((4, 4, 8 + i % 20, 20), fill=(i % 256, 40, 200))
            picture.save(folder / f"{i}.jpg", quality=90)
            table.writerow(
                [f"{i}.jpg", f"a shade of the number {i}" if i % 2 else f"shade number {i}"]
            )


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with tiny.yaml, a recipe of kind files over 48 drawn pictures."""
    draw(tmp_path, 48)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path
