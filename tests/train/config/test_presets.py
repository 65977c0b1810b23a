"""Presets, and the list of settings."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support import commands
from train.config import PRESETS, TrainConfig, configure, list_settings


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
        assert not setting.meaning.endswith("."), name
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
