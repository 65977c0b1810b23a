"""Images of committed rows, small: bytes from the tar by offset, encoded again as JPEG."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from manifests import disk
from manifests.pool_layout import PoolLayout
from pipeline.pool_page.pool_rows import PoolRows

SIDE = 96  # pixels of the longer side
QUALITY = 80
MOST_PIXELS = 64_000_000  # of an image that is decoded
MOST_BYTES = 64 * 2**20  # of an image that is read
READERS = 8


class NoImage(ValueError):
    """A row has no image that can be shown."""


def are_current(rows: PoolRows, shards: Iterable[int]) -> bool:
    """True where the committed shards are still those that were read."""
    layout = PoolLayout(rows.commits.pool)

    def check(shard: int) -> bool:
        position = rows.commits.position(shard)
        if position is None:
            return False
        try:
            record = disk.read_json(layout.commit_record(shard))
        except (OSError, ValueError):
            return False
        known = rows.commits.column("sidecar_sha256")[position].as_py().hex()
        return isinstance(record, dict) and record.get("sidecar_sha256") == known

    different = sorted(set(shards))
    if len(different) < 2 or not disk.is_url(layout.root):
        return all(map(check, different))
    with ThreadPoolExecutor(READERS) as threads:  # a store answers each after about 30 ms
        return all(threads.map(check, different))


def image_bytes(rows: PoolRows, row: int) -> bytes:
    """The image of a stored row as it lies in the tar. NoImage where there is none any more."""
    if not rows.stored[row]:
        raise NoImage("the row is not stored")
    shard, _ = rows.location(row)
    offset = rows.table["image_offset"][row].as_py()
    length = rows.table["image_length"][row].as_py()
    if offset is None or length is None or not 0 < length <= MOST_BYTES:
        raise NoImage("the row has no image of a size that can be shown")
    try:
        data = disk.read_bytes(rows.commits.tar(shard), offset, length)
    except (OSError, ValueError) as error:
        raise NoImage(f"its tar cannot be read: {type(error).__name__}") from None
    if len(data) != length:
        raise NoImage("its tar is shorter than the sidecar says")
    return data


def thumbnail(data: bytes, side: int = SIDE) -> bytes:
    """An image as a JPEG of at most `side` pixels, without metadata. NoImage for what is none."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise NoImage("the image has too many pixels")
                image.draft("RGB", (side, side))
                small = image.convert("RGB")
    except NoImage:
        raise
    except Exception as error:  # a decoder raises nearly anything for damaged bytes
        raise NoImage(f"the image cannot be decoded: {type(error).__name__}") from None
    small.thumbnail((side, side))
    sink = io.BytesIO()
    small.save(sink, "JPEG", quality=QUALITY)
    return sink.getvalue()


def data_uris(rows: PoolRows, wanted: Iterable[int], most_bytes: int) -> dict[int, str]:
    """Rows to data URIs; "" where an image cannot be shown. It ends before the URIs have more than
    `most_bytes`: the rows after that are left out."""

    def read(row: int) -> str:
        try:
            data = thumbnail(image_bytes(rows, row))
        except NoImage:
            return ""
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"

    ordered = list(dict.fromkeys(wanted))
    uris: dict[int, str] = {}
    total = 0
    with ThreadPoolExecutor(READERS) as threads:
        for start in range(0, len(ordered), 8 * READERS):
            batch = ordered[start : start + 8 * READERS]
            for row, uri in zip(batch, threads.map(read, batch), strict=True):
                total += len(uri)
                if total > most_bytes:
                    return uris
                uris[row] = uri
    return uris
