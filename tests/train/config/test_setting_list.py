"""The list of settings: each has a meaning and a group, and its default as text is the default."""

from __future__ import annotations

import dataclasses
import re

from tests.support import commands
from train.config import TrainConfig, configure, list_settings


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
