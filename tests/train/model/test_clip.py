from __future__ import annotations

import dataclasses

import pytest
import torch

from train.model.architecture import MODELS
from train.model.clip import CLIP

# Parameters of the towers, as published (open_clip's docs/model_profile.csv, to its last digit),
# and their heads.
PARAMETERS = {
    "ViT-B-32": (87_849_216, 63_428_096),
    "ViT-B-16": (86_192_640, 63_428_096),
    "ViT-L-14": (303_966_208, 123_650_304),
    "ViT-H-14": (632_076_800, 354_032_640),
    "ViT-g-14": (1_012_645_632, 354_032_640),
    "ViT-bigG-14": (1_844_907_264, 694_659_840),
    "ViT-e-14": (3_807_716_864, 773_369_600),
    "ViT-S-32": (22_641_792, 40_444_032),
    "ViT-S-16": (21_813_504, 40_444_032),
    # More positions, and nothing else
    "ViT-L-14-336": (303_966_208 + (24**2 - 16**2) * 1024, 123_650_304),
}
HEADS = {
    "ViT-B-32": (12, 8),
    "ViT-B-16": (12, 8),
    "ViT-L-14": (16, 12),
    "ViT-L-14-336": (16, 12),
    "ViT-H-14": (16, 16),
    "ViT-g-14": (16, 16),
    "ViT-bigG-14": (16, 20),
    "ViT-e-14": (16, 20),
    "ViT-S-32": (6, 6),
    "ViT-S-16": (6, 6),
}


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("ViT")])
def test_the_towers_have_the_published_number_of_parameters_and_heads(name):
    config, base = MODELS[name], name.removesuffix("-quickgelu")
    with torch.device("meta"):
        model = CLIP(config)
    vision = sum(p.numel() for p in model.visual.parameters())
    text = sum(p.numel() for p in model.text.parameters())
    assert (vision, text) == PARAMETERS[base]
    assert sum(p.numel() for p in model.parameters()) == vision + text + 1
    assert (config.vision_heads, config.text_heads) == HEADS[base]
    assert model.visual.blocks[0].qkv.head_width == config.vision_width // config.vision_heads
    assert config == dataclasses.replace(MODELS[base], quick_gelu=base != name)
