"""Pictures of public reports, rebuilt small, through `clipmill build`: each ends as a careful
reader would have it.

The right outcome of a row was written down before it was run: `stored`, or the reason with words of
its message.
"""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from clipmill.manifests import disk
from tests.support import commands

STORED = "stored"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"2d" * 32 + b"\nsize 10\n"


def picture(width: int = 96, height: int = 64, mode: str = "RGB") -> Image.Image:
    """A smooth picture with colours everywhere."""
    small = np.random.default_rng(3).integers(40, 255, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    (image or picture()).save(sink, kind, **options)
    return sink.getvalue()


def jpeg(**options: Any) -> bytes:
    return saved("JPEG", quality=90, **options)


def chunk(name: bytes, data: bytes, *, right: bool = True) -> bytes:
    """A chunk of a PNG, with its checksum or a wrong one."""
    checksum = zlib.crc32(name + data) ^ (not right)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png(*before: bytes, image: Image.Image | None = None, **header: int) -> bytes:
    """A PNG with these chunks in front of its pixels; `height` of its header."""
    body = saved("PNG", image)
    fields = bytearray(body[16:29])
    if "height" in header:
        fields[4:8] = struct.pack(">I", header["height"])
    return body[:8] + chunk(b"IHDR", bytes(fields)) + b"".join(before) + body[33:]


def packed(name: bytes, size: int) -> bytes:
    """A packed text or profile of `size` bytes."""
    return chunk(name, b"k\0\0" + zlib.compress(bytes(size)))


def deep(colour: int, mode: int, transparent: bytes) -> bytes:
    """A 16-bit PNG of one colour, which is transparent: mode 0 grey, 2 RGB."""
    row = b"\0" + struct.pack(">H", colour) * 96 * (3 if mode == 2 else 1)
    header = struct.pack(">IIBBBBB", 96, 64, 16, mode, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(row * 64)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"tRNS", transparent) + data


def on_canvas(width: int, height: int) -> bytes:
    """A white GIF in the middle of a larger canvas, whose first colour is black."""
    image = Image.new("P", (40, 20), 1)
    image.putpalette([0, 0, 0, 255, 255, 255])
    body = bytearray(saved("GIF", image))
    frame = body.index(b"," + bytes(4) + struct.pack("<HH", 40, 20))
    body[6:10] = struct.pack("<HH", width, height)
    body[frame + 1 : frame + 5] = struct.pack("<HH", (width - 40) // 2, (height - 20) // 2)
    return bytes(body)


def cut(body: bytes, keep: float, end: bytes = b"\xff\xd9") -> bytes:
    """The first part of a file, and its end marker."""
    return body[: int(len(body) * keep)] + end


def before_scan(body: bytes, number: int) -> bytes:
    """A progressive JPEG cut off in front of one of its scans and its tables."""
    start = [match.start() for match in re.finditer(b"\xff\xda", body)][number]
    return body[: max(body.rfind(b"\xff\xc4", 0, start), body.rfind(b"\xff\xda", 0, start))]


def with_height(body: bytes, height: int) -> bytes:
    frame = body.index(b"\xff\xc0")
    return body[: frame + 5] + height.to_bytes(2, "big") + body[frame + 7 :]


def branded(major: bytes, *compatible: bytes) -> bytes:
    """An AVIF with other brands."""
    body = saved("AVIF")
    end = int.from_bytes(body[:4], "big")
    brands = major + bytes(4) + b"".join(compatible)
    brands += b"miaf" * ((end - 8 - len(brands)) // 4)
    return body[:8] + brands[: end - 8] + body[end:]


def heif(*brands: bytes) -> bytes:
    box = b"ftyp" + brands[0] + bytes(4) + b"".join(brands)
    return struct.pack(">I", len(box) + 4) + box + bytes(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A picture and its outcome: `stored`, or a reason; `says` is in its message."""

    source: str
    why: str
    body: Callable[[], bytes]
    outcome: str
    says: str = ""
    name: str = "jpg"
    white: bool = False  # what is stored is white


def rows() -> list[Row]:
    damaged = "decode_error"
    return [
        Row(source="python-pillow/Pillow#9106", why="half of the scan and an end marker",
            body=lambda: cut(jpeg(), 0.5), outcome=damaged, says="premature end"),
        Row(source="visual-layer/fastdup#303", why="bytes missing in the middle",
            body=lambda: jpeg()[:1500] + jpeg()[2200:], outcome=damaged),
        Row(source="rom1504/img2dataset#224", why="the header says twice the height",
            body=lambda: with_height(jpeg(), 128), outcome=damaged, says="premature end"),
        Row(source="immich-app/immich#8510", why="text inside of the scan, restart markers",
            body=lambda: (b := jpeg(restart_marker_rows=1))[:1500] + b"no database " * 9 + b[1500:],
            outcome=damaged),
        Row(source="imazen/zenjpeg#63", why="a progressive one without its last scans",
            body=lambda: before_scan(jpeg(progressive=True), 6) + b"\xff\xd9", outcome=damaged,
            says="without some of its scans"),
        Row(source="libjpeg-turbo/libjpeg-turbo#343", why="the same, and no end marker",
            body=lambda: before_scan(jpeg(progressive=True), 9), outcome=damaged),
        Row(source="libjpeg-turbo/libjpeg-turbo#343 (whole)", why="a progressive one that is whole",
            body=lambda: jpeg(progressive=True), outcome=STORED),
        Row(source="nothings/stb#422", why="one byte of junk behind the pixels",
            body=lambda: jpeg(progressive=True)[:-2] + b"\x7f\xff\xd9", outcome=STORED),
        Row(source="nothings/stb#1182", why="zeros behind the pixels",
            body=lambda: jpeg()[:-2] + bytes(700) + b"\xff\xd9", outcome=STORED),
        Row(source="serge-rgb/TinyJPEG#1", why="junk between two segments",
            body=lambda: jpeg()[:20] + b"junk" * 6 + jpeg()[20:], outcome=STORED),
        Row(source="PaddlePaddle/PaddleOCR#9925", why="two bytes in front of a table",
            body=lambda: (b := jpeg())[: b.index(b"\xff\xdb")] + b"ab" + b[b.index(b"\xff\xdb") :],
            outcome=STORED),
        Row(source="ultralytics/yolov5#916", why="nothing but the end marker is missing",
            body=lambda: jpeg()[:-2], outcome=STORED),
        Row(source="PaddlePaddle/PaddleOCR#9925 (version)", why="an unknown version of JFIF",
            body=lambda: jpeg().replace(b"JFIF\0\1", b"JFIF\0\7"), outcome=STORED),
        Row(source="PaddlePaddle/PaddleOCR#9925 (version, half)",
            why="an unknown version of JFIF, and half of the scan",
            body=lambda: cut(jpeg().replace(b"JFIF\0\1", b"JFIF\0\7"), 0.5), outcome=damaged),
        Row(source="python-pillow/Pillow#9106 (CMYK)",
            why="half of a CMYK picture and an end marker",
            body=lambda: cut(saved("JPEG", picture(mode="CMYK")), 0.5), outcome=damaged),
        Row(source="python-pillow/Pillow#9106 (CMYK, whole)", why="a CMYK picture that is whole",
            body=lambda: saved("JPEG", picture(mode="CMYK")), outcome=STORED),
        Row(source="libjxl/libjxl#2720", why="a made-up checksum of the pixels", name="png",
            body=lambda: (b := png())[:-16] + bytes(4) + b[-12:], outcome=damaged, says="IDAT"),
        Row(source="Kozea/CairoSVG#173", why="a damaged byte of the pixels", name="png",
            body=lambda: (b := png())[:99] + bytes([b[99] ^ 1]) + b[100:], outcome=damaged,
            says="checksum"),
        Row(source="rom1504/img2dataset#224 (PNG)", why="rows are missing, all checksums right",
            body=lambda: png(height=128), outcome=damaged, says="too early", name="png"),
        Row(source="rom1504/img2dataset#224 (PNG, black)",
            why="a black picture that is whole", name="png",
            body=lambda: png(image=Image.new("RGB", (96, 64))), outcome=STORED),
        Row(source="python-pillow/Pillow#8363", why="a packed text of 2 MB", name="png",
            body=lambda: png(packed(b"zTXt", 2**21)), outcome=STORED),
        Row(source="python-pillow/Pillow#2445", why="a profile of 2 MB", name="png",
            body=lambda: png(packed(b"iCCP", 2**21)), outcome=STORED),
        Row(source="KatherLab/STAMP#76", why="a profile of 8 MB", name="png",
            body=lambda: png(packed(b"iCCP", 2**23)), outcome=STORED),
        Row(source="libvips/libvips#2958", why="sixty texts", name="png",
            body=lambda: png(*[chunk(b"tEXt", b"k\0v")] * 60), outcome=STORED),
        Row(source="python-pillow/Pillow#5978", why="a wrong checksum of pHYs", name="png",
            body=lambda: png(chunk(b"pHYs", bytes(9), right=False)), outcome=STORED),
        Row(source="python-pillow/Pillow#5631", why="a wrong checksum of iCCP", name="png",
            body=lambda: png(chunk(b"iCCP", b"k\0\0x", right=False)), outcome=STORED),
        Row(source="python-pillow/Pillow#1991", why="a wrong checksum of iTXt", name="png",
            body=lambda: png(chunk(b"iTXt", b"k\0\0\0\0\0x", right=False)), outcome=STORED),
        Row(source="w3c/png#320", why="a chunk whose name is no name", name="png",
            body=lambda: png(chunk(b"s\x01IT", b"")), outcome=STORED),
        Row(source="ultralytics/yolov5#916 (PNG)", why="only IEND is missing", name="png",
            body=lambda: png()[:-12], outcome=STORED),
        Row(source="rom1504/img2dataset#441 (no palette)", why="palette colours without a palette",
            body=lambda: png(image=picture(mode="P")).replace(b"PLTE", b"tEXt"), outcome=damaged,
            name="png"),
        Row(source="python-pillow/Pillow#9281", why="the transparent colour of 16-bit grey",
            body=lambda: deep(0x0407, 0, b"\x04\x07"), outcome=STORED, name="png", white=True),
        Row(source="python-pillow/Pillow#9281 (RGB)", why="the transparent colour of 16-bit RGB",
            body=lambda: deep(0x0407, 2, b"\x04\x07" * 3), outcome=STORED, name="png", white=True),
        Row(source="python-pillow/Pillow#9281 (another colour)",
            why="a colour with the same upper bits stays",
            body=lambda: deep(0x0407, 2, b"\x04\x08" * 3), outcome=STORED, name="png"),
        Row(source="Sybio/GifFrameExtractor#17", why="a frame smaller than the canvas of a GIF",
            body=lambda: on_canvas(96, 64), outcome=STORED, name="gif", white=True),
        Row(source="h2non/filetype#163", why="the major brand miaf", name="avif",
            body=lambda: branded(b"miaf", b"mif1", b"avif"), outcome=STORED),
        Row(source="fdintino/pillow-avif-plugin#5", why="the major brand mif1", name="avif",
            body=lambda: branded(b"mif1", b"avif"), outcome=STORED),
        Row(source="gpac/ComplianceWarden#19", why="no brand of AVIF", name="avif",
            body=lambda: branded(b"mif1", b"mif1"), outcome="format", says="HEIF"),
        Row(source="strukturag/libheif#199", why="HEIF by mif1 alone", name="heic",
            body=lambda: heif(b"mif1"), outcome="format", says="HEIF"),
        Row(source="caezium/burrow#283", why="a photograph of a telephone", name="HEIC",
            body=lambda: heif(b"heic", b"mif1"), outcome="format", says="HEIC"),
        Row(source="catdad-experiments/heic-convert#22", why="a JPEG that is called .heic",
            body=jpeg, outcome=STORED, name="heic"),
        Row(source="replicate/lora-training#2", why="JPEG XL", name="jxl",
            body=lambda: b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(64), outcome="format", says="JPEG XL"),
        Row(source="python-pillow/Pillow: Tests/images/16bit.cropped.jp2",
            why="JPEG 2000", name="jp2",
            body=lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(64), outcome="format",
            says="JPEG 2000"),
        Row(source="LarsKoelpin/magic-bytes#70", why="SVG behind a document type", name="svg",
            body=lambda: b'\xef\xbb\xbf<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD">\n'
                         b"<!-- a -->\n<svg xmlns='x'/>", outcome="format", says="SVG"),
        Row(source="sdsykes/fastimage#115", why="XML that is no SVG", name="svg",
            body=lambda: b'<?xml version="1.0"?>\n<soap:Envelope>svg</soap:Envelope>',
            outcome="not_an_image", says="begins with"),
        Row(source="caezium/burrow#283 (PSD)", why="PSD", name="psd",
            body=lambda: b"8BPS\0\1" + bytes(64), outcome="format", says="PSD"),
        Row(source="caezium/burrow#283 (ICO)", why="ICO", name="ico",
            body=lambda: saved("ICO"), outcome="format", says="ICO"),
        Row(source="git-lfs/git-lfs#5502", why="a pointer of Git LFS", name="png",
            body=lambda: POINTER, outcome="not_an_image", says="git lfs pull"),
        Row(source="rom1504/img2dataset#441", why="1 x 5,000 pixels, enlarged", name="png",
            body=lambda: saved("PNG", picture(1, 5000)), outcome="too_many_pixels",
            says="64x320000"),
        Row(source="rom1504/img2dataset#441 (2 to 1)", why="50 x 100 pixels, enlarged", name="png",
            body=lambda: saved("PNG", picture(50, 100)), outcome=STORED),
    ]  # fmt: skip


ROWS = rows()


def build(folder: Path, source: dict[str, Any], name: str = "pool") -> Path:
    recipe = {"name": "r", "source": source, "views": {"all": []}}
    if source["kind"] != "shards":
        recipe["fetch"] = {"image_size": 64, "resize_only_if_bigger": False, "encode_quality": 95}
    (folder / f"{name}.yaml").write_text(json.dumps(recipe))
    words = [str(folder / f"{name}.yaml"), "--out", str(folder / name), "--engine", "inline"]
    assert commands.run("build", [*words, "--until", "fetch"]) == 0
    return folder / name


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Caption -> the row of the sidecar, with the pixels of what is stored."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "images").mkdir()
    for number, row in enumerate(ROWS):
        (folder / "images" / f"{number:02}.{row.name}").write_bytes(row.body())
        (folder / "images" / f"{number:02}.txt").write_text(row.source)
    source = {"kind": "image_folder", "paths": [str(folder / "images")], "captions": "txt"}
    pool = build(folder, source)
    found = {}
    with tarfile.open(next((pool / "shards").glob("*.tar"))) as tar:
        for row in disk.read_parquet(next((pool / "shards").glob("*.parquet"))).to_pylist():
            if row["reason"] is None:
                with Image.open(tar.extractfile(row["image_name"])) as image:  # type: ignore[arg-type]
                    row["pixels"] = np.asarray(image.convert("RGB"))
            found[row["caption"]] = row
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_a_picture_of_a_report(row: Row, outcomes: dict[str, dict[str, Any]]) -> None:
    result = outcomes[row.source]
    assert (result["reason"] or STORED) == row.outcome, (row.why, result["error_message"])
    assert row.says in (result["error_message"] or "")
    if row.outcome == STORED:
        pixels = result["pixels"]
        assert (pixels.min() > 250) == row.white
        if row.name in ("jpg", "avif") and "CMYK" not in row.why:  # as the whole picture
            whole = np.asarray(picture().resize(pixels.shape[1::-1], Image.Resampling.BOX))
            assert np.abs(pixels.astype(int) - whole).mean() < 8


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (lambda: png(packed(b"zTXt", 2**21)), STORED),
        (lambda: png(chunk(b"pHYs", bytes(9), right=False)), STORED),
        (lambda: png()[:-16] + bytes(4) + png()[-12:], "decode_error"),
        (lambda: POINTER, "not_an_image"),
    ],
    ids=["Pillow#8363", "Pillow#5978", "libjxl#2720", "git-lfs#5502"],
)
def test_a_picture_of_an_adopted_tar(
    body: Callable[[], bytes], outcome: str, tmp_path: Path
) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for name, data in {"a.png": body(), "a.txt": b"one", "b.png": png(), "b.txt": b"b"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    pool = build(tmp_path, {"kind": "shards", "paths": [str(tmp_path / "tars")]})
    table = disk.read_parquet(next((pool / "shards").glob("*.parquet")))
    reasons = dict(zip(table["caption"].to_pylist(), table["reason"].to_pylist(), strict=True))
    assert reasons == {"one": None if outcome == STORED else outcome, "b": None}


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.csv.gz", "t.json"])
def test_a_pointer_in_the_place_of_a_table_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """git-lfs/git-lfs#4240: every file is a pointer."""
    (tmp_path / name).write_bytes(POINTER)
    recipe = {"name": "r", "source": {"kind": "files", "paths": [str(tmp_path / name)]}}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    words = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / "pool"), "--engine", "inline"]
    assert commands.run("build", words) == 2
    assert "git lfs pull" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_small_table_is_no_pointer(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    table = pa.table({"file": ["a.png"], "caption": ["version https://git-lfs.github.com/spec/"]})
    disk.write_parquet(tmp_path / "t.parquet", table)
    pool = build(tmp_path, {"kind": "files", "paths": [str(tmp_path / "t.parquet")]})
    assert disk.read_parquet(next((pool / "shards").glob("*.parquet"))).num_rows == 1
