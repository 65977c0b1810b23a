"""Dataclasses as plain values and back; the nearest known word of a wrong one."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PLAIN_TYPES = {str, int, float, bool, type(None)}


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as dicts, lists and strings.

    A field with the metadata `omit_none` is left out where it is None: what was written before the
    field came stays as it is.
    """
    if type(value) in PLAIN_TYPES:  # most values of a large document
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            if each is not None or not field.metadata.get("omit_none"):
                plain[field.name] = to_plain(each)
        return plain
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [
            to_plain(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)
        ]
    return str(value) if isinstance(value, Path) else value


def without_defaults(value: Any) -> Any:
    """As `to_plain`, without the fields that have their default: a field that is added later does
    not change the hash of what was written before.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stated = {}
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if default is dataclasses.MISSING or each != default:
                stated[field.name] = without_defaults(each)
        return stated
    if isinstance(value, Mapping):
        return {str(name): without_defaults(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_defaults(each) for each in value]
    return to_plain(value)


@functools.cache
def _type_hints(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a dataclass. They are texts, which take 0.1 ms to evaluate."""
    return typing.get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """The inverse of `to_plain` for JSON that this program wrote; ValueError from the dataclasses'
    own checks.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_plain(kind, value)
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return from_plain(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(args[0], v) for v in value)
    if origin is dict:
        return {k: from_plain(args[1], v) for k, v in value.items()}
    return value


def _dataclass_from_plain(kind: type, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__} is {value!r}; it must be a mapping of keys to values")
    hints = _type_hints(kind)
    fields = dataclasses.fields(kind)
    known = {field.name for field in fields}
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"{kind.__name__} has no {unknown[0]!r}{did_you_mean(unknown[0], known)}")
    for field in fields:
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if field.name not in value and not has_default:
            raise ValueError(f"{kind.__name__} has no value for {field.name!r}")
    return kind(**{name: from_plain(hints[name], each) for name, each in value.items()})


JSON_TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def check_types(kind: Any, value: Any, name: str) -> None:
    """Compare JSON with the annotations of a dataclass, before `from_plain` makes it.

    name: where `value` stands, for the message. ValueError for the first value of another type. A
    missing or unknown key is left to `from_plain`.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is not None or type(None) not in args:
            check_types(next(a for a in args if a is not type(None)), value, name)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
        hints = _type_hints(kind)
        for key in value.keys() & hints.keys():
            check_types(hints[key], value[key], f"{name}.{key}")
    elif origin is dict:
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
        for key, each in value.items():
            check_types(args[1], each, f"{name}[{key!r}]")
    elif origin is tuple:
        _require(isinstance(value, list), value, name, "a list")
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        _require(len(value) == len(kinds), value, name, f"a list of {len(kinds)} values")
        for i, (each_kind, each) in enumerate(zip(kinds, value, strict=True)):
            check_types(each_kind, each, f"{name}[{i}]")
    elif kind in JSON_TYPES:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        fits = type(value) is kind or (kind is float and is_number)
        _require(fits, value, name, JSON_TYPES[kind])


def _require(fits: bool, value: Any, name: str, wanted: str) -> None:
    if not fits:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:60] + "…"
        raise ValueError(f"{name} is {shown}; it must be {wanted}")


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`; did you mean 'x'?` for the closest of `known`, or nothing where none is close.

    cutoff: the similarity that is close enough, from 0 to 1.
    """
    close = closest(word, known, cutoff)
    return f"; did you mean {close!r}?" if close is not None else ""


def closest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The one of `known` that is most like `word`; None where none reaches `cutoff`."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None
