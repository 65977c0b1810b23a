"""The CLIP model: architectures, attention, noise, FLOPs."""

from __future__ import annotations

from train.model.architecture import IMAGE_MEAN, IMAGE_STD, MODELS, ModelConfig
from train.model.attention import Groups, Packed, length_groups, pack, sent
from train.model.clip import CLIP, LOGIT_SCALE, Block, UsedTokens, unit
from train.model.flops import peak_of, work_of

__all__ = [
    "CLIP",
    "IMAGE_MEAN",
    "IMAGE_STD",
    "LOGIT_SCALE",
    "MODELS",
    "Block",
    "Groups",
    "ModelConfig",
    "Packed",
    "UsedTokens",
    "length_groups",
    "pack",
    "peak_of",
    "sent",
    "unit",
    "work_of",
]
