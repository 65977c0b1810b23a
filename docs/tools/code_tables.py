"""Tables of filters, of the trainer's settings and presets, of the options of the commands, and of
the keys of a verdict."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import itertools
import json
import re
import typing
from collections.abc import Iterator

from cyclopts import App, Parameter
from cyclopts.argument import Argument

from clipmill.bench import bench
from clipmill.commands.app import COMMANDS
from clipmill.filters import FILTERS
from clipmill.filters.base import FilterBase, PoolFilter
from clipmill.manifests import disk
from clipmill.train.config import PRESETS, Setting, TrainConfig, list_settings
from clipmill.verdict.decide.verdicts import ArmScore, Decision
from clipmill.verdict.stats.analysis import TaskResult
from clipmill.verdict.stats.blocks import Crossing, Interaction
from clipmill.verdict.stats.comparison import Comparison, Power
from clipmill.verdict.stats.scales import ScaleAgreement, ScaleDecision
from clipmill.verdict.stats.signals import Interval, MetricSignal
from clipmill.verdict.tables.account import Account, ColumnRole, LeftOut, MetricFacts
from docs.tools.schema_tables import table, type_text

# Of `clipmill decide --json`, the verdict first
VERDICT_KINDS: tuple[type[typing.Any], ...] = (
    Decision, ArmScore, TaskResult, Comparison, Power, MetricSignal, Interval, ScaleDecision,
    ScaleAgreement, Interaction, Crossing, Account, ColumnRole, MetricFacts, LeftOut,
)  # fmt: skip


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


def meanings_of(kind: type[typing.Any]) -> tuple[str, dict[str, str]]:
    """What the docstring of a dataclass says of all, and of each field: `name, other: text.`"""
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    names = {field.name for field in dataclasses.fields(kind)}
    starts = [
        match
        for match in re.finditer(r"(?:(?<=[.;] )|^)(\w+(?:, \w+)*): ", text)
        if names.issuperset(match[1].split(", "))
    ]
    meanings: dict[str, str] = {}
    for match, after in itertools.zip_longest(starts, starts[1:]):
        meaning = text[match.end() : after.start() if after else len(text)].strip().rstrip(";")
        meanings |= dict.fromkeys(match[1].split(", "), meaning)
    return text[: starts[0].start()] if starts else text, meanings


def verdict_sections() -> str:
    """Every object in the JSON of a verdict: its keys, their types in Python, their meanings."""
    parts = []
    for kind in VERDICT_KINDS:
        text, meanings = meanings_of(kind)
        rows = [("key", "type", "what it is")]
        for field in dataclasses.fields(kind):
            rows.append((f"`{field.name}`", f"`{field.type}`", as_text(meanings.get(field.name))))
        parts.append(f"### `{kind.__name__}`\n\n{as_text(text)}\n\n{table(*rows)}")
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


def _default_text(argument: Argument) -> str:
    """The default of an argument as it is typed, or `needed`."""
    default = argument.field_info.default
    if argument.required:
        return "needed"
    return "" if default in (None, False, [], inspect.Parameter.empty) else f"`{default}`"


def argument_table(app: App, default_parameter: Parameter | None) -> str:
    """The arguments and options of a command; empty where it has none."""
    rows = [("argument", "default", "value", "what it does")]
    for argument in app.assemble_argument_collection(
        default_parameter=default_parameter, parse_docstring=True
    ):
        if argument.names == ("*",) or not argument.parse:  # a group of options, and no word
            continue
        names = ", ".join(f"`{name}`" for name in argument.names)
        value = "" if argument.hint is bool else type_text(argument.hint).removesuffix(" or null")
        if value.startswith("list of "):
            value = value.removeprefix("list of ") + " …"
        meaning = as_text(argument.parameter.help)
        rows.append((names, _default_text(argument), value, meaning))
    return table(*rows) if len(rows) > 1 else ""


def script_table(parser: argparse.ArgumentParser) -> str:
    """The same of a command that hands its words to a script."""
    rows = [("argument", "default", "value", "what it does")]
    for action in parser._actions[1:]:  # without --help
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        choices = ", ".join(f"`{choice}`" for choice in action.choices or ())
        value = choices or ("" if action.nargs == 0 else action.metavar or action.dest.upper())
        meaning = (action.help or "").replace("%(default)s", str(action.default))
        rows.append((names, "", str(value), as_text(meaning)))
    return table(*rows)


def _examples(epilogue: str) -> str:
    """The commands of an epilogue, with their continued lines."""
    lines: list[str] = []
    for line in epilogue.splitlines():
        continues = bool(lines) and lines[-1].endswith("\\")
        if continues or re.match(r"\s*(clipmill|torchrun|ray job) ", line):
            lines.append(line.strip() if not continues else "    " + line.strip())
    return "\n".join(lines)


def _command_parts(app: App, title: str, parent: App | None = None) -> Iterator[str]:
    """The section of a command: what it does, its arguments, examples, its sub-commands."""
    yield f"{'###' if parent else '##'} `{title}`"
    # The help of a command that was called is that of the table of commands.
    text = app.help if parent is not None else inspect.getdoc(app.default_command) or ""
    yield as_text(inspect.cleandoc(text).split("\n\nArgs:")[0])
    if parent is not None and app.default_command is parent.default_command:
        return  # another name of it
    is_script = title == "clipmill bench"
    default_parameter = (parent or app).default_parameter
    yield script_table(bench.parser()) if is_script else argument_table(app, default_parameter)
    epilogue = bench.EXAMPLE if is_script else app.help_epilogue or ""
    if parent is None and (examples := _examples(epilogue)):
        yield f"```text\n{examples}\n```"
    for name in app:
        if not name.startswith("-"):  # --help
            yield from _command_parts(app[name], f"{title} {name}", app)


def app_of(name: str) -> App:
    """The App of a command of clipmill."""
    (target,) = [target for command, target, _, _ in COMMANDS if command == name]
    module, app = target.split(":")
    return typing.cast("App", getattr(importlib.import_module(f"clipmill.commands.{module}"), app))


def command_sections() -> str:
    """The help of every command, in the order of `clipmill --help`."""
    parts: list[str] = []
    for name, _, _, _ in COMMANDS:
        parts += _command_parts(app_of(name), f"clipmill {name}")
    return "\n\n".join(part for part in parts if part)
