"""Manifests from YAML, checked: unknown keys, wrong types and impossible values are errors that name the right one.

pydantic and yaml are imported where they are used: a trainer that reads resolved JSON needs neither.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from manifests import disk
from manifests.schema import Ablation, Blend, Fetch, Recipe, Source, TaskSpec
from manifests.sources import refuse_unused

T = TypeVar("T")
UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 10**3, "m": 10**6, "b": 10**9}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|[kKMB])$")
VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_manifest(path: str | Path, kind: type[T], *, scale: str | None = None) -> T:
    """A recipe, blend, ablation or task from YAML; `scale` merges the block of that name under `scales` over it.

    Paths inside are relative to the file, `${VAR}` is expanded from the environment, 20MiB and 12.8M are numbers.
    ValueError names the file, the key, the value and the nearest right one. JSON (resolved) is read as it is.
    """
    if str(path).endswith(".json") and disk.exists(path):
        manifest = typing.cast(T, disk.from_plain(kind, disk.read_json(path)))
        if isinstance(manifest, Recipe):
            default = Source(kind="wat", paths=("x",))
            source = _changed_keys(manifest.source, default)
            _refuse_unused(manifest, source, _changed_keys(manifest.fetch, Fetch()), str(path))
        return manifest
    raw = _yaml(path)
    scales = raw.pop("scales", {})
    if scale is not None:
        if scale not in scales:
            raise ValueError(
                f"{path} has no scale {scale!r}; it has {', '.join(sorted(scales)) or 'none'}"
            )
        raw = merge(raw, scales[scale])
    raw = _expand(raw, str(path))
    manifest = _validate(_shape(raw, kind, Path(str(path)).resolve().parent), kind, str(path))
    if isinstance(manifest, Recipe):
        _refuse_unused(manifest, raw["source"], raw.get("fetch") or {}, str(path))
    return manifest


def read_block(path: str | Path, key: str, kind: type[T], *, scale: str | None = None) -> T | None:
    """One block of a manifest alone, before the variables of the rest are set; None where there is no such key."""
    if str(path).endswith(".json"):
        raw = disk.read_json(path)
    else:
        raw = _yaml(path)
        raw = merge(raw, raw.get("scales", {}).get(scale, {})) if scale else raw
    block = raw.get(key)
    return None if block is None else _validate(_expand(block, str(path)), kind, f"{path}: {key}")


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


def merge(base: Any, change: Any) -> Any:
    """`change` over `base`: mappings key by key, a null removes its key, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    merged = {**base, **{k: merge(base.get(k), v) for k, v in change.items()}}
    return {k: v for k, v in merged.items() if not (k in change and change[k] is None)}


def manifest_kind(path: str | Path) -> type[Recipe] | type[Ablation]:
    """Whether a YAML or JSON file is a recipe or an ablation, by its keys. ValueError where it is neither."""
    raw = disk.read_json(path) if str(path).endswith(".json") and disk.exists(path) else _yaml(path)
    if "arms" in raw:
        return Ablation
    if "source" in raw:
        return Recipe
    raise ValueError(
        f"{path} is neither a recipe (it has no source) nor an ablation (it has no arms)"
    )


def list_scales(path: str | Path) -> list[str]:
    """Names of the scales that a manifest knows, for `read_manifest(scale=…)`."""
    return sorted(_yaml(path).get("scales", {}))


def _yaml(path: str | Path) -> dict[str, Any]:
    import yaml

    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    try:
        raw = yaml.safe_load(disk.read_bytes(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no mapping of keys")
    return raw


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, where) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, where) for v in value]
    if not isinstance(value, str):
        return value
    for name in VARIABLE.findall(value):
        if name not in os.environ:
            raise ValueError(f"{where}: ${{{name}}} is not set in the environment")
        value = value.replace(f"${{{name}}}", os.environ[name])
    if match := QUANTITY.match(value):
        number = float(match[1]) * UNITS[match[2].lower()]
        return int(number) if number == int(number) else number
    return value


