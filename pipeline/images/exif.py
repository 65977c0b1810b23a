"""EXIF of a picture: which way up it is, and its tags as JSON text.

A small reader of our own, with a bound on everything: a table of tags from a stranger may name the same 64 KB ten
thousand times.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

ORIENTATION = 0x0112
CAMERA_TABLE, GPS_TABLE = 0x8769, 0x8825  # tags whose value is the offset of another table
MOST_TAGS = 256  # per table
MOST_BYTES = 256  # of one value; a longer one (thumbnails, makers' notes) is left out
MOST_TEXT = 8192  # of the whole
# What a type of EXIF is to struct; 2 and 7 are bytes, 5 and 10 pairs.
TYPES = {
    1: "B",
    2: "s",
    3: "H",
    4: "I",
    5: "II",
    6: "b",
    7: "s",
    8: "h",
    9: "i",
    10: "ii",
    11: "f",
    12: "d",
}
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def orientation(exif: bytes, xmp: bytes = b"") -> int:
    """1 to 8, from EXIF or else from XMP; 1 where there is none, or where it is damaged."""
    value = table(exif).get(ORIENTATION)
    if value is None and (found := XMP_ORIENTATION.search(xmp)):
        value = int(found[1])
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def table(exif: bytes, start: int | None = None) -> dict[int, Any]:
    """Tags of one table, the first or the one at `start`: integers, floats, text, or lists of numbers."""
    data = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        return {}
    at = struct.unpack_from(order + "I", data, 4)[0] if start is None else start
    found: dict[int, Any] = {}
    if at + 2 > len(data):
        return found
    count = min(struct.unpack_from(order + "H", data, at)[0], MOST_TAGS)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, items = struct.unpack_from(order + "HHI", data, entry)
        size = items * struct.calcsize(order + TYPES.get(kind, ""))
        if not 0 < size <= MOST_BYTES:
            continue
        place = entry + 8 if size <= 4 else struct.unpack_from(order + "I", data, entry + 8)[0]
        if place + size <= len(data):
            found[tag] = _value(data[place : place + size], kind, order, items)
    return found


def _value(data: bytes, kind: int, order: str, items: int) -> Any:
    if kind == 2:
        return data.split(b"\0", 1)[0].decode("utf-8", "replace").strip()
    if kind == 7:
        return data.hex()
    numbers: list[Any] = list(struct.unpack(order + TYPES[kind] * items, data))
    if kind in (5, 10):
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [round(above / below, 6) if below else None for above, below in pairs]
    numbers = [None if isinstance(n, float) and not math.isfinite(n) else n for n in numbers]
    return numbers[0] if items == 1 else numbers


def as_text(exif: bytes) -> str | None:
    """The known tags by name as JSON, in the order of their names; None where there are none.

    Positions (GPS) are never part of it. Values of more than 256 bytes are left out; above 8 KB of text the rest is.
    """
    from PIL.ExifTags import TAGS  # 3 ms, for the few recipes that ask

    first = table(exif)
    tags = dict(first)
    offset = tags.pop(CAMERA_TABLE, None)
    if isinstance(offset, int) and offset >= 0:
        tags |= table(exif, offset)
    tags.pop(CAMERA_TABLE, None)
    tags.pop(GPS_TABLE, None)
    named = {TAGS[tag]: value for tag, value in tags.items() if tag in TAGS}
    kept, size = {}, 0
    for name, value in sorted(named.items()):
        size += len(json.dumps({name: value}))
        if size <= MOST_TEXT:
            kept[name] = value
    return json.dumps(kept) if kept else None
