"""Changes to training settings, as text or values: `configure({"preset": …, "lr": "5e-4"})`."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from manifests.disk import did_you_mean
from manifests.reader import QUANTITY, UNITS
from train.config.presets import PRESETS
from train.config.settings import TrainConfig
from train.model import ModelConfig

# Fields of ModelConfig that follow from the run: the loss decides whether there is a logit bias.
DECIDED_BY_RUN = {"logit_bias"}
# What other trainers call a setting -> what it is here.
OTHER_NAMES = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "cooldown_steps": "cooldown",
    "ema_decay": "ema",
    "global_batch_size": "batch_size",
    "gradient_clip": "grad_clip",
    "grad_clip_norm": "grad_clip",
    "grad_checkpointing": "recompute",
    "learning_rate": "lr",
    "lr_scheduler": "schedule",
    "micro_batch_size": "micro_batch",
    "num_workers": "threads",
    "pretrained": "init",
    "train_num_samples": "samples_seen",
    "warmup_steps": "warmup",
    "wd": "weight_decay",
    "workers": "threads",
}
LENGTHS = ("epochs", "num_epochs", "max_epochs", "steps", "max_steps", "num_steps")


def configure(changes: Mapping[str, Any], epoch_samples: int | None = None) -> TrainConfig:
    """A preset (key `preset`) or the defaults, with `changes` over it.

    `model.NAME` changes a setting of the model, `until: {task, accuracy, every}` the settings
    until_task and so on. Text is read as the type of the setting, so `5e-4`
    (text in YAML 1.1) and `12.8M` are numbers. `epoch_samples`, the kept rows of the blend, is
    named in the message for `epochs`. ValueError for an unknown key, a wrong type and an
    impossible value.
    """
    rest = {key: value for key, value in changes.items() if key not in ("preset", "until")}
    until = changes.get("until") or {}
    if not isinstance(until, Mapping):
        raise ValueError(
            f"until is {until!r}; it must be {{task: FILE, accuracy: NUMBER, every: STEPS}}"
        )
    rest |= {f"until_{key}": value for key, value in until.items()}
    preset = changes.get("preset")
    if preset is not None and preset not in PRESETS:
        suggestion = did_you_mean(str(preset), PRESETS)
        raise ValueError(f"there is no preset {preset!r}{suggestion} (of {', '.join(PRESETS)})")
    base = TrainConfig() if preset is None else PRESETS[preset]()
    types_of, types_of_model = _types()
    run_changes: dict[str, Any] = {}
    same_model = rest.get("model", base.model) == base.model
    model_changes = dict(base.model_changes) if same_model else {}
    for key, value in rest.items():
        prefix, _, name = key.partition(".")
        if prefix == "model" and name:
            if name not in types_of_model:
                suggestion = did_you_mean(name, types_of_model)
                raise ValueError(f"unknown setting {name!r} of a model{suggestion}")
            model_changes[name] = _read(key, value, types_of_model[name])
        elif key in types_of:
            setting = _read(key, value, types_of[key])
            run_changes[key] = tuple(setting) if isinstance(setting, list) else setting
        else:
            raise ValueError(_unknown(key, value, base, epoch_samples))
    return dataclasses.replace(base, **run_changes, model_changes=model_changes)


def _types() -> tuple[dict[str, Any], dict[str, Any]]:
    """The types of the settings of a run and of a model that may be changed."""
    of_run, of_model = typing.get_type_hints(TrainConfig), typing.get_type_hints(ModelConfig)
    del of_run["model_changes"]
    return of_run, {name: kind for name, kind in of_model.items() if name not in DECIDED_BY_RUN}


def _unknown(key: str, value: Any, base: TrainConfig, epoch_samples: int | None) -> str:
    """The message for a key that is no setting, with the setting that is meant."""
    message = f"unknown training setting {key!r}"
    name = key.replace("-", "_").lower()
    if name in OTHER_NAMES:
        return f"{message}; here it is {OTHER_NAMES[name]}"
    if name not in LENGTHS:
        of_run, of_model = _types()
        known = [*of_run, "preset", *(f"model.{name}" for name in of_model)]
        return message + did_you_mean(key, known)
    message += "; the length of a run is samples_seen, in samples"
    number = _number(value)
    if name.endswith("steps"):
        message += f": steps x batch_size (now {base.batch_size:,})"
    elif epoch_samples is not None:
        message += f": an epoch of this blend has {epoch_samples:,}"
        if number is not None and number > 0:
            message += f", so {number:g} epochs are samples_seen={round(number * epoch_samples)}"
    else:
        message += ": epochs x the rows that the views of the blend keep"
    return message


def _read(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`: one of int, float, bool, str, tuple[…, ...], Literal[…] and X | None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        if value is None or value in ("none", "null"):
            return None
        words = [part for part in parts[1:] if value in typing.get_args(part)]
        return value if words else _read(key, value, parts[0])
    if typing.get_origin(kind) is tuple:
        return _read_list(key, value, typing.get_args(kind)[0])
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            suggestion = did_you_mean(str(value), allowed)
            raise ValueError(f"{key} is {value!r}{suggestion} (of {', '.join(allowed)})")
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (int, float) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    if kind is str and isinstance(value, str):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise ValueError(f"{key} is {value!r}; it must be {wanted}")


def _read_list(key: str, value: Any, kind: Any) -> list[Any]:
    """Values of one kind, from a list or from text with commas between them."""
    parts = value
    if isinstance(value, str):
        parts = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{key} is {value!r}; it must be values with commas between them")
    return [_read(key, part, kind) for part in parts]


def _number(value: Any) -> float | int | None:
    """A finite number, or text that is one (12.8M, 20MiB, 5e-4); None for anything else."""
    if isinstance(value, str):
        if match := QUANTITY.match(value):
            return float(match[1]) * UNITS[match[2].lower()]
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
