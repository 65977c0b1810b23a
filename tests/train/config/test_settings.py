"""Settings: each has a meaning, what cannot be is refused, and which ranks can share a batch."""

from __future__ import annotations

import re
from typing import Any

import pytest

from train.config import (
    check_world,
    configure,
    model_config,
)
from train.model.architecture import MODELS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "ViT-B32"}, "did you mean 'ViT-B-32'?"),
        ({"tp": 0}, "tp is 0; it must be at least 1"),
        ({"model": "ViT-L-14", "tp": 8}, "tp 8 does not divide text_heads 12; set tp to a divisor"),
        ({"recompute": "every_0"}, "it must be none, selective, full or every_N"),
        ({"compile": "yes"}, "compile is 'yes'"),
        ({"schedule": "linear"}, "(of cosine, constant, constant_cooldown)"),
        ({"precision": "fp8"}, "did you mean 'fp32'? (of fp32, tf32, bf16, fp16)"),
        ({"schedule": "constant_cooldown"}, "constant_cooldown takes 1 to 3125 steps"),
        (
            {"schedule": "constant_cooldown", "cooldown": 3126},
            "constant_cooldown takes 1 to 3125 steps",
        ),
        ({"cooldown": 100}, "cooldown is 100, but schedule is cosine, which has none"),
        ({"cooldown_end_lr": 1.0}, "it must lie in [0, lr], lr is 0.0005"),
        ({"micro_batch": 0}, "micro_batch is 0; it must be at least 1"),
        ({"loss_tile": 0}, "loss_tile is 0; it must be at least 1"),
        ({"optimizer": "muon"}, "unknown training setting 'optimizer'"),
        ({"decay_groups": "all"}, "(of open_clip_main, open_clip)"),
        ({"batch_size": 100, "lanes": 64}, "no multiple of lanes 64"),
        ({"samples_seen": 1000}, "less than one batch (batch_size 4096"),
        ({"beta2": 1.0}, "it must lie in [0, 1)"),
        ({"crop_min": 0}, "it must lie in (0, 1]"),
        ({"lr": 0}, "lr is 0.0; it must be above 0"),
        ({"warmup": -1}, "it must not be negative"),
        ({"device": "tpu"}, "it must be auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:-1"}, "device is 'cuda:-1'; it must be"),
        ({"device": "cuda0"}, "device is 'cuda0'; it must be"),
        ({"context_length": 100}, "ViT-B-32 takes 3 to 77 tokens"),
        ({"warmup": 3126}, "warmup 3126, but the run has 3125 steps"),
        ({"warmup": 3126}, "set warmup to at most 3125, or samples_seen to at least 12804096"),
        (
            {"schedule": "constant_cooldown", "cooldown": 3000, "warmup": 126},
            "warmup 126 and cooldown 3000 are 3126 steps, but the run has 3125 steps",
        ),
        (
            {"schedule": "constant_cooldown", "cooldown": 3000, "warmup": 126},
            "set warmup to at most 125, or samples_seen to at least 12804096",
        ),
        ({"dp_shard": 0}, "dp_shard is 0; it must be at least 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_way_out(changes, message):
    with pytest.raises(ValueError, match=r".") as error:
        configure(changes)
    assert message in str(error.value)


def test_the_longest_warmup_and_cooldown_are_the_run():
    assert configure({"warmup": 3125}).warmup == configure({}).steps == 3125
    config = configure({"schedule": "constant_cooldown", "cooldown": 3000, "warmup": 125})
    assert config.warmup + config.cooldown == config.steps


# --- ranks


@pytest.mark.parametrize("world", [1, 2, 8, 64, 128, 256, 4096])
def test_ranks_share_a_batch_whatever_its_lanes(world):
    check_world(configure({"lanes": 64}), world)


@pytest.mark.parametrize(
    ("world", "remedy"),
    [
        (
            3,
            "1, 2, 4, 8 ranks can. For 3 ranks set batch_size to 4032 (lanes 64) or 4224 "
            "(lanes 64)",
        ),
        (
            96,
            "32, 64, 128, 256 ranks can. For 96 ranks set batch_size to 4032 (lanes 64) or 4224 "
            "(lanes 64)",
        ),
        (1000, "set batch_size to 4000 (lanes 80) or 5000 (lanes 50)"),
    ],
)
def test_ranks_that_do_not_fit_are_told_which_do_and_what_to_set(world, remedy):
    config = configure({})
    with pytest.raises(ValueError, match="cannot share a batch of 4096 evenly") as error:
        check_world(config, world)
    assert remedy in str(error.value)
    for batch, lanes in re.findall(r"(\d+) \(lanes (\d+)\)", str(error.value)):
        check_world(configure({"batch_size": batch, "lanes": lanes}), world)


# --- the model


def test_the_model_follows_the_run():
    config = configure({"preset": "micro", "context_length": 12, "loss": "siglip"})
    model = model_config(config)
    assert model.context_length == 12
    assert model.logit_bias
    assert model_config(configure({"preset": "micro"})) == MODELS["micro"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lock_image": True},
            "lock_image keeps the weights .* random; set init, or leave lock_im",
        ),
        ({"lock_text": True}, "lock_text keeps the weights .* without init they are random"),
        (
            {"lock_image_unlocked_groups": 1},
            "lock_image_unlocked_groups is 1, but nothing is locked; set lock_image to true",
        ),
        (
            {"init": "a", "lock_text": True, "lock_text_unlocked_layers": 14},
            r"lock_text_unlocked_layers is 14; it must lie in \[0, 13\], of the 14 groups",
        ),
        (
            {"init": "a", "lock_image": True, "lock_image_unlocked_groups": -1},
            r"lock_image_unlocked_groups is -1; it must lie in \[0, 13\]",
        ),
        (
            {"checkpoint_every": 5, "checkpoint_seconds": 60},
            "checkpoint_seconds is 60, but checkpoint_every is 5 steps; leave one of them out",
        ),
        ({"checkpoint_seconds": 0}, "checkpoint_seconds is 0.0; it must be above 0"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1; it must not be negative"),
    ],
)
def test_locks_and_checkpoint_intervals_that_make_no_sense_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        configure(changes)
