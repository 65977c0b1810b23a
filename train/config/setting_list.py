"""Every setting of a run with its default, choices and meaning, as `--list-settings` shows them."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Literal

from train.config.settings import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as `--list-settings` shows it."""

    name: str
    heading: str  # of the group that it belongs to
    choices: str  # "cosine | constant | …", "whole number", "number", "true | false" or "text"
    default: str
    meaning: str


def list_settings() -> list[Setting]:
    """Every setting of a run with its default and meaning, in groups."""
    types_of, heading = typing.get_type_hints(TrainConfig), ""
    settings = []
    for of_class in dataclasses.fields(TrainConfig):
        heading = of_class.metadata["heading"] or heading
        is_changes = of_class.name == "model_changes"
        default = "" if is_changes else _as_text(of_class.default)
        settings.append(
            Setting(
                name="model.NAME" if is_changes else of_class.name,
                heading=heading,
                choices="a field of the model" if is_changes else _choices(types_of[of_class.name]),
                default=default,
                meaning=of_class.metadata["meaning"],
            )
        )
    return settings


def format_settings() -> str:
    """`list_settings` as text: a heading for each group, a line for each setting."""
    settings = list_settings()
    width = max(len(f"{s.name}={s.default}") for s in settings)
    lines: list[str] = []
    heading = ""
    for s in settings:
        if s.heading != heading:
            heading = s.heading
            lines += ["", heading] if lines else [heading]
        lines.append(f"  {f'{s.name}={s.default}':<{width}}  {s.meaning} ({s.choices})")
    return "\n".join(lines)


def _choices(kind: Any) -> str:
    """The values that a setting takes, in words."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " | ".join(parts)
    if typing.get_origin(kind) is tuple:
        return f"list of {_choices(parts[0])}"
    if parts:
        words = [_choices(part) for part in parts if part is not type(None)]
        return ", or ".join([*words, "none"] if type(None) in parts else words)
    return {int: "whole number", float: "number", bool: "true | false", str: "text"}[kind]


def _as_text(value: Any) -> str:
    """A default as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)
