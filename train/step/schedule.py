"""Schedules: the learning rate of every step, and what weight decay alone leaves of a weight."""

from __future__ import annotations

import math

from train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of step 0, 1, …: a linear rise over the warm-up, then the schedule.

    - cosine: half a cosine from `lr` to 0.
    - constant: `lr`.
    - constant_cooldown: `lr`; over the last `cooldown` steps it falls to `cooldown_end_lr` as
      the power `cooldown_power` of the steps that are left (1: a straight line).
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "constant_cooldown":
        left = min(1.0, (config.steps - step) / config.cooldown)
        share: float = left**config.cooldown_power
        return config.cooldown_end_lr + (config.lr - config.cooldown_end_lr) * share
    done = (step - config.warmup) / (config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def decay_factor(config: TrainConfig, steps: int) -> float:
    """What weight decay leaves of a weight of 1 without gradient after the first `steps` steps."""
    factor = 1.0
    for step in range(steps):
        factor *= 1 - learning_rate(config, step) * config.weight_decay
    return factor
