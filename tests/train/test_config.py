"""Settings, presets, and changes to them by text."""

import dataclasses
import math
import re
import typing

import pytest

from clipmill.manifests import disk
from clipmill.train.config import (
    PRESETS,
    TrainConfig,
    check_world,
    configure,
    list_settings,
    model_config,
)
from clipmill.train.model.architecture import MODELS, ModelConfig
from clipmill.train.model.clip import CLIP
from clipmill.train.step.update import learning_rate
from tests.support import commands


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
        ({"hang_seconds": 0}, "hang_seconds is 0.0; it must be above 0"),
        ({"hang_seconds": 1e9}, "hang_seconds is 1e+09; it must be at most 604,800"),
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
def test_locks_and_checkpoint_intervals_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        configure(changes)


# --------------------------------------------------------------------------------------------------


def test_changes_go_over_the_preset_and_text_is_read_as_the_setting_s_type():
    given = {"lr": "5e-4", "samples_seen": "12.8M", "grad_clip": "1", "lock_image": "false"}
    config = configure({"preset": "micro", **given})
    read = {"lr": 5e-4, "samples_seen": 12_800_000, "grad_clip": 1.0, "lock_image": False}
    assert {name: getattr(config, name) for name in read} == read
    assert (config.model, config.batch_size) == ("micro", 128)
    none = configure({"grad_clip": None, "context_length": "none", "samples_seen": 1e7})
    assert none.samples_seen == 10_000_000
    assert disk.from_plain(TrainConfig, disk.to_plain(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1}, "unknown training setting 'learning_rate'"),
        ({"batchsize": 8}, "did you mean 'batch_size'?"),
        ({"preset": {}}, "there is no preset {}"),
        ({"preset": ["micro"]}, "there is no preset ['micro']"),
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
        ({"model.drop_pach_rate": 0.1}, "did you mean 'drop_patch_rate'"),
        ({"model.drop_patch_rate": 1}, "drop_patch_rate is 1.0; it must lie in [0, 1)"),
        ({"model.image_mean": "0.5"}, "image_mean has 1 values; images have 3"),
        ({"model.image_mean": 5}, "values with commas"),
        ({"model.image_std": [0, 1, 1]}, "every value must be above 0"),
        ({"model.patch_size": 15}, "image_size 224 is not a multiple of patch_size 15"),
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


# --------------------------------------------------------------------------------------------------


PUBLISHED = {
    "datacomp_small": {
        "model": "ViT-B-32", "batch_size": 4096, "samples_seen": 12_800_000, "lr": 5e-4,
        "warmup": 500, "beta1": 0.9, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.2,
    },
    "datacomp_xlarge": {"model": "ViT-L-14", "batch_size": 90_112, "lr": 1e-3, "beta2": 0.95},
    "laion400m_b32": {"batch_size": 32_768, "warmup": 2000},
    "datacomp_debug": {"steps": 125},
    "micro": {"steps": 100},
}  # fmt: skip


def test_presets_are_the_published_recipes():
    for name, settings in PUBLISHED.items():
        preset = PRESETS[name]()
        assert {setting: getattr(preset, setting) for setting in settings} == settings


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_trained_and_changed(name):
    config = PRESETS[name]()
    assert config.warmup <= config.steps
    assert config.batch_size % config.lanes == 0
    assert configure({"preset": name, "seed": 3}).seed == 3


def test_every_setting_has_a_meaning_and_belongs_to_a_group():
    listed = {setting.name: setting for setting in list_settings()}
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(listed) == names - {"model_changes"} | {"model.NAME"}
    for name, setting in listed.items():
        assert len(setting.meaning) >= 12, name
        assert setting.heading, name
    assert len({setting.meaning for setting in listed.values()}) == len(listed)
    headings = list(dict.fromkeys(setting.heading for setting in listed.values()))
    assert headings[0] == "Model"
    assert len(headings) == 9
    assert listed["schedule"].choices == "cosine | constant | constant_cooldown"
    assert (listed["grad_clip"].default, listed["grad_clip"].choices) == ("none", "number, or none")
    assert listed["lock_image"].default == "false"


def test_the_listed_defaults_are_the_defaults():
    defaults = {
        setting.name: setting.default
        for setting in list_settings()
        if setting.name not in ("model.NAME", "log_to")
    }
    assert configure(defaults) == TrainConfig()


def test_the_text_has_a_line_for_each_setting_below_its_heading(capsys):
    assert commands.train(["--list-settings"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "Model"
    assert sum(line.startswith("  ") for line in lines) == len(list_settings())
    assert re.search(
        r"^  batch_size=4096 +samples of a step, of all ranks \(whole number\)$", text, re.M
    )
