"""Changes to settings: text as the type of a setting, and the right name for a wrong one."""

from __future__ import annotations

import math
import typing

import pytest

from manifests import disk
from train.config import TrainConfig, configure, model_config
from train.model.architecture import ModelConfig
from train.model.clip import CLIP
from train.step.update import learning_rate


def test_changes_go_over_the_preset_and_text_is_read_as_the_setting_s_type():
    config = configure(
        {
            "preset": "micro",
            "lr": "5e-4",
            "samples_seen": "12.8M",
            "grad_clip": "1",
            "lock_image": "false",
        }
    )
    assert (config.lr, config.samples_seen, config.grad_clip, config.lock_image) == (
        5e-4,
        12_800_000,
        1.0,
        False,
    )
    assert (config.model, config.batch_size) == ("micro", 128)
    assert (
        configure({"grad_clip": None, "context_length": "none", "samples_seen": 1e7}).samples_seen
        == 10_000_000
    )
    assert disk.from_plain(TrainConfig, disk.to_plain(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1}, "unknown training setting 'learning_rate'"),
        ({"batchsize": 8}, "did you mean 'batch_size'?"),
        ({"preset": "datacomp_smal"}, "did you mean 'datacomp_small'?"),
        ({"lr": "fast"}, "lr is 'fast'; it must be a number"),
        ({"lr": float("nan")}, "it must be a number"),
        ({"batch_size": 12.5}, "it must be a whole number"),
        ({"batch_size": True}, "it must be a whole number"),
        ({"lock_image": "maybe"}, "it must be true or false"),
        ({"model": 3}, "it must be text"),
        ({"pretrained": "x"}, "unknown training setting 'pretrained'; here it is init"),
        ({"accum_freq": 2}, "here it is micro_batch"),
        ({"wd": 0.1, "weight_decay": 0.2}, "weight_decay is given twice, as weight_decay too"),
        ({"precision": "pure_bf16"}, "precision is 'pure_bf16'; did you mean 'bf16'"),
        ({"batch_size": 32, "lanes": 64}, "batch_size 32 is no multiple of lanes 64"),
        ({"seed": 2**32}, "seed is 4294967296; it must be below 2^32"),
        ({"order_seed": 2**70}, "it must be below 2^32 (4,294,967,296)"),
        ({"model.vision_mlp": 0}, "vision_mlp is 0; it must be at least 1"),
        ({"model.vocab_size": 100}, "set model.vocab_size to 49408 at least"),
        ({"Warmup-Steps": 5}, "here it is warmup"),
        ({"model.depth": 3}, "unknown setting 'depth' of a model"),
        ({"model.logit_bias": True}, "unknown setting 'logit_bias' of a model"),
        ({"model_changes": {}}, "unknown training setting 'model_changes'"),
        (
            {"max_steps": 10},
            "the length of a run is samples_seen, in samples: steps x batch_size (now 4,096)",
        ),
        ({"log_to": 3}, "values with commas between them"),
    ],
)
def test_a_change_that_cannot_be_read_is_refused_with_the_right_one(changes, message):
    with pytest.raises(ValueError, match=r".") as error:
        configure(changes)
    assert message in str(error.value)


def test_epochs_are_refused_with_the_samples_that_they_are():
    with pytest.raises(
        ValueError, match="'epochs'; the length of a run is samples_seen, in samples: "
    ) as error:
        configure({"epochs": "3"})
    assert "eps" not in str(error.value)
    assert str(error.value).endswith("epochs x the rows that the views of the blend keep")
    with pytest.raises(
        ValueError, match=r"an epoch of this blend has 1,250, so 3 epochs are samples_seen=3750"
    ):
        configure({"epochs": "3"}, epoch_samples=1250)
    with pytest.raises(ValueError, match=r"an epoch of this blend has 1,250$"):
        configure({"num_epochs": "many"}, epoch_samples=1250)


def test_lists_may_be_text():
    assert configure({"log_to": "[tensorboard, wandb]"}).log_to == ("tensorboard", "wandb")
    assert configure({"log_to": []}).log_to == ()


def test_another_model_drops_the_changes_of_the_preset_s():
    config = configure({"preset": "micro", "model.text_layers": 1})
    assert config.model_changes == {"text_layers": 1}
    assert configure({"preset": "micro", "model": "test"}).model_changes == {}


def test_names_of_open_clip_are_read_where_they_mean_the_same():
    theirs = {
        "wd": "0.1",
        "precision": "amp_bfloat16",
        "lr-scheduler": "const-cooldown",
        "lr_cooldown_end": "1e-5",
        "lr_cooldown_power": 2,
        "cooldown": 10,
        "grad-clip-norm": "1.0",
        "grad_checkpointing": True,
    }
    ours = {
        "weight_decay": 0.1,
        "precision": "bf16",
        "schedule": "constant_cooldown",
        "cooldown_end_lr": 1e-5,
        "cooldown_power": 2.0,
        "cooldown": 10,
        "grad_clip": 1.0,
        "recompute": "full",
    }
    assert configure(theirs) == configure(ours)
    assert configure({"precision": "amp"}).precision == "fp16"


@pytest.mark.parametrize(
    ("changes", "lanes"),
    [
        ({}, 64),
        ({"batch_size": 128}, 64),
        ({"batch_size": 32}, 32),
        ({"batch_size": 96}, 48),
        ({"batch_size": 97}, 1),
        ({"preset": "micro"}, 32),
        ({"preset": "micro", "batch_size": 48}, 24),
        ({"batch_size": 128, "lanes": 8}, 8),
    ],
)
def test_lanes_that_are_not_given_divide_the_batch(changes, lanes):
    assert configure({"warmup": 0, **changes}).lanes == lanes


NUMBERS = {
    int: [-1, 0, 1, 2, 3, 32, 2**31, 2**63, 2**70],
    float: [-1, 0, 1e-300, 1e-10, 0.999, 1, 1e30, 1e300],
}
LARGE = 10_000  # of a model: it would fill the memory


def numeric_settings():
    of_run, of_model = typing.get_type_hints(TrainConfig), typing.get_type_hints(ModelConfig)
    kinds = {**of_run, **{f"model.{name}": kind for name, kind in of_model.items()}}
    for name in set(kinds) - {"model.logit_bias", "model_changes"}:
        parts = typing.get_args(kinds[name]) or (kinds[name],)
        for kind in NUMBERS:
            if kind in parts:
                yield name, kind


@pytest.mark.parametrize(("name", "kind"), sorted(numeric_settings(), key=str))
def test_any_number_is_a_setting_that_can_be_computed_or_is_refused_in_one_line(name, kind):
    small = {"model": "test", "samples_seen": 64, "batch_size": 32, "warmup": 0}
    refused = []
    for number in NUMBERS[kind]:
        try:
            config = configure({**small, name: number})
        except ValueError as error:
            refused.append(str(error))
            continue
        if not name.startswith("model.") or number < LARGE:
            CLIP(model_config(config), config.seed)
        for step in {0, 1, min(config.steps, 2**62) - 1}:
            assert math.isfinite(learning_rate(config, step))
    assert not [message for message in refused if "\n" in message]
    assert all(name.removeprefix("model.") in message for message in refused)
