"""Tables of filters, of the trainer's settings and presets, and of the options of the commands."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator

from docs.tools.parsers import COMMANDS, parser_of
from docs.tools.schema_tables import table, type_text
from filters import FILTERS
from filters.base import FilterBase, PoolFilter
from manifests import disk
from train.config import PRESETS, Setting, TrainConfig, list_settings


def as_text(docstring: str | None) -> str:
    """A docstring as paragraphs of Markdown, in which nothing is markup."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))
    lines = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return "\n\n".join(_escape(line) for line in lines)


def _escape(line: str) -> str:
    """A line outside of whose backticks nothing is markup."""
    parts = line.split("`")
    return "`".join(
        part if number % 2 else re.sub(r"([*<\[]|(?<!\w)_|_(?!\w))", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def options_of_filter(kind: type[FilterBase]) -> list[tuple[str, str, str]]:
    """(option, default, type) of a filter: the fields that a recipe can set."""
    hints = typing.get_type_hints(kind)
    rows = []
    for field in dataclasses.fields(typing.cast("type[typing.Any]", kind)):
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            default = f"`{json.dumps(disk.to_plain(field.default))}`"
        elif field.default_factory is not dataclasses.MISSING:
            default = f"`{json.dumps(disk.to_plain(field.default_factory()))}`"
        else:
            default = "needed"
        rows.append((f"`{field.name}`", default, type_text(hints[field.name])))
    return rows


def inputs_of(kind: type[FilterBase]) -> str:
    """What a filter looks at."""
    if issubclass(kind, PoolFilter):
        return "the whole pool"
    names = {"image": "image", "caption": "caption", "row": "sidecar", "json": "JSON member"}
    needs: frozenset[str] = getattr(kind, "needs", frozenset())
    return ", ".join(names[name] for name in names if name in needs) or "columns"


def filter_sections() -> str:
    """Every filter: what it looks at, its columns, its options, its docstring."""
    parts = []
    for name, kind in FILTERS.items():
        parts.append(f"## `{name}`\n\nLooks at: {inputs_of(kind)}.")
        parts.append(as_text(kind.__doc__))
        columns = [("column", "type", "what it is")]
        for column, arrow in kind.adds.items():
            columns.append((f"`{column}`", str(arrow), kind.meanings.get(column, "")))
        if len(columns) > 1:
            parts.append(table(*columns))
        options = options_of_filter(kind)
        if options:
            parts.append(table(("option", "default", "type"), *options))
    return "\n\n".join(parts)


def _settings_by_heading() -> Iterator[tuple[str, list[Setting]]]:
    group: list[Setting] = []
    for setting in list_settings():
        if group and setting.heading != group[0].heading:
            yield group[0].heading, group
            group = []
        group.append(setting)
    yield group[0].heading, group


def setting_sections() -> str:
    """Every setting of a run, a table for each group."""
    parts = []
    for heading, settings in _settings_by_heading():
        rows = [("setting", "default", "values", "what it is")]
        for one in settings:
            default = f"`{one.default}`" if one.default else ""
            values = one.choices.replace(" | ", ", ")
            rows.append((f"`{one.name}`", default, values, one.meaning))
        parts.append(f"## {heading}\n\n{table(*rows)}")
    return "\n\n".join(parts)


def preset_table() -> str:
    """Every preset: what it is, and the settings that differ from the defaults."""
    rows = [("preset", "what it is", "settings that differ from the defaults")]
    usual = TrainConfig()
    for name, make in PRESETS.items():
        config = make()
        changes = []
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if value != getattr(usual, field.name):
                changes.append(f"`{field.name}={value}`")
        first = as_text(make.__doc__).split("\n\n")[0]
        rows.append((f"`{name}`", first, ", ".join(changes)))
    return table(*rows)


def _option_rows(parser: argparse.ArgumentParser) -> list[tuple[str, str, str]]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
        value = metavar if isinstance(metavar, str) else " ".join(metavar)
        if action.nargs == 0:
            value = ""
        if action.choices is not None:
            value = ", ".join(str(choice) for choice in action.choices)
        meaning = (action.help or "").replace("%(default)s", str(action.default))
        meaning = as_text(meaning.replace("%%", "%"))
        rows.append((names or f"`{value}`", f"`{value}`" if names and value else "", meaning))
    return rows


def _examples(epilog: str) -> str:
    """The commands of an epilog, with their continued lines."""
    lines: list[str] = []
    for line in epilog.splitlines():
        continues = bool(lines) and lines[-1].endswith("\\")
        if continues or re.match(r"\s*(\w+=\S+ )*(python|torchrun|ray) ", line):
            lines.append(line.strip() if not continues else "    " + line.strip())
    return "\n".join(lines)


def _parser_section(parser: argparse.ArgumentParser, title: str, level: str) -> list[str]:
    parts = [f"{level} {title}", as_text(parser.description)]
    rows = _option_rows(parser)
    if rows:
        parts.append(table(("argument", "value", "what it does"), *rows))
    examples = _examples(parser.epilog or "")
    if examples:
        parts.append(f"```text\n{examples}\n```")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                parts += _parser_section(child, f"{title.strip('`')} {name}", level + "#")
    return [part for part in parts if part]


def command_sections() -> str:
    """The help of every command."""
    parts = []
    for script in COMMANDS:
        parts += _parser_section(parser_of(script), f"`{script}`", "##")
    return "\n\n".join(parts)
