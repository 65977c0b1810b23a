"""Dataclasses as plain values and back; the nearest known word of a wrong one."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PLAIN_TYPES = {str, int, float, bool, type(None)}
OPTIONAL = {"optional": True}  # metadata of a field whose key a document may lack


def to_plain(value: object, *, with_defaults: bool = True) -> Any:
    """Dataclasses, tuples and paths as dicts, lists and strings.

    A field with the metadata OPTIONAL is left out where it has its default. with_defaults False
    leaves out all fields that have it: a field that is added later does not change the hash of what
    was written before.
    """
    if type(value) in PLAIN_TYPES:  # most values of a large document
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            is_shown = with_defaults and "optional" not in field.metadata
            if is_shown or not _is_default(field, each):
                plain[field.name] = to_plain(each, with_defaults=with_defaults)
        return plain
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, with_defaults=with_defaults) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [to_plain(each, with_defaults=with_defaults) for each in value]
    return str(value) if isinstance(value, Path) else value


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default)


@functools.cache
def _type_hints(kind: object) -> Mapping[str, Any]:
    """The types of the fields of a dataclass. They are texts, which take 0.1 ms to evaluate."""
    return typing.get_type_hints(kind)


JSON_TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def from_plain(kind: Any, value: Any, name: str | None = None) -> Any:
    """The inverse of `to_plain`: JSON as a dataclass, or as another type that a field may have.

    name: where `value` stands, for messages; of a dataclass its own name. ValueError that names the
    first value of another type than annotated, an unknown or a missing key, and from the
    dataclasses' own checks.
    """
    name = kind.__name__ if name is None else name
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _any_from_plain(args, value, name)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_plain(kind, value, name)
    if typing.is_typeddict(kind):
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
    elif origin is dict:
        _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
        return {key: from_plain(args[1], each, f"{name}[{key!r}]") for key, each in value.items()}
    if origin is tuple:
        _require(isinstance(value, (list, tuple)), value, name, "a list")
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        _require(len(value) == len(kinds), value, name, f"a list of {len(kinds)} values")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(from_plain(each_kind, each, f"{name}[{i}]") for i, (each_kind, each) in pairs)
    if origin is typing.Literal:
        _require(value in args, value, name, f"one of {', '.join(map(str, args))}")
    elif kind in JSON_TYPES:
        fits = type(value) is kind or (kind is float and type(value) is int)
        _require(fits, value, name, JSON_TYPES[kind])
    return value


def _any_from_plain(kinds: tuple[object, ...], value: object, name: str) -> Any:
    """A value of the first of the kinds that it fits."""
    if value is None and type(None) in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        with contextlib.suppress(ValueError):
            return from_plain(kind, value, name)
    return from_plain(last, value, name)


def _dataclass_from_plain(kind: type, value: Any, name: str) -> Any:
    _require(isinstance(value, Mapping), value, name, "a mapping of keys to values")
    hints = _type_hints(kind)
    fields = dataclasses.fields(kind)
    known = {field.name for field in fields}
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"{name} has no {unknown[0]!r}{did_you_mean(unknown[0], known)}")
    for field in fields:
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if field.name not in value and not has_default:
            raise ValueError(f"{name} has no value for {field.name!r}")
    values = {}
    for key, each in value.items():
        values[key] = from_plain(hints[key], each, f"{name}.{key}")
    return kind(**values)


def _require(fits: bool, value: object, name: str, wanted: str) -> None:
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
