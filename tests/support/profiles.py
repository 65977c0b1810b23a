"""ICC profiles for tests."""

from __future__ import annotations

from PIL import ImageCms


def srgb_profile() -> bytes:
    """The sRGB profile of littlecms."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def swapped_profile() -> bytes:
    """sRGB with red and green swapped, and named "wide"."""
    body = bytearray(srgb_profile())
    for old, new in ((b"rXYZ", b"tmp "), (b"gXYZ", b"rXYZ"), (b"tmp ", b"gXYZ")):
        entry = body.index(old, 128)
        body[entry : entry + 4] = new
    entry = body.index(b"desc", 128)
    start = int.from_bytes(body[entry + 4 : entry + 8], "big")
    end = start + int.from_bytes(body[entry + 8 : entry + 12], "big")
    text = bytes(body[start:end])
    text = text.replace("sRGB".encode("utf-16-be"), "wide".encode("utf-16-be"))
    body[start:end] = text.replace(b"sRGB", b"wide")
    return bytes(body)
