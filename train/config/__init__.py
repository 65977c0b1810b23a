"""Training settings: what there is, the presets, and changes to them."""

from __future__ import annotations

from train.config.changes import configure
from train.config.presets import PRESETS
from train.config.setting_list import Setting, format_settings, list_settings
from train.config.settings import (
    LOGIT_SCALE_MAX,
    TrainConfig,
    check_layout,
    check_world,
    model_config,
    recompute_interval,
    refuse_reading,
    trained_groups,
)

__all__ = [
    "LOGIT_SCALE_MAX",
    "PRESETS",
    "Setting",
    "TrainConfig",
    "check_layout",
    "check_world",
    "configure",
    "format_settings",
    "list_settings",
    "model_config",
    "recompute_interval",
    "refuse_reading",
    "trained_groups",
]
