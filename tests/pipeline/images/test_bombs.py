"""Nine small files that need gigabytes or minutes: each is rejected cheaply with its reason."""

from __future__ import annotations

import asyncio
import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import uvloop
from PIL import Image

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images.decoders import Decoders
from clipmill.pipeline.images.header import SCAN_MARKER
from clipmill.pipeline.images.transform import DecodedImage

MOST_BYTES = 256 * 2**20  # that a bomb may cost its child


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def webp() -> bytes:
    """16383 x 10900 in 34 bytes: a lossless canvas of one colour."""
    size = 16382 | 10899 << 14
    data = b"\x2f" + struct.pack("<I", size) + b"\x88\x88\x08"
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def progressive(side: int) -> bytes:
    """A small progressive JPEG whose header says more."""
    body = bytearray(saved(Image.new("RGB", (64, 64)), "JPEG", progressive=True))
    at = body.index(b"\xff\xc2")
    body[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(body)


def grey(side: int) -> bytes:
    """A whole grey JPEG."""
    pixels = np.zeros((side, side, 1), np.uint8)
    body: bytes = simplejpeg.encode_jpeg(
        pixels, quality=50, colorspace="GRAY", colorsubsampling="Gray"
    )
    return body


def png(side: int, colours: int) -> bytes:
    """A whole PNG of one bit per pixel."""
    row, packer = bytes(1 + side // 8), zlib.compressobj(9)
    packed = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, colours, 0, 0, 0))]
    chunks += [(b"PLTE", bytes(6))] if colours == 3 else []
    chunks += [(b"IDAT", packed), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d))
        for name, d in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def many_scans(side: int, count: int) -> bytes:
    """A progressive JPEG whose smallest scan is there `count` times."""
    body = saved(Image.new("RGB", (side, side), (9, 99, 200)), "JPEG", progressive=True)
    starts = [match.start() for match in SCAN_MARKER.finditer(body) if match[0] == b"\xff\xda"]
    ends = [
        next(match.start() for match in SCAN_MARKER.finditer(body, start + 10)) for start in starts
    ]
    start, end = min(zip(starts, ends, strict=True), key=lambda scan: scan[1] - scan[0])
    return body[:end] + body[start:end] * count + body[end:]


def gif(frames: int) -> bytes:
    frames_of_gif = [Image.new("RGB", (40, 40), (i % 250, i // 2, 99)) for i in range(frames)]
    return saved(frames_of_gif[0], "GIF", save_all=True, append_images=frames_of_gif[1:])


BOMBS = (
    ("WebP, 16383 x 10900", webp, "too_many_pixels"),
    ("progressive JPEG, 13300²", lambda: progressive(13300), "too_many_pixels"),
    ("progressive JPEG, 65500²", lambda: progressive(65500), "too_many_pixels"),
    ("grey JPEG of 177 MP", lambda: grey(13300), "too_many_pixels"),
    ("PNG with a palette, 13000²", lambda: png(13000, 3), "too_many_pixels"),
    ("PNG of one bit, 23000²", lambda: png(23000, 0), "too_many_pixels"),
    ("PNG with a palette, 32000²", lambda: png(32000, 3), "too_many_pixels"),
    ("JPEG of 16 MP with 2,000 scans", lambda: many_scans(4000, 2000), "decode_error"),
    ("GIF of 401 frames", lambda: gif(401), None),
)


def peak_bytes(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.slow
def test_nine_bombs() -> None:
    plain = saved(Image.new("RGB", (80, 48), (9, 99, 200)), "JPEG")

    async def go() -> None:
        async with Decoders(1) as decoders:
            for name, make, reason in BOMBS:
                bomb = make()
                assert isinstance(await decoders.decode(plain, Fetch()), DecodedImage)
                (pid,) = decoders.pids
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
                before = peak_bytes(pid)
                result, other = await asyncio.gather(
                    decoders.decode(bomb, Fetch()), decoders.decode(plain, Fetch())
                )
                assert getattr(result, "reason", None) == reason, name
                assert isinstance(other, DecodedImage), name
                assert decoders.pids == [pid], name
                assert peak_bytes(pid) - before < MOST_BYTES, name

    uvloop.run(go())
