"""The CLIP model: architectures, attention, towers, noise, FLOPs."""

from __future__ import annotations

from train.model.architecture import IMAGE_MEAN, IMAGE_STD, MODELS, ModelConfig
from train.model.attention import (
    GroupedCaptions,
    PackedCaptions,
    group_by_length,
    pack_captions,
    to_device,
)
from train.model.blocks import Block
from train.model.clip import CLIP, l2_normalise
from train.model.flops import training_flops
from train.model.initialise import LOGIT_SCALE
from train.model.lock import group_count, lock_tower
from train.model.memory import AHEAD_BYTES, StepMemory, StepShape, step_memory
from train.model.noise import Noise
from train.model.parameter_counts import parameter_count
from train.model.token_table import ReducedTokenTable

__all__ = [
    "AHEAD_BYTES",
    "CLIP",
    "IMAGE_MEAN",
    "IMAGE_STD",
    "LOGIT_SCALE",
    "MODELS",
    "Block",
    "GroupedCaptions",
    "ModelConfig",
    "Noise",
    "PackedCaptions",
    "ReducedTokenTable",
    "StepMemory",
    "StepShape",
    "group_by_length",
    "group_count",
    "l2_normalise",
    "lock_tower",
    "pack_captions",
    "parameter_count",
    "step_memory",
    "to_device",
    "training_flops",
]
