"""The memory of a step by formula against what torch allocates for one, and its operations.

On the CPU the profiler records every allocation. B/32 in the same way, four captions of 77 tokens
(kept for backward, MiB, measured and by formula): fp32 227.0 and 227.1; bf16 351.0 and 351.0;
recompute full 17.2 and 17.2; selective 150.6 and 150.6; every_2 120.0 and 120.0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clipmill.train.config import configure, model_config
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP, lock_tower
from clipmill.train.model.memory import StepShape, parameter_count, step_memory, training_flops
from tests.support.saved_tensors import Step, retained, step_peak, step_shape_of

MIXED = [5, 9, 16, 3] * 4
LONG = [16] * 16
pytestmark = pytest.mark.usefixtures("one_thread")


def micro(**changes):
    """A step of the micro model on the CPU."""
    base = {"model": "micro", "batch_size": 64, "samples_seen": 6400, "warmup": 1, "device": "cpu"}
    return configure({**base, "precision": "fp32", **changes})


SETTINGS: list[Any] = [({}, LONG), ({"captions": "packed", "precision": "bf16"}, MIXED)]
OTHERS: list[Any] = [
    ({"recompute": "full"}, LONG),
    ({"recompute": "selective", "precision": "bf16"}, LONG),
    ({"recompute": "every_2", "model.quick_gelu": True}, LONG),
    ({"micro_batch": 4}, LONG),
    ({"model": "test"}, [16] * 512),
    ({"model": "test", "loss_tile": 128}, [16] * 512),
    ({"model.drop_patch_rate": 0.5}, LONG),
    ({"init": "x", "lock_image": True, "lock_image_unlocked_groups": 3}, LONG),
    ({"init": "x", "lock_text": True, "lock_text_unlocked_layers": 2, "micro_batch": 4}, LONG),
]


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [*SETTINGS, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
    ids=str,
)
def test_the_formula_is_what_torch_allocates(changes, lengths):
    config = micro(**changes)
    memory = step_memory(model_config(config), step_shape_of(config, lengths))
    if config.micro_batch is None:
        kept = retained(Step(config, lengths))
        assert memory.activations + memory.copies == pytest.approx(kept, rel=0.1)
    lasting, peak = step_peak(Step(config, lengths))
    assert memory.weights + memory.optimizer == pytest.approx(lasting, rel=0.02)
    assert memory.peak - memory.weights - memory.optimizer == pytest.approx(peak, rel=0.1)


def test_shards_and_tensor_parallelism_divide_what_a_rank_holds():
    config = MODELS["ViT-L-14"]
    one = StepShape(samples=64, tokens=77, longest=77, data_parallel=8)
    whole = step_memory(config, one)
    sharded = step_memory(config, dataclasses.replace(one, dp_shard=8))
    assert whole.weights == 4 * parameter_count(config)
    assert sharded.weights == pytest.approx(whole.weights / 8, rel=1e-6)
    assert sharded.optimizer == pytest.approx(whole.optimizer / 8, rel=1e-6)
    split = step_memory(config, dataclasses.replace(one, tp=2))
    assert 0.5 * whole.weights < split.weights < 0.7 * whole.weights
    assert 0.5 * whole.activations < split.activations < 0.8 * whole.activations


def test_a_micro_batch_divides_the_activations_and_not_the_features():
    config = MODELS["ViT-B-32"]
    whole = StepShape(samples=4096, tokens=77, longest=77, loss_tile=1024)
    pieces = dataclasses.replace(whole, micro_batch=512)
    assert pieces.piece == 512
    assert dataclasses.replace(whole, micro_batch=4095).piece == 2048, "pieces are equal"
    a, b = step_memory(config, whole), step_memory(config, pieces)
    assert b.activations == pytest.approx(a.activations / 8, rel=1e-6)
    assert b.features == a.features
    assert b.peak < a.peak / 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"precision": "fp32"},
        {"precision": "bf16", "recompute": "full"},
        {"precision": "bf16", "micro_batch": 16},
    ],
    ids=str,
)
def test_on_a_gpu_the_allocator_says_the_same(changes):
    config, lengths = micro(model="ViT-B-32", device="cuda", **changes), [77] * 64
    step = Step(config, lengths, "cuda")
    step.backward()
    step.update.step(1e-4, step.update.grad_norm())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step.backward()
    torch.cuda.synchronize()
    memory = step_memory(model_config(config), step_shape_of(config, lengths, "cuda"))
    assert memory.peak == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.1)


# --------------------------------------------------------------------------------------------------


SMALL = dataclasses.replace(MODELS["test"], vision_layers=3, text_layers=3)


def counted(config, tokens, samples=2, trained=(None, None)):
    """Operations of forward and backward by torch's counter, on tensors that hold nothing."""
    with torch.device("meta"):
        model = CLIP(config)
        if trained[0] is not None:
            lock_tower(model.visual, config.vision_layers, trained[0])
        if trained[1] is not None:
            lock_tower(model.text, config.text_layers, trained[1])
        image_BCHW = torch.empty(samples, 3, *config.height_width)
        tokens_BT = torch.empty(samples, tokens, dtype=torch.long)
        if config.drop_patch_rate:
            model.reseed(0, 0, torch.arange(samples, device="cpu"))
        counter = FlopCounterMode(display=False)
        with counter, sdpa_kernel(SDPBackend.MATH):
            image_BE, text_BE, scale, _ = model(image_BCHW, tokens_BT)
            ((image_BE + text_BE).sum() * scale).backward()
    return counter.get_total_flops() / samples


@pytest.mark.parametrize("groups", [0, 2, 5])
def test_of_locked_layers_only_forward_counts(groups):
    whole = training_flops(SMALL).sample(9)
    for trained in ((groups, None), (None, groups), (groups, 5 - groups)):
        work = training_flops(SMALL, trained=trained).sample(9)
        assert work == counted(SMALL, 9, trained=trained)
        assert work <= whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("micro", 16),
        ("ViT-S-32", 20),
        ("ViT-B-32", 20),
        ("ViT-B-32", 77),
        ("ViT-L-14", 77),
        ("ViT-g-14", 77),
    ],
)
def test_the_formula_is_what_torch_counts(name, tokens):
    config = MODELS[name]
    assert training_flops(config).sample(tokens) == counted(config, tokens)


@pytest.mark.parametrize(
    "change",
    [
        {"drop_patch_rate": 0.5, "image_size": 64},
        {"vision_layers": 1, "text_layers": 1},
        {"vision_mlp": 96, "text_mlp": 40, "embed_dim": 48},
    ],
)
def test_every_shape_of_a_model_is_in_the_formula(change):
    config = dataclasses.replace(SMALL, **change)
    assert training_flops(config).sample(9) == counted(config, 9)


# GFLOP of a training sample, text length 77: open_clip's docs/model_profile.csv has the forward
# pass to two decimals, three times which, less the gradient of the picture, is this.
@pytest.mark.parametrize(
    ("name", "gflop"),
    [
        ("ViT-B-32", 44.10),
        ("ViT-B-16", 123.0),
        ("ViT-L-14", 525.7),
        ("ViT-H-14", 1144.7),
        ("ViT-g-14", 1743.0),
    ],
)
def test_unpruned_they_are_the_published_profile(name, gflop):
    assert training_flops(MODELS[name], whole=True).sample(77) / 1e9 == pytest.approx(
        gflop, rel=5e-4
    )
