"""Encoded evaluation images: where their bytes lie, their hashes, and decoded batches of them.

A source names its images and hands out functions that read their bytes, so that threads read,
hash and decode one batch while the model computes the one before. A million images are never in
memory at once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array
from clipmill.manifests.late import torch
from clipmill.manifests.preprocess import Preprocess
from clipmill.train.model.architecture import ModelConfig, OpenClipConfig
from clipmill.train.transforms import decode_by_pillow, decode_image

BATCH_SIZE = 256  # images, prompts or queries that are computed together
# Decoded images that a process keeps for its next run; 10,000 images of 224 pixels are 1.5e9 bytes.
CACHE_BYTES = 2 * 2**30
Read = Callable[[], bytes]
logger = logging.getLogger(__name__)


class ImageSource(Protocol):
    """Images by number. Sources are immutable and hashable."""

    def __hash__(self) -> int: ...

    @property
    def names(self) -> tuple[str, ...]:
        """What a predictions file calls the images."""

    def readers(self, start: int, stop: int) -> list[Read]:
        """For each image of [start, stop) a function that reads its bytes."""

    def path(self, index: int) -> str:
        """Where an image lies, for messages."""

    def files(self) -> Iterable[str]:
        """The files that hold the images."""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A file per image; the names are paths inside `folder`."""

    folder: str
    names: tuple[str, ...]

    def readers(self, start: int, stop: int) -> list[Read]:
        """See ImageSource."""
        return [
            functools.partial(disk.read_bytes, self.path(index)) for index in range(start, stop)
        ]

    def path(self, index: int) -> str:
        """See ImageSource."""
        return disk.join(self.folder, self.names[index])

    def files(self) -> Iterable[str]:
        """See ImageSource."""
        return map(self.path, range(len(self.names)))


@dataclass(frozen=True, slots=True)
class TarImages:
    """Members of tars that are not compressed."""

    tars: tuple[str, ...]
    names: tuple[str, ...]
    members: tuple[tuple[int, int, int], ...]  # (number of the tar, offset, length)

    def readers(self, start: int, stop: int) -> list[Read]:
        """See ImageSource."""
        readers: list[Read] = []
        for tar, offset, length in self.members[start:stop]:
            readers.append(functools.partial(disk.read_bytes, self.tars[tar], offset, length))
        return readers

    def path(self, index: int) -> str:
        """See ImageSource."""
        return f"{self.tars[self.members[index][0]]}:{self.names[index]}"

    def files(self) -> Iterable[str]:
        """See ImageSource."""
        return self.tars


@dataclass(frozen=True, slots=True)
class TableImages:
    """A column of Parquet files with bytes, structs that have a field `bytes`, or lists of them.

    `groups` are (file, number of the row group, first image, images). Whole row groups are read,
    and the last two stay in memory.
    """

    tables: tuple[str, ...]
    column: str
    names: tuple[str, ...]
    groups: tuple[tuple[int, int, int, int], ...]

    def readers(self, start: int, stop: int) -> list[Read]:
        """See ImageSource. ValueError for a row without bytes."""
        readers: list[Read] = []
        for file, group, first, count in self.groups:
            if first >= stop or first + count <= start:
                continue
            rows = range(max(start, first), min(stop, first + count))
            for index in rows:
                readers.append(functools.partial(self._read, file, group, index - first, index))
        return readers

    def _read(self, file: int, group: int, row: int, index: int) -> bytes:
        path = self.tables[file]
        column = read_row_group(path, disk.state_of(path), group, self.column)
        value = column[row].as_py() if row < len(column) else None
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise ValueError(f"{self.path(index)} has no bytes in the column {self.column!r}")
        return data

    def path(self, index: int) -> str:
        """See ImageSource."""
        starts = [first for _, _, first, _ in self.groups]
        file = self.groups[int(np.searchsorted(starts, index, side="right")) - 1][0]
        return f"{self.tables[file]}:{self.names[index]}"

    def files(self) -> Iterable[str]:
        """See ImageSource."""
        return self.tables


@dataclass(frozen=True, slots=True)
class ChosenImages:
    """Some images of another source, by their numbers there."""

    images: ImageSource
    numbers: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """See ImageSource."""
        names = self.images.names
        return tuple(names[number] for number in self.numbers)

    def readers(self, start: int, stop: int) -> list[Read]:
        """See ImageSource."""
        numbers = self.numbers[start:stop]
        return [self.images.readers(number, number + 1)[0] for number in numbers]

    def path(self, index: int) -> str:
        """See ImageSource."""
        return self.images.path(self.numbers[index])

    def files(self) -> Iterable[str]:
        """See ImageSource."""
        return self.images.files()


@functools.lru_cache(maxsize=2)
def read_row_group(path: str, state: tuple[int, ...], group: int, column: str) -> Any:
    """A column of one row group of a file in a `disk.state_of`; lists are laid end to end."""
    with open_parquet(path) as file:
        values = file.read_row_group(group, columns=[column])[column].combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return values.flatten()
    return values


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file, local or at a URL."""
    if not disk.is_url(path):
        disk.check_regular(disk.local_path(path))
        return pq.ParquetFile(disk.local_path(path))
    fs, name = disk.filesystem(path)
    return pq.ParquetFile(fs.open(name, "rb"))


# --- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Images (B, H, W, C) uint8, and the sha256 of each one's bytes as (B, 32) uint8."""

    rows: slice
    image_BHWC: Array
    sha256_BX: Array


