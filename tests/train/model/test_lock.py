from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from tests.support.late import open_clip
from train.formats.open_clip_files import to_open_clip
from train.model.architecture import MODELS
from train.model.clip import CLIP, lock_tower

CONFIG = dataclasses.replace(MODELS["test"], vision_layers=3, text_layers=2)


def theirs(image: int | None, text: int | None) -> dict[str, bool]:
    """Which of open_clip's parameters are trained, where it locks its towers by its own code."""
    vision = {"image_size": 32, "layers": 3, "width": 64, "patch_size": 16}
    caption = {"context_length": 16, "vocab_size": 99, "width": 64, "heads": 2, "layers": 2}
    model = open_clip.model.CLIP(32, vision, caption)
    if image is not None:
        model.lock_image_tower(unlocked_groups=image)
    if text is not None:
        model.lock_text_tower(unlocked_layers=text)
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def ours(image: int | None, text: int | None) -> dict[str, bool]:
    """The same of our model, by open_clip's names."""
    model = CLIP(CONFIG)
    if image is not None:
        lock_tower(model.visual, CONFIG.vision_layers, image)
    if text is not None:
        lock_tower(model.text, CONFIG.text_layers, text)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(parameter.requires_grad))
    return {name: bool(value.all()) for name, value in to_open_clip(model).items()}


@pytest.mark.parametrize(
    ("image", "text"),
    [(None, None), (0, None), (None, 0), (1, 1), (2, 2), (3, 3), (4, 0), (0, 0)],
)
def test_the_locked_parameters_are_open_clips(image: int | None, text: int | None) -> None:
    assert ours(image, text) == theirs(image, text)


def test_each_group_that_is_unlocked_is_trained() -> None:
    model = CLIP(CONFIG)
    trained = []
    for unlocked in range(6):
        lock_tower(model.visual, CONFIG.vision_layers, unlocked)
        trained.append({n for n, p in model.visual.named_parameters() if p.requires_grad})
    assert trained[0] == set()
    assert trained[1] == {"proj"}
    assert trained[2] - trained[1] >= {"ln_post.weight", "blocks.2.fc1.weight"}
    assert all(fewer < more for fewer, more in itertools.pairwise(trained))
    assert trained[5] == {name for name, _ in model.visual.named_parameters()}
