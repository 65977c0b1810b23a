"""Small images of every kind and their exact pixels; images that were cut off are rejected."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, features

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images import transform
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import check_and_resize

Array = np.ndarray[Any, Any]
PLAIN = Fetch(encode_format="png", encode_quality=1, skip_reencode=False)
# Top left, right, bottom left, right
COLOURS = [(220, 30, 40), (30, 200, 50), (40, 60, 210), (230, 210, 40)]


def drawn(width: int = 96, height: int = 64) -> Image.Image:
    image = Image.new("RGB", (width, height), COLOURS[0])
    image.paste(COLOURS[1], (width // 2, 0, width, height))
    image.paste(COLOURS[2], (0, height // 2, width // 2, height))
    image.paste(COLOURS[3], (width // 2, height // 2, width, height))
    return image


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    exact: dict[str, dict[str, Any]] = {
        "JPEG": {"quality": 100, "subsampling": 0},
        "WEBP": {"lossless": True, "exact": True},
    }
    sink = io.BytesIO()
    image.save(sink, kind, **{**exact.get(kind, {}), **options})
    return sink.getvalue()


def golden(body: bytes, settings: Fetch = PLAIN) -> Array:
    """What is stored, at its full size and without loss."""
    image = Image.open(io.BytesIO(check_and_resize(body, settings).data))
    assert (image.format, image.mode) == ("PNG", "RGB")
    return np.asarray(image).astype(int)


def near(seen: Array, expected: Any, levels: int = 0) -> None:
    assert np.abs(seen - np.array(expected)).max() <= levels


# --- which way up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
@pytest.mark.parametrize("orientation", range(9))
def test_orientation(orientation: int, kind: str) -> None:
    """0 is no orientation: as it lies."""
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    back = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)  # the turn that the tag undoes
    stored = drawn() if orientation < 2 else drawn().transpose(transform.TRANSPOSE[back])
    tags = Image.Exif()
    tags[0x0112] = orientation
    seen = golden(saved(stored, kind, exif=tags, **({"quality": 100} if kind == "AVIF" else {})))
    assert seen.shape == (64, 96, 3)
    corners = [seen[8, 8], seen[8, -9], seen[-9, 8], seen[-9, -9]]
    near(np.array(corners), COLOURS, {"JPEG": 3, "AVIF": 6}.get(kind, 0))


# --- JPEG -----------------------------------------------------------------------------------------

INKS = [
    (0, 255, 255, 0),
    (255, 0, 255, 0),
    (255, 255, 0, 0),
    (0, 0, 0, 255),
    (0, 0, 0, 0),
    (100, 50, 20, 60),
]


def inked(ink: tuple[int, ...]) -> list[float]:
    return [255 * (1 - c / 255) * (1 - ink[3] / 255) for c in ink[:3]]


@pytest.mark.parametrize("ink", INKS)
@pytest.mark.parametrize("size", [256, 16])
def test_cmyk_and_ycck(ink: tuple[int, ...], size: int) -> None:
    settings = Fetch(encode_format="png", encode_quality=1, image_size=size)
    body = saved(Image.new("CMYK", (48, 48), ink), "JPEG")
    assert b"Adobe" in body
    near(golden(body, settings), inked(ink), 3)
    inverted = np.full((48, 48, 4), 255, np.uint8) - np.array(ink, np.uint8)  # as Adobe writes it
    body = simplejpeg.encode_jpeg(inverted, quality=100, colorspace="CMYK", colorsubsampling="444")
    assert body[body.index(b"Adobe") + 11] == 2  # YCCK
    near(golden(body, settings), inked(ink), 5)


def test_grey_and_rgb_jpeg() -> None:
    near(golden(saved(Image.new("L", (40, 40), 77), "JPEG")), 77, 1)
    near(
        golden(saved(Image.new("RGB", (40, 40), (9, 99, 200)), "JPEG", keep_rgb=True)),
        (9, 99, 200),
        2,
    )
    for options in ({"progressive": True}, {"subsampling": 2}, {"restart_marker_blocks": 1}):
        near(
            golden(saved(Image.new("RGB", (40, 40), (9, 99, 200)), "JPEG", **options)),
            (9, 99, 200),
            2,
        )


@pytest.mark.parametrize(("side", "is_fast"), [(32, True), (96, False)])
def test_colours_are_made_smooth_only_where_the_image_is_not_made_smaller(
    side: int, is_fast: bool
) -> None:
    settings = Fetch(
        encode_format="png", encode_quality=1, image_size=side, resize_only_if_bigger=False
    )
    body = saved(drawn(63, 47), "JPEG", subsampling="4:2:0")
    wanted = round(63 * side / 47), side
    ways = {}
    for fast in (True, False):
        pixels = simplejpeg.decode_jpeg(body, colorspace="RGB", fastupsample=fast)
        name = settings.downscale_interpolation if is_fast else settings.upscale_interpolation
        ways[fast] = transform.resized(pixels, wanted, (63, 47), name)
    assert not np.array_equal(ways[True], ways[False])
    assert np.array_equal(golden(body, settings), ways[is_fast])


def printers_profile() -> bytes:
    """A CMYK profile in which only the black ink counts: white without it, black with it."""
    # Lab at every corner of CMYK
    corners = b"".join(bytes((255 * (1 - i % 2), 128, 128)) for i in range(16))
    matrix = b"".join(struct.pack(">i", 65536 * (i % 4 == 0)) for i in range(9))
    ramp = bytes(range(256))
    lut = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + matrix + ramp * 4 + corners + ramp * 3
    white = b"XYZ " + bytes(4) + struct.pack(">iii", 63190, 65536, 54061)
    text = b"desc" + bytes(4) + struct.pack(">I", 6) + b"press\0" + bytes(78)
    tags = [(b"A2B0", lut), (b"wtpt", white), (b"desc", text)]
    offset, table, data = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, content in tags:
        table += name + struct.pack(">II", offset + len(data), len(content))
        data += content + bytes(-len(content) % 4)
    head = struct.pack(
        ">I4sI4s4s4s", offset + len(data), b"lcms", 0x02100000, b"prtr", b"CMYK", b"Lab "
    )
    head += (
        struct.pack(">6H4s", 2026, 1, 1, 0, 0, 0, b"acsp")
        + bytes(28)
        + struct.pack(">iii", 63190, 65536, 54061)
    )
    return head + bytes(128 - len(head)) + table + data


@pytest.mark.parametrize("size", [256, 16])
def test_cmyk_by_its_profile(size: int) -> None:
    settings = Fetch(encode_format="png", encode_quality=1, image_size=size)
    for ink, seen in (((255, 255, 0, 0), 255), ((0, 0, 0, 255), 0)):
        body = saved(Image.new("CMYK", (400, 300), ink), "JPEG", icc_profile=printers_profile())
        near(golden(body, settings), seen, 2)
        assert golden(body, settings).shape == ((16, 21, 3) if size == 16 else (256, 341, 3))


# --- PNG, GIF, WebP -------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(rows: Array, depth: int, colours: int, *others: bytes) -> bytes:
    """A PNG of rows of bytes; `colours`: colour type, `others`: chunks before the pixels."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    width = rows.shape[1] * 8 // depth // channels
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, rows.shape[0], depth, colours, 0, 0, 0))
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + b"".join(others)
        + chunk(b"IDAT", packed)
        + chunk(b"IEND", b"")
    )


