"""Pictures of the small web: the same bytes for a seed, and what they show."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from examples.miniweb import scenes, web_plan
from examples.miniweb.scenes import CLASSES, draw, scene
from tests.support.miniwebs import SETTINGS


def test_a_scene_and_its_words_are_what_version_1_drew() -> None:
    """Raise DRAW_VERSION with this test: images of webs already written change with it."""
    assert scenes.DRAW_VERSION == 1
    drawn = [scene(0, "crawl", number) for number in range(3)]
    assert [(s.count, s.texture, s.colour, s.shape, s.background) for s in drawn] == GOLDEN_SCENES
    assert [web_plan.caption(s, random.Random(s.key[2])) for s in drawn] == GOLDEN_CAPTIONS


GOLDEN_SCENES = [
    (3, "striped", "purple", "flower", "checkered"),
    (1, "plain", "red", "fish", "cloudy"),
    (1, "plain", "purple", "star", "messy"),
]
GOLDEN_CAPTIONS = [
    "three purple flowers, seen at the market",
    "a small red fish in the garden",
    "a photo of a purple star on a messy desk",
]


@pytest.mark.parametrize("label", [CLASSES[9 * k] for k in range(7)])
@pytest.mark.parametrize("texture", list(scenes.TEXTURES))
def test_every_scene_can_be_drawn_and_shows_its_colour(label: str, texture: str) -> None:
    for number, background in enumerate(scenes.BACKGROUNDS):
        plain = replace(
            scene(1, "crawl", number, label=label), texture=texture, background=background
        )
        data = draw(plain)
        assert data == draw(plain), "same scene, same bytes"
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.mode, image.size) == (
                "JPEG",
                "RGB",
                (plain.width, plain.height),
            )
            pixels = np.asarray(image, np.float32)
        away = np.linalg.norm(pixels - np.asarray(scenes.COLOURS[plain.colour], np.float32), axis=2)
        assert (away < 100).mean() > 0.01, f"no {plain.colour} in number {number}"


def test_a_near_duplicate_is_other_bytes_that_look_the_same() -> None:
    items = {item.url: item for item in web_plan.plan(SETTINGS)}
    copies = [item for item in items.values() if item.kind == "near_duplicate"]
    assert copies
    for item in copies:
        original = items[item.original or ""]
        assert item.caption == original.caption
        assert item.url != original.url
        first, second = draw(original.scene), draw(item.scene, variant=item.variant)
        assert first != second
        with Image.open(io.BytesIO(first)) as a, Image.open(io.BytesIO(second)) as b:
            small = [np.asarray(i.resize((8, 8), Image.Resampling.BOX), np.float32) for i in (a, b)]
        assert np.abs(small[0] - small[1]).mean() < 25
