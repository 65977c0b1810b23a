from __future__ import annotations

import dataclasses
import math

import pytest

from manifests import disk
from train.config import PRESETS, TrainConfig, check_world, configure, model_config
from train.model.architecture import MODELS, ModelConfig


def test_widths_are_those_that_were_published():
    heads = {
        name: model.vision_heads
        for name, model in MODELS.items()
        if name[-2:] in ("14", "32", "16")
    }
    assert heads["ViT-H-14"] == heads["ViT-g-14"] == heads["ViT-bigG-14"] == heads["ViT-e-14"] == 16
    assert [MODELS[f"ViT-{size}-14"].vision_mlp for size in ("H", "g", "bigG", "e")] == [
        5120,
        6144,
        8192,
        15360,
    ]
    assert MODELS["ViT-B-32"].patch_size == 32  # NVIDIA's table has these two swapped
    assert MODELS["ViT-B-16"].patch_size == 16
    assert dataclasses.replace(MODELS["ViT-L-14-quickgelu"], quick_gelu=False) == MODELS["ViT-L-14"]


def test_presets_are_the_published_recipes():
    small, xlarge = PRESETS["datacomp_small"](), PRESETS["datacomp_xlarge"]()
    assert (small.model, small.batch_size, small.samples_seen, small.lr) == (
        "ViT-B-32",
        4096,
        12_800_000,
        5e-4,
    )
    assert (small.warmup, small.beta1, small.beta2, small.eps, small.weight_decay) == (
        500,
        0.9,
        0.98,
        1e-6,
        0.2,
    )
    assert (xlarge.model, xlarge.batch_size, xlarge.lr, xlarge.beta2) == (
        "ViT-L-14",
        90_112,
        1e-3,
        0.95,
    )
    assert (PRESETS["laion400m_b32"]().batch_size, PRESETS["laion400m_b32"]().warmup) == (
        32_768,
        2000,
    )
    assert PRESETS["datacomp_debug"]().steps == 125
    assert PRESETS["micro"]().steps == 100


def test_changes_go_over_the_preset_and_text_is_read_as_the_setting_s_type():
    config = configure(
        {
            "preset": "micro",
            "lr": "5e-4",
            "samples_seen": "12.8M",
            "grad_clip": "1",
            "local_loss": "false",
        }
    )
    assert (config.lr, config.samples_seen, config.grad_clip, config.local_loss) == (
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
    ("changes", "said"),
    [
        ({"learning_rate": 1}, "unknown training setting 'learning_rate'"),
        ({"batchsize": 8}, "did you mean 'batch_size'?"),
        ({"preset": "datacomp_smal"}, "did you mean 'datacomp_small'?"),
        ({"model": "ViT-B32"}, "did you mean 'ViT-B-32'?"),
        ({"lr": "fast"}, "lr is 'fast'; it must be a number"),
        ({"lr": float("nan")}, "it must be a number"),
        ({"batch_size": 12.5}, "it must be a whole number"),
        ({"batch_size": True}, "it must be a whole number"),
        ({"local_loss": "maybe"}, "it must be true or false"),
        ({"model": 3}, "it must be text"),
        ({"schedule": "linear"}, "(of cosine, constant, constant_cooldown)"),
        ({"precision": "fp8"}, "did you mean 'fp32'? (of fp32, tf32, bf16, bf16_o2, fp16)"),
        ({"schedule": "constant_cooldown"}, "constant_cooldown takes 1 to 3125 steps"),
        (
            {"schedule": "constant_cooldown", "cooldown": 3126},
            "constant_cooldown takes 1 to 3125 steps",
        ),
        ({"cooldown": 100}, "cooldown is 100, but schedule is cosine, which has none"),
        ({"cooldown_end_lr": 1.0}, "it must lie in [0, lr], lr is 0.0005"),
        ({"ema": 1.0}, "ema is 1.0; it must lie in (0, 1)"),
        ({"micro_batch": 0}, "micro_batch is 0; it must be at least 1"),
        ({"loss_tile": 0}, "loss_tile is 0; it must be at least 1"),
        ({"micro_batch": 8, "precision": "bf16_o2"}, "set precision to bf16"),
        ({"optimizer": "lion"}, "(of adamw, muon)"),
        ({"decay_groups": "all"}, "(of open_clip_main, open_clip)"),
        ({"logit_scale_max": 0}, "it must be above 0"),
        ({"batch_size": 100, "lanes": 64}, "no multiple of lanes 64"),
        ({"samples_seen": 1000}, "less than one batch of 4096"),
        ({"local_loss": True, "gather_with_grad": False}, "wrong gradient"),
        ({"beta2": 1.0}, "it must lie in [0, 1)"),
        ({"crop_min": 0}, "it must lie in (0, 1]"),
        ({"lr": 0}, "lr is 0.0; it must be above 0"),
        ({"warmup": -1}, "it must not be negative"),
        ({"device": "tpu"}, "it must be auto, cpu or cuda"),
        ({"context_length": 100}, "ViT-B-32 takes 3 to 77 tokens"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_way_out(changes, said):
    with pytest.raises(ValueError, match=r".") as error:
        configure(changes)
    assert said in str(error.value)


def test_ranks_share_whole_lanes():
    config = configure({"preset": "micro"})
    check_world(config, 8)
    with pytest.raises(ValueError, match="3 ranks cannot share 32 lanes"):
        check_world(config, 3)


def test_the_model_follows_the_run():
    config = configure({"preset": "micro", "context_length": 12, "loss": "siglip"})
    model = model_config(config)
    assert model.context_length == 12
    assert model.logit_bias
    assert model_config(configure({"preset": "micro"})) == MODELS["micro"]


def test_impossible_models_are_refused():
    good = disk.to_plain(MODELS["test"])
    for change, said in (
        ({"image_size": 33}, "multiple of patch_size"),
        ({"text_heads": 3}, "multiple of text_heads"),
    ):
        with pytest.raises(ValueError, match=said):
            ModelConfig(**{**good, **change})
    assert math.isclose(MODELS["test"].vision_mlp / MODELS["test"].vision_width, 4)