def wide(levels: Array) -> Array:
    """Rows of 16-bit values as rows of bytes."""
    return levels.reshape(len(levels), -1).astype(">u2").view(np.uint8)


RAMP = np.repeat((np.arange(64) * 1040)[None], 8, axis=0)  # 0 to 65,520
AS_BYTES = (RAMP + 128) // 257


def test_16_bits() -> None:
    near(golden(png(wide(RAMP), 16, 0))[..., 0], AS_BYTES)
    near(golden(png(wide(np.repeat(RAMP[..., None], 3, axis=2)), 16, 2))[..., 1], AS_BYTES, 1)
    half = np.repeat(RAMP[..., None], 4, axis=2)
    half[..., 3] = 32768
    near(golden(png(wide(half), 16, 6))[..., 2], (AS_BYTES + 255) / 2, 2)
    grey = np.stack([RAMP, np.full_like(RAMP, 32768)], axis=2)
    near(golden(png(wide(grey), 16, 4))[..., 0], (AS_BYTES + 255) / 2, 2)


def test_palettes() -> None:
    colours = chunk(b"PLTE", bytes(sum(COLOURS, ())))
    rows = np.tile(np.array([0, 1, 2, 3], np.uint8), (4, 1))
    near(golden(png(rows, 8, 3, colours)), COLOURS)
    seen = golden(png(rows, 8, 3, colours, chunk(b"tRNS", bytes((0, 255, 128)))))
    near(seen[:, 0], 255)
    near(seen[:, 1], COLOURS[1])
    near(seen[:, 2], (np.array(COLOURS[2]) * 128 + 255 * 127) / 255, 1)
    near(seen[:, 3], COLOURS[3])
    packed = np.tile(np.array([0b00011011], np.uint8), (4, 1))
    near(golden(png(packed, 2, 3, colours)), COLOURS)