_kept: dict[tuple[Any, ...], list[DecodedBatch]] = {}


def _states(images: ImageSource) -> tuple[tuple[int, ...], ...]:
    def state(path: str) -> tuple[int, ...]:
        try:
            return disk.state_of(path)
        except OSError:  # what reads the image names it
            return ()

    return tuple(map(state, images.files()))


def batch_rows(count: int) -> list[slice]:
    """The batches of `count` images, prompts or queries. They are the same for any number of ranks:
    rounding of a product may depend on the size of a batch.
    """
    starts = range(0, count, BATCH_SIZE)
    return [slice(start, min(start + BATCH_SIZE, count)) for start in starts]


def decoded_batches(
    images: ImageSource, model: ModelConfig | OpenClipConfig, batches: Sequence[slice]
) -> Iterator[DecodedBatch]:
    """Some batches of images as a model takes them, but for its mean and deviation.

    What fits in CACHE_BYTES is decoded once per process, while its files stay as they are.
    ValueError names a file that is no image.
    """
    size, preprocess = model.height_width, model.preprocess
    own = (size, preprocess, preprocess.crop_floor)  # the last is left out of comparisons
    key = (images, _states(images), own, tuple((rows.start, rows.stop) for rows in batches))
    if key in _kept:
        yield from _kept[key]
        return
    kept_bytes = sum(batch.image_BHWC.nbytes for kept in _kept.values() for batch in kept)
    images_to_decode = sum(rows.stop - rows.start for rows in batches)
    fits = kept_bytes + images_to_decode * size[0] * size[1] * 3 <= CACHE_BYTES
    decoded = []
    for batch in _decode(images, size, preprocess, batches):
        if fits:
            decoded.append(batch)
        yield batch
    if fits:
        _kept[key] = decoded


def _decode(
    images: ImageSource, size: tuple[int, int], preprocess: Preprocess, batches: Sequence[slice]
) -> Iterator[DecodedBatch]:
    def decode(read: Read, index: int) -> tuple[Array, bytes]:
        data = _read_named(images, read, index)
        try:
            decoded = decode_image(data)
        except ValueError as error:  # of a JPEG whose damage Pillow, as open_clip has it, passes
            try:
                decoded = decode_by_pillow(data)
            except Exception:  # of Pillow's readers, on hostile bytes
                raise _no_image(images, index, error) from error
            logger.warning("%s: %s; it is read by Pillow", images.path(index), error)
        try:
            pixels_HWC = preprocess.pixels(Image.fromarray(decoded), size)
            return pixels_HWC, hashlib.sha256(data).digest()
        except ValueError as error:
            raise _no_image(images, index, error) from error

    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as threads:

        def submit(rows: slice) -> list[Future[tuple[Array, bytes]]]:
            readers = images.readers(rows.start, rows.stop)
            return [threads.submit(decode, read, rows.start + i) for i, read in enumerate(readers)]

        following = submit(batches[0]) if batches else []
        for number, rows in enumerate(batches):
            futures, following = following, []
            if number + 1 < len(batches):
                following = submit(batches[number + 1])
            try:
                results = [future.result() for future in futures]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
            digests = np.frombuffer(b"".join(digest for _, digest in results), np.uint8)
            pixels = np.stack([image_HWC for image_HWC, _ in results])
            yield DecodedBatch(rows, pixels, digests.reshape(len(results), 32))


def _read_named(images: ImageSource, read: Read, index: int) -> bytes:
    try:
        return read()
    except OSError as error:
        raise _no_image(images, index, error) from error


def _no_image(images: ImageSource, index: int, error: Exception) -> ValueError:
    return ValueError(f"{images.path(index)} cannot be decoded as an image: {error}")


def map_images(images: ImageSource, function: Callable[[bytes], object]) -> list[Any]:
    """`function` of the bytes of every image, in order, in threads.

    ValueError names an image that cannot be read, or for which `function` raises ValueError.
    """

    def apply(read: Read, index: int) -> Any:
        data = _read_named(images, read, index)
        try:
            return function(data)
        except ValueError as error:
            raise _no_image(images, index, error) from error

    results: list[object] = []
    with ThreadPoolExecutor(max_workers=max(1, min(8, os.cpu_count() or 1))) as threads:
        for rows in batch_rows(len(images.names)):
            readers = images.readers(rows.start, rows.stop)
            results += threads.map(apply, readers, range(rows.start, rows.stop))
    return results


def image_hashes(images: ImageSource) -> tuple[str, ...]:
    """sha256 of each image's bytes, read once per process while its files stay as they are."""
    return _image_hashes(images, _states(images))


@functools.lru_cache(maxsize=32)
def _image_hashes(images: ImageSource, states: object) -> tuple[str, ...]:
    return tuple(map_images(images, lambda data: hashlib.sha256(data).hexdigest()))


def image_suffix(data: bytes) -> str:
    """`jpg`, `png` or `webp`, from the first bytes of an image. ValueError for another format."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    raise ValueError("it is neither JPEG nor PNG nor WebP")
