"""EXIF of an image: its orientation, and its tags as JSON text.

This reader has a limit on everything, because a hostile table of tags may name the same 64 KB ten
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
# EXIF type -> format of struct; 2 and 7 are bytes, 5 and 10 are fractions.
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
    if value is None and (match := XMP_ORIENTATION.search(xmp)):
        value = int(match[1])
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def table(exif: bytes, start: int | None = None) -> dict[int, Any]:
    """Tags of the first table, or of the one at offset `start`; {} where it is damaged.

    A value is an integer, a float, text or a list of numbers; a number that is not finite is None.
    """
    data = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        return {}
    if start is None:
        start = struct.unpack_from(order + "I", data, 4)[0]
    tags: dict[int, Any] = {}
    if start + 2 > len(data):
        return tags
    count = min(struct.unpack_from(order + "H", data, start)[0], MOST_TAGS)
    for entry in range(start + 2, min(start + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, items = struct.unpack_from(order + "HHI", data, entry)
        size = items * struct.calcsize(order + TYPES.get(kind, ""))
        if not 0 < size <= MOST_BYTES:
            continue
        offset = entry + 8
        if size > 4:
            offset = struct.unpack_from(order + "I", data, entry + 8)[0]
        if offset + size <= len(data):
            tags[tag] = _value(data[offset : offset + size], kind, order, items)
    return tags


def _value(data: bytes, kind: int, order: str, items: int) -> Any:
    if kind == 2:
        return data.split(b"\0", 1)[0].decode("utf-8", "replace").strip()
    if kind == 7:
        return data.hex()
    numbers: list[Any] = list(struct.unpack(order + TYPES[kind] * items, data))
    if kind in (5, 10):
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [round(upper / lower, 6) if lower else None for upper, lower in pairs]
    numbers = [None if isinstance(n, float) and not math.isfinite(n) else n for n in numbers]
    return numbers[0] if items == 1 else numbers


def as_text(exif: bytes) -> str | None:
    """The known tags by name as JSON, in the order of their names; None where there are none.

    GPS positions are always left out, and so are values of more than 256 bytes and the tags with
    which the text would have more than 8 KB.
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
