"""Images of files, folders, tars and Parquet files that a pool is compared with."""

from __future__ import annotations

import functools
import io
import logging
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from manifests import disk

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif"}
)
TABLES, TARS = frozenset({".parquet"}), frozenset({".tar"})
ROWS = 256  # of a table that are in memory at a time
logger = logging.getLogger(__name__)


def files_of(given: str) -> list[tuple[str, Path]]:
    """(name, path) of a file, or of all images, tars and tables below a folder, by name.

    ValueError where there are none.
    """
    path = disk.local_path(given)
    if path.is_file():
        return [(path.name, path)]
    known = SUFFIXES | TABLES | TARS
    files = sorted(each for each in path.rglob("*") if each.suffix.lower() in known)
    if not files:
        raise ValueError(
            f"against names {given}, which is no pool and has no images: give a folder of images, "
            "an image, a tar, a Parquet file with a column of images, or a pool"
        )
    return [(each.relative_to(path).as_posix(), each) for each in files]


def content_hash(given: str) -> str:
    """A hash of the names and bytes of all files. Files that have not changed are read once."""
    hashes = {}
    for name, path in files_of(given):
        state = path.stat()
        hashes[name] = _sha256(str(path), state.st_size, state.st_mtime_ns)
    return disk.content_hash(hashes)


@functools.lru_cache(maxsize=1 << 17)
def _sha256(path: str, size: int, modified: int) -> str:
    return disk.file_sha256(path)


def read_images(given: str) -> Iterator[tuple[str, Image.Image]]:
    """(name, RGB image) of each image. One that cannot be decoded is named in a warning.

    ValueError for a Parquet file without a column of images.
    """
    for name, data in _read_bytes(given):
        try:
            image = Image.open(io.BytesIO(data)).convert("RGB")
        # Pillow's decoders raise all kinds of errors: OSError, SyntaxError, struct.error …
        except Exception as error:
            logger.warning("%s of %s cannot be decoded and is not searched: %s", name, given, error)
            continue
        yield name, image


def _read_bytes(given: str) -> Iterator[tuple[str, bytes]]:
    for name, path in files_of(given):
        suffix = path.suffix.lower()
        if suffix in TARS:
            yield from _read_tar(name, path)
        elif suffix in TABLES:
            yield from _read_table(name, path)
        else:
            yield name, path.read_bytes()


def _read_tar(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None and Path(member.name).suffix.lower() in SUFFIXES:
                yield f"{name}/{member.name}", content.read()


def _read_table(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    file = pq.ParquetFile(path)
    column = _image_column(file.schema_arrow)
    if column is None:
        raise ValueError(
            f"{path} has no column of images: bytes, or a struct with bytes as Hugging Face "
            f"datasets writes; it has {', '.join(file.schema_arrow.names)}"
        )
    row = 0
    for batch in file.iter_batches(ROWS, columns=[column]):
        for value in batch[0].to_pylist():
            data = value["bytes"] if isinstance(value, dict) else value
            if data is not None:
                yield f"{name}#{row}", data
            row += 1


def _image_column(schema: pa.Schema) -> str | None:
    """The first column of bytes, or of structs that have bytes."""
    for field in schema:
        kinds: Sequence[pa.DataType] = [field.type]
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            kinds = [field.type.field("bytes").type]
        if any(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in kinds):
            return str(field.name)
    return None
