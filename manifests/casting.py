"""Values of any table as the types of EXTRA_TYPES: what is not of a type becomes None, and nothing
raises.

msgspec is imported here only, so that a trainer, which reads no tables, needs none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from manifests.text import valid_text

YES, NO = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
INT64 = 1 << 63


def as_text(value: Any) -> str | None:
    """Anything as text: nested values as JSON, bytes as UTF-8. None where it is not valid text:
    bytes that are not UTF-8, half of a surrogate pair.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value if valid_text(value) == value else None
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return as_json(value)
    return str(value)


def as_json(value: Any) -> str | None:
    """JSON text. Text that is JSON already stays as it is, other text becomes a JSON string."""
    if value is None:
        return None
    if isinstance(value, str):
        if valid_text(value) != value:
            return None
        with suppress(msgspec.DecodeError, RecursionError):
            msgspec.json.decode(value)
            return value
        return None if not value.strip() else json.dumps(value, ensure_ascii=False)
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def as_int(value: Any) -> int | None:
    """A whole number of 64 bits. "3.0" is one, 3.7 is not."""
    with suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, int) or str(value).strip().lstrip("+-").isdecimal():
            number = int(value)
        elif float(value).is_integer():
            number = int(float(value))
        else:
            return None
        return number if -INT64 <= number < INT64 else None
    return None


def as_float(value: Any) -> float | None:
    """A number. NaN becomes None."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        return None if math.isnan(number) else number
    return None


def as_bool(value: Any) -> bool | None:
    """True or False: also 1, 0, yes, no, t, f, in any case."""
    if isinstance(value, float) and value in (0.0, 1.0):
        return bool(value)
    text = (as_text(value) or "").strip().lower()
    if text in YES:
        return True
    return False if text in NO else None


CASTS: dict[str, Callable[[Any], Any]] = {
    "string": as_text,
    "int": as_int,
    "float": as_float,
    "bool": as_bool,
    "json": as_json,
}


def cast_value(value: Any, type_name: str) -> Any:
    """A value as a type of EXTRA_TYPES; None where it is not of that type."""
    return CASTS[type_name](value)
