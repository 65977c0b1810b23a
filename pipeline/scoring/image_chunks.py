"""The stored rows of a shard in chunks with their images, decoded once for all filters."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from filters.picture import FRAMES, PIXELS
from manifests import disk
from manifests.pool_layout import CommitRecord, PoolLayout

CHUNK = 256  # images decoded ahead while as many are scored: about 50 MB each at 256 × 256
CHUNK_AREA = 1 << 26  # pixels of a chunk, 200 MB: 256 images of 512 × 512, fewer larger ones
AREA_PER_BYTE = 10  # pixels of an image whose size the sidecar does not say, per byte, about
DECODERS = min(8, os.cpu_count() or 1)  # Pillow releases the GIL while it decodes
JPEG_START = b"\xff\xd8\xff"
FILE_OBJECT = re.compile(r" ?<_io\.BytesIO [^>]*>")  # in Pillow's errors
logger = logging.getLogger(__name__)

Positions = NDArray[np.int64]
Decoding = list["Future[Image.Image | None]"]


def chunks(
    layout: PoolLayout,
    rows: pa.Table,
    record: CommitRecord,
    decoded: bool,
    prepare: Sequence[Callable[[Image.Image], None]] = (),
) -> Iterator[tuple[Positions, list[Image.Image | None] | None]]:
    """(positions, their images) of the stored rows. The next chunk is decoded and prepared while
    one is in use, so that at most two chunks are in memory.

    decoded: whether images are needed; None stands for them otherwise. prepare: called with each
    image in the thread that decoded it. ValueError where the tar is not that of the commit record.
    """
    parts = chunks_of(rows, stored_positions(rows))
    if not decoded or not parts:
        for chunk in parts:
            yield chunk, None
        return
    read_member = _tar_reader(layout, record)
    offsets, lengths = rows["image_offset"].to_pylist(), rows["image_length"].to_pylist()
    with ThreadPoolExecutor(DECODERS) as threads:

        def load(position: int) -> Image.Image | None:
            row = f"shard {record.shard}, row {position}"
            image = decode(read_member(offsets[position], lengths[position]), row)
            if image is not None:
                for each in prepare:
                    each(image)
                vars(image).pop(PIXELS, None)
            return image

        def begin(chunk: Positions | None) -> Decoding:
            if chunk is None:
                return []
            return [threads.submit(load, position) for position in chunk.tolist()]

        upcoming = begin(parts[0])
        for chunk, following in zip(parts, [*parts[1:], None], strict=True):
            current, upcoming = upcoming, begin(following)
            yield chunk, [decoding.result() for decoding in current]


def damaged(layout: PoolLayout, record: CommitRecord, problem: str) -> ValueError:
    """The error for a shard that is not as its commit record says, with the remedy."""
    return ValueError(
        f"shard {record.shard} is damaged: {problem}; run python pipeline/audit.py "
        f"{layout.root} --repair"
    )


def decode(data: bytes, row: str) -> Image.Image | None:
    """An RGB image, or None where the bytes are none. row: names it in the log.

    A JPEG is decoded by simplejpeg, in two thirds of Pillow's time and to the same pixels.
    """
    try:
        image = _decode_jpeg(data) if data.startswith(JPEG_START) else None
        return _decode_any(data) if image is None else image
    # Pillow's decoders raise all kinds of errors: OSError, SyntaxError, struct.error …
    except Exception as error:
        reason = " ".join(FILE_OBJECT.sub("", str(error)).split())
        logger.warning("%s: the stored image cannot be decoded: %s", row, reason)
        return None


def _decode_any(data: bytes) -> Image.Image:
    """The first frame; an animation says how many there are in `info`."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
        if getattr(opened, "is_animated", False):
            image.info[FRAMES] = getattr(opened, "n_frames", 1)
        return image


def _decode_jpeg(data: bytes) -> Image.Image | None:
    """None for what Pillow may read and simplejpeg does not: CMYK, damage of which Pillow only
    warns, and more pixels than Pillow allows."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in ("CMYK", "YCCK") or width * height > (Image.MAX_IMAGE_PIXELS or 0):
            return None
        pixels_HWC = simplejpeg.decode_jpeg(data)
        image = Image.fromarray(pixels_HWC)
        setattr(image, PIXELS, pixels_HWC)
        return image
    except ValueError:
        return None


def json_members(layout: PoolLayout, rows: pa.Table, record: CommitRecord) -> pa.Array:
    """(rows,) the bytes of the JSON member of each stored row; NULL where it has none.

    ValueError where the tar is not that of the commit record.
    """
    members: list[bytes | None] = [None] * rows.num_rows
    positions = stored_positions(rows)
    if not len(positions):
        return pa.array(members, pa.binary())
    read_member = _tar_reader(layout, record)
    offsets, lengths = rows["json_offset"].to_pylist(), rows["json_length"].to_pylist()
    for position in positions.tolist():
        if lengths[position] is not None:
            members[position] = read_member(offsets[position], lengths[position])
    return pa.array(members, pa.binary())


def stored_positions(rows: pa.Table) -> Positions:
    """Row numbers of the stored rows."""
    is_stored = pc.fill_null(pc.equal(rows["status"], "success"), False)
    return np.flatnonzero(is_stored.to_numpy()).astype(np.int64)


def chunks_of(rows: pa.Table, stored: Sequence[int] | Positions) -> list[Positions]:
    """The stored rows in chunks of at most CHUNK rows and CHUNK_AREA pixels, at least one row."""
    positions = np.asarray(stored, np.int64)
    width, height, length = (
        rows[name].take(pa.array(positions)).to_pylist()
        for name in ("width", "height", "image_length")
    )
    chunks: list[list[int]] = []
    area = 0
    for i, position in enumerate(positions.tolist()):
        own = (width[i] or 0) * (height[i] or 0) or AREA_PER_BYTE * (length[i] or 0)
        if not chunks or len(chunks[-1]) == CHUNK or area + own > CHUNK_AREA:
            chunks.append([])
            area = 0
        chunks[-1].append(position)
        area += own
    return [np.array(chunk, np.int64) for chunk in chunks]


def _tar_reader(layout: PoolLayout, record: CommitRecord) -> Callable[[int, int], bytes]:
    """(offset, length) -> bytes of the tar of a shard. A remote tar is fetched whole, once.

    ValueError where it is not the tar of the commit record: a damaged image would get a score, or
    NULL, as if it were the one that was stored.
    """
    tar = layout.tar(record)
    whole = b""
    if disk.is_url(tar):
        whole = disk.read_bytes(tar)
        size, sha256 = len(whole), hashlib.sha256(whole).hexdigest()
    else:
        size, sha256 = disk.local_path(tar).stat().st_size, disk.file_sha256(tar)
    if (size, sha256) != (record.tar_bytes, record.tar_sha256):
        problem = f"{tar} has {size} bytes of {record.tar_bytes}, or another sha256"
        raise damaged(layout, record, problem)

    def read(offset: int, length: int) -> Any:
        if disk.is_url(tar):
            return whole[offset : offset + length]
        return disk.read_bytes(tar, offset, length)

    return read
