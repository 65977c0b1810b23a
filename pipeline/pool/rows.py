"""The row of one attempt: all columns of the sidecar, with valid values.

Rows carry text from strangers (headers, redirects, JSON of other programs). One value that no file
can hold must not cost the shard: text becomes valid UTF-8, and an integer outside its column's
range costs its own row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from manifests.columns import DECODE_REASONS, REASONS, SIDECAR, VOLATILE_COLUMNS
from manifests.text import valid_text

TAR_COLUMNS = (
    "image_offset", "image_length", "text_offset", "text_length", "json_offset", "json_length",
)  # fmt: skip
# img2dataset's columns are in every {key}.json, the others where they are not NULL.
ALWAYS_IN_JSON = SIDECAR.names[:11]
NOT_IN_JSON = frozenset((*VOLATILE_COLUMNS, *TAR_COLUMNS, "image_name"))


def row_key(shard: int, row: int) -> str:
    """Key of a row, which is also the base name of its members."""
    return f"{shard:05d}{row:04d}"


def outcome_row(
    record: Mapping[str, Any], schema: pa.Schema = SIDECAR, *, stored: bool
) -> dict[str, Any]:
    """All columns of a sidecar row, with the status and class that follow from its reason.

    A stored row with an integer that its column cannot hold becomes a failed one: `reason` is
    decode_error.
    """
    reason = record.get("reason")
    assert (reason is None) == stored, f"stored is {stored} and reason is {reason!r}"
    assert record.keys() <= set(schema.names), sorted(record.keys() - set(schema.names))
    values = {**dict.fromkeys(schema.names), **record}
    for name, value in record.items():
        if isinstance(value, str):
            values[name] = valid_text(value)
    if too_large := _integers_out_of_range(values, schema):
        values |= dict.fromkeys(too_large)
        message = f"{', '.join(too_large)}: more than the column can hold"
        values["error_message"] = "; ".join(filter(None, (values["error_message"], message)))
        values["reason"] = reason = reason or "decode_error"
        values |= dict.fromkeys((*TAR_COLUMNS, "image_name"))
    values["status"] = _status(reason)
    values["class"] = None if reason is None else REASONS[reason]
    return values


def member_json(values: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """{key}.json: the values that the response decided; no times and no offsets in the tar."""
    known = {}
    for name, value in values.items():
        if name not in NOT_IN_JSON and (value is not None or name in ALWAYS_IN_JSON):
            known[name] = value
    text = json.dumps({**known, **extra}, sort_keys=True, ensure_ascii=False)
    return valid_text(text).encode()


def _status(reason: str | None) -> str:
    """img2dataset's word for a reason."""
    if reason is None:
        return "success"
    return "failed_to_resize" if reason in DECODE_REASONS else "failed_to_download"


@functools.lru_cache(maxsize=64)
def _integer_ranges(schema: pa.Schema) -> dict[str, tuple[int, int]]:
    """Lowest and highest value of each integer column."""
    ranges = {}
    for field in schema:
        if pa.types.is_signed_integer(field.type):
            bound = 1 << field.type.bit_width - 1
            ranges[field.name] = (-bound, bound - 1)
    return ranges


def _integers_out_of_range(values: Mapping[str, Any], schema: pa.Schema) -> list[str]:
    names = []
    for name, (lowest, highest) in _integer_ranges(schema).items():
        value = values[name]
        if value is not None and not lowest <= value <= highest:
            names.append(name)
    return names
