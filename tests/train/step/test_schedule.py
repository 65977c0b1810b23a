"""Learning rates against open_clip's, and the product of weight decay against AdamW's own."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from train.config import configure
from train.step.update import decay_factor, learning_rate

SETTINGS = {"model": "test", "samples_seen": 80, "batch_size": 8, "lanes": 4, "warmup": 4}


def config_of(**changes):
    return configure({**SETTINGS, "lr": 1e-2, **changes})


def test_the_learning_rate_rises_and_falls():
    config = config_of(lr=1.0)
    rates = [learning_rate(config, step) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[7] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 5 / 6)))
    assert learning_rate(dataclasses.replace(config, schedule="constant"), 9) == 1.0


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_cooldown_is_open_clips(power):
    scheduler = pytest.importorskip("open_clip_train.scheduler")
    changes = {
        "schedule": "constant_cooldown",
        "cooldown": 5,
        "cooldown_power": power,
        "cooldown_end_lr": 0.1,
    }
    config = config_of(lr=1.0, warmup=3, **changes)
    theirs = scheduler.const_lr_cooldown(
        SimpleNamespace(param_groups=[]), 1.0, 3, config.steps, 5, power, 0.1
    )
    rates = [learning_rate(config, step) for step in range(config.steps)]
    assert rates == pytest.approx([theirs(step) for step in range(config.steps)])
    assert rates[4] == 1.0
    assert rates[9] < rates[6] < 1.0


def test_the_decay_factor_is_what_adamw_makes_of_a_weight_without_gradient():
    config = config_of(weight_decay=0.3, lr=0.5)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], weight_decay=config.weight_decay)
    for step in range(7):
        weight.grad = torch.zeros_like(weight)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
    assert weight.item() == pytest.approx(decay_factor(config, 7), rel=1e-12)
    assert decay_factor(config, 0) == 1