def test_one_colour_that_is_clear() -> None:
    rows = np.tile(np.array([1, 2, 3, 200, 100, 50], np.uint8), (4, 1))
    seen = golden(png(rows, 8, 2, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))))
    near(seen[:, 0], 255)
    near(seen[:, 1], (200, 100, 50))


def test_grey_alpha_and_one_bit() -> None:
    near(
        golden(png(np.tile(np.array([0, 77, 255], np.uint8), (3, 1)), 8, 0))[0, :, 0], (0, 77, 255)
    )
    seen = golden(png(np.tile(np.array([100, 255, 100, 0, 100, 128], np.uint8), (3, 1)), 8, 4))
    near(seen[0, :, 0], (100, 255, (100 * 128 + 255 * 127) / 255), 1)
    near(
        golden(png(np.full((4, 1), 0b10100101, np.uint8), 1, 0))[0, :, 0] / 255,
        (1, 0, 1, 0, 0, 1, 0, 1),
    )
    near(golden(png(np.full((4, 1), 0x1F, np.uint8), 4, 0))[0, :, 0], (17, 255))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_alpha_lies_on_white(kind: str) -> None:
    image = Image.new("RGBA", (40, 40), (200, 100, 0, 64))
    near(golden(saved(image, kind)), [255 + (c - 255) * 64 / 255 for c in (200, 100, 0)], 1)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in COLOURS]
    near(
        golden(saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)),
        COLOURS[0],
    )
    clear = [frame.convert("RGBA") for frame in frames]
    clear[0].paste((0, 0, 0, 0), (10, 10, 30, 30))
    seen = golden(saved(clear[0], kind, save_all=True, append_images=clear[1:], duration=50))
    near(seen[12:28, 12:28], 255)
    near(seen[:8], COLOURS[0])


# --- cut off --------------------------------------------------------------------------------------


def whole_images() -> dict[str, bytes]:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (60, 80, 3), dtype=np.uint8))
    return {
        "JPEG": saved(noise, "JPEG"),
        "JPEG, progressive": saved(noise, "JPEG", progressive=True),
        "JPEG, grey": saved(noise.convert("L"), "JPEG"),
        "JPEG, CMYK": saved(noise.convert("CMYK"), "JPEG"),
        "PNG": saved(noise, "PNG"),
        "PNG, palette": saved(noise.convert("P"), "PNG"),
        "WebP": saved(noise, "WEBP", lossless=False),
        "WebP, lossless": saved(noise, "WEBP"),
        "GIF": saved(noise, "GIF"),
    } | ({"AVIF": saved(noise, "AVIF")} if features.check("avif") else {})


@pytest.mark.parametrize("settings", [Fetch(), Fetch(image_size=24)], ids=["kept", "resized"])
def test_an_image_that_is_cut_off_does_not_pass_as_whole(settings: Fetch) -> None:
    """20 places in each."""
    passed, reasons = [], []
    for name, body in whole_images().items():
        assert check_and_resize(body, settings).original_width == 80
        for share in np.linspace(0.02, 0.98, 20):
            try:
                check_and_resize(body[: int(len(body) * share)], settings)
            except RejectedImage as bad:
                reasons.append(bad.reason)
            else:
                passed.append((name, share))
    assert passed == []
    assert len(reasons) == 20 * len(whole_images())
    assert set(reasons) <= {"decode_error", "not_an_image"}
