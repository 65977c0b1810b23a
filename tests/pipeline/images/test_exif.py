"""EXIF: orientation and tags as JSON text, from good and damaged tables."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import pytest
from PIL import Image

from pipeline.images import header


def written(tags: Mapping[int, object]) -> bytes:
    """EXIF data as Pillow writes it."""
    data = Image.Exif()
    for tag, value in tags.items():
        data[tag] = value
    return data.tobytes()


def one_entry(kind: int, items: int, value: bytes, order: str = "<") -> bytes:
    """A table with one entry, the orientation; `value` is its four bytes (or their offset)."""
    start = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHI", header.ORIENTATION, kind, items) + value
    return start + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_from_exif_and_from_xmp(value: int) -> None:
    assert header.exif_orientation(written({header.ORIENTATION: value})) == value
    assert header.exif_orientation(one_entry(3, 1, struct.pack(">HH", value, 0), ">")) == value
    xmp = f'<x tiff:Orientation="{value}"/>'.encode()
    assert header.exif_orientation(b"", xmp) == value
    assert header.exif_orientation(written({header.ORIENTATION: 3}), xmp) == 3  # EXIF decides


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Exif\0\0",
        b"II*\0",
        b"JUNKJUNKJUNK",
        b"II*\0\xff\xff\xff\xff\1\0",  # the table lies behind the end
        one_entry(3, 1, b"\x09\0\0\0"),  # 9 is no orientation
        one_entry(3, 1, b"\0\0\0\0"),
        one_entry(3, 2, b"\6\0\6\0"),  # two of them
        one_entry(2, 2, b"6\0\0\0"),  # as text
        one_entry(99, 1, b"\6\0\0\0"),  # an unknown type
        one_entry(3, 2**32 - 1, b"\6\0\0\0"),
        one_entry(4, 2, b"\xff\xff\xff\xff"),  # the value lies behind the end
        written({header.ORIENTATION: 6})[:12],
    ],
)
def test_damaged_exif_has_no_orientation(data: bytes) -> None:
    assert header.exif_orientation(data) == 1


def test_values_have_the_type_of_their_tag() -> None:
    assert header.table(one_entry(3, 1, b"\6\0\0\0")) == {header.ORIENTATION: 6}
    assert header.table(one_entry(3, 2, b"\6\0\7\0")) == {header.ORIENTATION: [6, 7]}
    assert header.table(one_entry(7, 2, b"\xab\xcd\0\0")) == {header.ORIENTATION: "abcd"}
    assert header.table(one_entry(2, 3, b"ab\0\0")) == {header.ORIENTATION: "ab"}
    assert header.table(one_entry(9, 1, b"\xff\xff\xff\xff")) == {header.ORIENTATION: -1}
    infinity = struct.pack("<f", float("inf"))
    assert header.table(one_entry(11, 1, infinity)) == {header.ORIENTATION: None}
    fraction = one_entry(5, 1, struct.pack("<I", 26))
    assert header.table(fraction + struct.pack("<II", 1, 3)) == {header.ORIENTATION: 0.333333}
    assert header.table(fraction + struct.pack("<II", 1, 0)) == {header.ORIENTATION: None}


def test_text_has_the_known_tags_in_order_and_no_position() -> None:
    data = Image.Exif()
    data[0x010F], data[0x0110], data[0xFFF0] = "maker", "model", "unknown"
    data.get_ifd(0x8769)[0x920A] = 50.0  # FocalLength, in the table of the camera
    data.get_ifd(0x8825)[1] = "N"
    text = header.as_text(data.tobytes())
    assert text is not None
    assert list(json.loads(text)) == ["FocalLength", "Make", "Model"]
    assert json.loads(text) == {"FocalLength": 50.0, "Make": "maker", "Model": "model"}
    assert header.as_text(b"no EXIF") is None


def test_long_values_and_long_text_are_left_out() -> None:
    data = written({0x010F: "m" * 300, 0x0110: "model"})
    assert json.loads(header.as_text(data) or "") == {"Model": "model"}
    many = dict.fromkeys((0x010E, 0x010F, 0x0110, 0x0131, 0x013B, 0x8298), "\x01" * 250)
    names = json.loads(header.as_text(written(many)) or "")
    assert sorted(names) == ["Artist", "Copyright", "ImageDescription", "Make", "Model"]
