"""Manifests from YAML, checked: unknown keys, wrong types and impossible values are errors that
name the right one.

pydantic and yaml are imported where they are used: a trainer that reads resolved JSON needs
neither.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from manifests import disk
from manifests.schema import Ablation, Blend, Fetch, Recipe, Source, TaskSpec, refuse_unused
from manifests.yaml_forms import (
    expand_variables,
    merge,
    pick_scale,
    read_yaml,
    shape,
    shape_block,
)

__all__ = [
    "check_values",
    "list_scales",
    "manifest_kind",
    "merge",
    "read_block",
    "read_manifest",
]

T = TypeVar("T")
UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 10**3, "m": 10**6, "b": 10**9}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|[kKMB])$")
UNKNOWN_KEY = {"unexpected_keyword_argument", "extra_forbidden"}
# What a value must be, by the start of pydantic's error type.
EXPECTED = {
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
    "mapping": "a mapping of names to values",
    "dataclass": "a mapping of keys to values",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text; put it in quotes",
}
# How a value is written, shown where its type is wrong.
EXAMPLES = {
    "seeds": "seeds: [0, 1, 2]",
    "paths": "paths: [crawl.warc.wat.gz]",
    "source": "source: {kind: wat, paths: [crawl.warc.wat.gz]}",
    "filters": "filters: [caption, {clip_score: {model: ViT-B-32}}]",
    "views": 'views: {long: [{words: "caption_words >= 4"}]}',
    "rules": 'long: [{words: "caption_words >= 4"}]',
    "fetch": "fetch: {image_size: 256}",
    "pools": "pools: {web: {recipe: recipe.yaml}}",
    "tars": "tars: [web-{00000..00099}.tar]",
    "arms": "arms: {raw: web/raw}",
    "evaluate": "evaluate: [{name: objects, kind: classification, data: eval/objects}]",
    "extra_columns": "extra_columns: {score: float}",
    "templates": 'templates: ["a photo of a {}"]',
    "site_files": "site_files: [tdmrep]",
    "allow_ports": "allow_ports: [80, 443]",
    "random_like": "random_like: [clip30]",
}


# The keys by which a kind of manifest is known, in the order in which they are looked for.
KEYS_OF_KIND: dict[Any, set[str]] = {
    Ablation: {"arms"},
    Recipe: {"source"},
    Blend: {"views", "pools"},
    TaskSpec: {"kind", "data"},
}
USE_OF_KIND: dict[Any, str] = {
    Ablation: "an ablation; run it with: python pipeline/build.py {path}",
    Recipe: "a recipe; build its pool with: python pipeline/build.py {path}",
    Blend: "a blend; train on it with: python train/run.py {path} --out RUN",
    TaskSpec: "a task; evaluate with: python train/evaluate.py RUN --task {path}",
}


# --- reading -----------------------------------------------------------------------------------


def read_manifest(path: str | Path, kind: type[T], *, scale: str | None = None) -> T:
    """A recipe, blend, ablation or task; `scale` merges the block of that name under `scales` over
    it.

    Paths inside are relative to the file. `${NAME}` is expanded for the names in
    yaml_forms.VARIABLES and those that begin with CLIPMILL_. Text such as 20MiB and 12.8M is a
    number where the field is one. ValueError names the file, the key, the value and the nearest
    right one. A resolved manifest (JSON) is read as it is.
    """
    where = str(path)
    if where.endswith(".json") and disk.exists(path):
        if scale is not None:
            raise ValueError(f"{path} is resolved already; it has no scale {scale!r}")
        return _read_resolved(where, kind)
    raw = read_yaml(path)
    _refuse_other_kind(raw, kind, where)
    raw = expand_variables(pick_scale(raw, scale, where), where)
    shaped = shape(raw, kind, Path(where).resolve().parent, where)
    manifest = _validate(shaped, kind, where)
    if isinstance(manifest, Recipe):
        _refuse_unused(manifest, raw["source"], raw.get("fetch") or {}, where)
    return manifest


def _read_resolved(path: str, kind: type[T]) -> T:
    raw = disk.read_json(path)
    _refuse_other_kind(raw, kind, path)
    try:
        manifest = typing.cast(T, disk.from_plain(kind, raw))
    except ValueError as error:
        prefix = "" if str(error).startswith(path) else f"{path}: "
        raise ValueError(f"{prefix}{error}") from None
    if isinstance(manifest, Recipe):
        source = _changed_keys(manifest.source, Source(kind="wat", paths=("x",)))
        source = [key for key in source if getattr(manifest.source, key)]
        _refuse_unused(manifest, source, _changed_keys(manifest.fetch, Fetch()), path)
    return manifest


def read_block(path: str | Path, key: str, kind: type[T], *, scale: str | None = None) -> T | None:
    """One block of a manifest, read before the variables of the rest are set; None where there is
    none.
    """
    raw = _raw(path)
    if not str(path).endswith(".json"):
        raw = pick_scale(raw, scale, str(path))
    block = raw.get(key)
    if block is None:
        return None
    block = expand_variables(block, str(path), key)
    block = shape_block(block, kind, Path(path).resolve().parent)
    return _validate(block, kind, str(path), (key,))


def manifest_kind(path: str | Path) -> type[Recipe] | type[Ablation]:
    """Whether a YAML or JSON file is a recipe or an ablation, by its keys. ValueError where it is
    neither.
    """
    raw = _raw(path)
    kind = _kind_by_keys(raw)
    if kind is Ablation or kind is Recipe:
        return kind
    if kind is not None:
        raise ValueError(_what_it_is(path, kind))
    _refuse_misspelt(raw, path)
    raise ValueError(
        f"{path} is neither a recipe (it has no source) nor an ablation (it has no arms)"
    )


def _kind_by_keys(raw: Any) -> Any:
    """Recipe, Blend, Ablation or TaskSpec, whichever has these keys; None where none has."""
    for kind, keys in KEYS_OF_KIND.items():
        if isinstance(raw, Mapping) and keys <= raw.keys():
            return kind
    return None


def _what_it_is(path: str | Path, kind: Any) -> str:
    """`FILE is a blend; train on it with: …`."""
    return f"{path} is {USE_OF_KIND[kind].format(path=path)}"


def _refuse_other_kind(raw: Any, kind: Any, path: str) -> None:
    """ValueError where the keys are those of another kind of manifest than `kind`."""
    actual = _kind_by_keys(raw)
    if actual not in (None, kind) and kind in KEYS_OF_KIND:
        raise ValueError(_what_it_is(path, actual))


def _refuse_misspelt(raw: Mapping[str, Any], path: str | Path) -> None:
    """ValueError for an unknown key that is nearly `source` or `arms`, which tell the two kinds
    apart.
    """
    known = {field.name for kind in (Recipe, Ablation) for field in dataclasses.fields(kind)}
    for key in raw:
        if key not in known and (close := disk.did_you_mean(key, ["source", "arms"])):
            raise ValueError(f"{path}: unknown key {key!r}{close}")


def list_scales(path: str | Path) -> list[str]:
    """Names of the scales that a manifest knows, for `read_manifest(scale=…)`."""
    scales = _raw(path).get("scales") or {}
    return sorted(scales) if isinstance(scales, dict) else []


def _raw(path: str | Path) -> dict[str, Any]:
    if not str(path).endswith(".json"):
        return read_yaml(path)
    raw = disk.read_json(path) if disk.exists(path) else None
    if not isinstance(raw, dict):
        problem = "holds no mapping of keys" if disk.exists(path) else "does not exist"
        raise ValueError(f"{path} {problem}")
    return raw


def _refuse_unused(
    recipe: Recipe, source_keys: Iterable[str], fetch_keys: Iterable[str], where: str
) -> None:
    try:
        refuse_unused(recipe.source.kind, source_keys, fetch_keys)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _changed_keys(value: Any, default: Any) -> list[str]:
    """Fields of a dataclass that differ from those of `default`."""
    names = [field.name for field in dataclasses.fields(value)]
    return [name for name in names if getattr(value, name) != getattr(default, name)]


def check_values(values: Any, kind: type[T], where: str) -> T:
    """Plain values as a manifest or a block of one, checked as those of a file are. `where` begins
    the message of the ValueError.
    """
    return _validate(values, kind, where)


# --- types -------------------------------------------------------------------------------------


def _numbers(value: Any, kind: Any) -> Any:
    """Text such as 20MiB as a number, where the field that it is for is an int or a float."""
    if isinstance(value, str):
        wanted = {kind, *typing.get_args(kind)}
        match = QUANTITY.match(value)
        if match is None or not wanted & {int, float}:
            return value
        number = float(match[1]) * UNITS[match[2].lower()]
        return int(number) if number == int(number) else number
    kind = _without_none(kind)
    if isinstance(value, dict) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {key: _numbers(each, hints.get(key, Any)) for key, each in value.items()}
    arguments = typing.get_args(kind)
    if isinstance(value, dict) and typing.get_origin(kind) is dict:
        return {key: _numbers(each, arguments[1]) for key, each in value.items()}
    if isinstance(value, list) and typing.get_origin(kind) is tuple:
        return [_numbers(each, arguments[0]) for each in value]
    return value


def _without_none(kind: Any) -> Any:
    """X of `X | None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def _validate(raw: Any, kind: type[T], where: str, prefix: tuple[str, ...] = ()) -> T:
    import pydantic

    raw = _numbers(raw, kind)
    try:
        return pydantic.TypeAdapter(kind).validate_python(raw)
    except pydantic.ValidationError as error:
        # An unknown key is named first: a misspelt key also makes one missing.
        first = min(error.errors(), key=lambda each: each["type"] not in UNKNOWN_KEY)
        message = _message(first, raw, kind, prefix)
        raise ValueError(f"{where}: {message}") from None


def _message(error: Any, raw: Any, kind: Any, prefix: tuple[str, ...]) -> str:
    """One plain line for an error of pydantic: key, value, what is expected, an example or the
    nearest name.
    """
    location = tuple(error["loc"])
    key = ".".join([*prefix, *_label(raw, location)])
    last = next((str(step) for step in reversed(location) if isinstance(step, str)), "")
    value, error_type = error["input"], str(error["type"])
    if error_type in UNKNOWN_KEY:
        known = _fields_at(kind, location[:-1])
        if len(location) == 1 and not prefix:
            known.append("scales")  # merged before the keys are checked
        close = disk.did_you_mean(last, known)
        return f"unknown key {key!r}{close}"
    if error_type == "missing":
        example = f", as in {EXAMPLES[last]}" if last in EXAMPLES else ""
        return f"{key} is missing{example}"
    if error_type == "value_error":
        message = error["msg"].removeprefix("Value error, ")
        shown = "" if isinstance(value, (dict, list)) else f" (is {value!r})"
        return f"{key}: {message}{shown}" if key else f"{message}{shown}"
    if error_type == "literal_error":
        allowed = _choices_at(kind, location)
        close = disk.did_you_mean(str(value), allowed)
        return f"{key} is {value!r}; it must be one of {', '.join(allowed)}{close}"
    expected = EXPECTED.get(error_type.partition("_")[0], error["msg"])
    example = f", as in {EXAMPLES[last]}" if last in EXAMPLES and "list" in expected else ""
    return f"{key} is {value!r}; it must be {expected}{example}"


def _label(raw: Any, location: Iterable[Any]) -> list[str]:
    """The steps to a value as its reader knows them: views.basic.words instead of
    views.0.rules.1.
    """
    label: list[str] = []
    for step in location:
        if isinstance(step, int) and isinstance(raw, list) and step < len(raw):
            raw = raw[step]
            label.append(str(raw.get("name", step)) if isinstance(raw, dict) else str(step))
            continue
        raw = raw.get(step) if isinstance(raw, dict) else None
        if step not in ("rules", "[key]"):
            label.append(str(step))
    return label


def _type_at(kind: Any, location: Iterable[Any]) -> Any:
    """The type of what lies at `location` inside `kind`."""
    for step in location:
        kind = _without_none(kind)
        if isinstance(step, str) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
            kind = typing.get_type_hints(kind).get(step, Any)
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        else:
            kind = next(iter(typing.get_args(kind)), Any)
    return _without_none(kind)


def _fields_at(kind: Any, location: Iterable[Any]) -> list[str]:
    """Field names of the dataclass that lies at `location` inside `kind`; [] where none does."""
    expected = _type_at(kind, location)
    return (
        [field.name for field in dataclasses.fields(expected)]
        if dataclasses.is_dataclass(expected)
        else []
    )


def _choices_at(kind: Any, location: Iterable[Any]) -> list[str]:
    expected = _type_at(kind, location)
    return (
        [str(each) for each in typing.get_args(expected)]
        if typing.get_origin(expected) is Literal
        else []
    )
