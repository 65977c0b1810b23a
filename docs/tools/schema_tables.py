"""Tables of the keys of manifests and of the columns on disk, from the code that reads them."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from clipmill.filters import FILTERS
from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, SIDECAR, SIDECAR_MEANINGS
from clipmill.manifests.reader import VARIABLES
from clipmill.manifests.schema import (
    MANNERS,
    SOURCES,
    Ablation,
    Blend,
    Controls,
    Fetch,
    Mixtures,
    PoolRef,
    Recipe,
    Rule,
    Scorer,
    Source,
    Stop,
    Suite,
    TarStream,
    TaskSpec,
)
from clipmill.manifests.schema.ablation import Arm
from clipmill.pipeline.views.rules import DERIVED

MEANINGS = yaml.safe_load((Path(__file__).parent / "meanings.yaml").read_text())
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Recipe, Source, Fetch, Rule, Blend, TarStream, TaskSpec, Suite,
        Ablation, Arm, Mixtures, Stop, PoolRef, Scorer, Controls,
    )
}  # fmt: skip
NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "any"}


def table(*rows: typing.Sequence[str]) -> str:
    """A table of Markdown; the first row is its header."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def type_text(kind: Any) -> str:
    """A type as a writer of YAML thinks of it: `list of text`, `number or null`, the choices."""
    parts = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (tuple, list):
        return f"list of {type_text(parts[0])}"
    if origin is dict or str(origin).endswith("Mapping'>"):
        return "name -> " + type_text(parts[1])
    if origin in (typing.Union, types.UnionType):
        words = [type_text(part) for part in parts if part is not type(None)]
        return " or ".join([*words, "null"] if type(None) in parts else words)
    if dataclasses.is_dataclass(kind):
        name = getattr(kind, "__name__", "")
        return f"block ({name})" if name in CLASSES else "block"
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def default_text(field: dataclasses.Field[Any]) -> str:
    """A default as it is written in YAML, or `needed`."""
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(disk.to_plain(field.default))}`"
    if field.default_factory is not dataclasses.MISSING:
        value = json.dumps(disk.to_plain(field.default_factory()))
        return f"`{value}`" if len(value) < 90 else "the defaults of its keys"
    return "needed"


def meaning_of(group: str, name: str) -> str:
    try:
        return str(MEANINGS[group][name])
    except KeyError:
        raise ValueError(f"docs/tools/meanings.yaml has no {group}.{name}: write it") from None


def refuse_surplus(group: str, names: typing.Iterable[str]) -> None:
    """ValueError for a meaning of something that is not there any more."""
    surplus = sorted(MEANINGS[group].keys() - set(names))
    if surplus:
        raise ValueError(f"docs/tools/meanings.yaml explains {surplus} of {group}: not there")


def key_table(name: str) -> str:
    """Every key of a block of a manifest."""
    kind = CLASSES[name]
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    refuse_surplus(name, [field.name for field in fields])
    rows = [("key", "default", "type", "what it is")]
    for field in fields:
        shown = type_text(hints[field.name])
        meaning = meaning_of(name, field.name)
        rows.append((f"`{field.name}`", default_text(field), shown, meaning))
    return table(*rows)


def source_table() -> str:
    """Every kind of source with the keys that it takes."""
    rows = [("kind", "paths hold", "needs", "may have", "keys of `fetch`")]
    for name, kind in SOURCES.items():
        keys = "all" if kind.fetch is None else ", ".join(f"`{key}`" for key in kind.fetch)
        if kind.fetch is not None and len(kind.fetch) > len(dataclasses.fields(Fetch)) - 6:
            absent = [f.name for f in dataclasses.fields(Fetch) if f.name not in kind.fetch]
            keys = "all but " + ", ".join(f"`{key}`" for key in absent)
        needs = ", ".join(f"`{key}`" for key in kind.required)
        may = ", ".join(f"`{key}`" for key in kind.optional) or "-"
        rows.append((f"`{name}`", kind.paths or "-", needs, may, keys))
    return table(*rows)


def manner_list() -> str:
    names = ", ".join(f"`{name}`" for name in MANNERS)
    return f"These keys may change while a pool is built: {names}."


def variable_table() -> str:
    return table(("variable", "what it names"), *((f"`{k}`", v) for k, v in VARIABLES.items()))


def column_table(name: str) -> str:
    """Every column of the pairs or of the sidecars, with its type in Arrow."""
    schema: pa.Schema = {"PAIRS": PAIRS, "SIDECAR": SIDECAR}[name]
    meanings = {**FILTERS["page"].meanings, **SIDECAR_MEANINGS}
    rows = [("column", "type", "what it is")]
    for field in schema:
        rows.append((f"`{field.name}`", str(field.type), meanings[field.name]))
    return table(*rows)


def derived_table() -> str:
    """The columns that rules may read beside those on disk."""
    rows = [("column", "type", "what it is")]
    rows += [(f"`{name}`", str(one.type), one.meaning) for name, one in DERIVED.items()]
    return table(*rows)