def _shape(raw: dict[str, Any], kind: type, folder: Path) -> dict[str, Any]:
    """The short forms of a manifest as the fields of its dataclass, its paths as absolute ones."""

    def place(path: Any) -> Any:
        return (
            path if not isinstance(path, str) or "://" in path else str((folder / path).absolute())
        )

    raw = dict(raw)
    if kind is Recipe:
        if isinstance(raw.get("source"), dict) and "paths" in raw["source"]:
            paths = raw["source"]["paths"]
            raw["source"] = {
                **raw["source"],
                "paths": [place(p) for p in ([paths] if isinstance(paths, str) else paths)],
            }
        if isinstance(raw.get("filters"), list):
            raw["filters"] = [_filter(f) for f in raw["filters"]]
        if isinstance(raw.get("views"), dict):
            raw["views"] = [
                {"name": k, "rules": [_rule(r) for r in v or []]} for k, v in raw["views"].items()
            ]
    elif kind is Blend and isinstance(raw.get("pools"), dict):
        raw["pools"] = {k: place(v) for k, v in raw["pools"].items()}
    elif kind is TaskSpec:
        raw["data"] = place(raw.get("data"))
    elif kind is Ablation:
        for name, pool in dict(raw.get("pools") or {}).items():
            if isinstance(pool, dict):
                raw["pools"] = {**raw["pools"], name: {k: place(v) for k, v in pool.items()}}
        if isinstance(raw.get("arms"), dict):
            raw["arms"] = {
                k: place(v["blend"]) if isinstance(v, dict) and set(v) == {"blend"} else v
                for k, v in raw["arms"].items()
            }
        if isinstance(raw.get("evaluate"), list):
            raw["evaluate"] = [
                {**t, "data": place(t.get("data"))} if isinstance(t, dict) else t
                for t in raw["evaluate"]
            ]
        if isinstance(raw.get("controls"), dict) and raw["controls"].get("null_web"):
            raw["controls"] = {**raw["controls"], "null_web": place(raw["controls"]["null_web"])}
    return raw


def _filter(entry: Any) -> Any:
    if isinstance(entry, str):
        return {"name": entry}
    if isinstance(entry, dict) and len(entry) == 1:
        name, options = next(iter(entry.items()))
        return {"name": name, "options": options or {}}
    return entry


def _rule(entry: Any) -> Any:
    """`{english: language = 'en'}`, `{view: basic}` or `{random_like: clip30, seed: 1}` as the fields of Rule."""
    if not isinstance(entry, dict) or not entry:
        return entry
    if "view" in entry or "random_like" in entry:
        return {"name": str(entry.get("view") or "random"), **entry}
    if len(entry) == 1:
        name, where = next(iter(entry.items()))
        if isinstance(where, dict):
            return {"name": str(name), **where}
        return {"name": str(name), "where": str(where)}
    return entry


def _validate(raw: dict[str, Any], kind: type[T], where: str) -> T:
    import pydantic

    try:
        return pydantic.TypeAdapter(kind).validate_python(raw)
    except pydantic.ValidationError as error:
        unknown = {
            "unexpected_keyword_argument",
            "extra_forbidden",
        }  # said first: a misspelt key also makes one missing
        first = min(error.errors(), key=lambda e: e["type"] not in unknown)
        key = ".".join(str(x) for x in first["loc"])
        if first["type"] in unknown:
            last = str(first["loc"][-1])
            raise ValueError(
                f"{where}: unknown key {key!r}{disk.did_you_mean(last, _fields_at(kind, first['loc'][:-1]))}"
            ) from None
        value = "" if isinstance(first["input"], dict) else f" (is {first['input']!r})"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {key + ': ' if key else ''}{message}{value}") from None


def _fields_at(kind: Any, path: Iterable[Any]) -> list[str]:
    """Field names of the dataclass that lies at `path` inside `kind`."""
    for step in path:
        if isinstance(step, str) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
            kind = typing.get_type_hints(kind).get(step, Any)
        else:
            kind = (
                next(iter(typing.get_args(kind)[::-1]), Any)
                if not isinstance(step, int)
                else typing.get_args(kind)[0]
            )
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(a for a in typing.get_args(kind) if a is not type(None))
    return [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
