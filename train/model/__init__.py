"""The CLIP model: architectures, attention, towers, noise, FLOPs.

It reads and writes no file.

Invariants:

* Packed and grouped captions have the features and gradients of padded ones
  (tests/train/model/test_attention.py).
* Dropout depends on seed, step and position alone, not on micro-batches, ranks or recomputation
  (tests/train/model/test_noise.py, tests/train/model/test_knobs.py).
* The start has open_clip's distributions (tests/train/model/test_initialise.py).
* The groups of a locked tower are open_clip's (tests/train/model/test_lock.py).
* The counted operations are those that torch counts (tests/train/model/test_flops.py).
* The memory of a step is what torch allocates, within 10 % (tests/train/model/test_memory.py).

A new size is a line in `architecture.py` and in tests/train/model/test_clip.py.
"""

from __future__ import annotations

from train.model.architecture import IMAGE_MEAN, IMAGE_STD, MODELS, ModelConfig
from train.model.clip import (
    CLIP,
    LOGIT_SCALE,
    Block,
    GroupedCaptions,
    Noise,
    PackedCaptions,
    ReducedTokenTable,
    group_by_length,
    group_count,
    l2_normalise,
    lock_tower,
    pack_captions,
    to_device,
)
from train.model.memory import (
    AHEAD_BYTES,
    StepMemory,
    StepShape,
    parameter_count,
    step_memory,
    training_flops,
)

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
