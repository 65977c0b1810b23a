"""Groups of near hashes, exactly, at a cost that many near copies of one image do not square."""

from __future__ import annotations

import functools
import io
import logging
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.arrays import Hashes, Integers, Mask
from clipmill.manifests.hashes import balls, dense_pairs, keyed_pieces

# --------------------------------------------------------------------------------------------------
# Groups of rows that pairs of near rows connect, in memory, and the links that the engine gets.


# Pairs that are collected before they are joined: joining costs a step a node.
LEAST_FLUSH, FLUSH = 1 << 10, 1 << 20
LINKS = pa.schema([("uid_a", pa.string()), ("uid_b", pa.string())])
Numbers = NDArray[np.integer[Any]]


class Components:
    """Connected components of `count` nodes. Memory: some bytes a node, however many pairs."""

    def __init__(self, count: int) -> None:
        self._labels = np.arange(count)
        self._first: list[Numbers] = []
        self._second: list[Numbers] = []
        self._waiting = 0
        self._flush = min(FLUSH, max(LEAST_FLUSH, count // 8))

    @property
    def known(self) -> Integers:
        """`labels` without the pairs that are not joined yet."""
        return self._labels

    def add(self, first: Numbers, second: Numbers) -> None:
        """Connect first[k] and second[k]."""
        self._first.append(first)
        self._second.append(second)
        self._waiting += len(first)
        if self._waiting >= self._flush:
            self._join()

    def labels(self) -> Integers:
        """(count,) the smallest node of the component of each node."""
        self._join()
        return self._labels

    def _join(self) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if not self._waiting:
            return
        count = len(self._labels)
        ends = self._labels[np.concatenate(self._first)], self._labels[np.concatenate(self._second)]
        graph = coo_array((np.ones(self._waiting, np.bool_), ends), shape=(count, count))
        _, component = connected_components(graph, directed=False)
        smallest = np.full(component.max() + 1, count)
        np.minimum.at(smallest, component, np.arange(count))
        # A node that is no label any more is a component of its own here: follow its label.
        self._labels = smallest[component][self._labels]
        self._first, self._second, self._waiting = [], [], 0


def joined(count: int, pairs: Iterable[tuple[Numbers, Numbers]]) -> Integers:
    """(count,) the smallest node of the component of each node."""
    components = Components(count)
    for first, second in pairs:
        components.add(first, second)
    return components.labels()


def links_of(uids: pa.ChunkedArray | pa.Array, labels: Integers) -> pa.Table:
    """One link for each row that is not the first of its component: to that first row."""
    rows = np.flatnonzero(labels != np.arange(len(labels)))
    table = pa.table(
        {"uid_a": uids.take(pa.array(labels[rows])), "uid_b": uids.take(pa.array(rows))}
    )
    return table.cast(LINKS)


def collapse(
    values: pa.Array | pa.ChunkedArray, labels_of: Callable[[pa.Array], Integers]
) -> Integers:
    """(rows,) the first row of the group of each row: equal values are of one group, and values
    that have the same label. `labels_of` gets each different value once; there is no NULL.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = array.dictionary_encode()
    of_value = encoded.indices.to_numpy()
    # The dictionary is in the order of first appearance: the first value of a group has its
    # first row.
    different, first_row = np.unique(of_value, return_index=True)
    assert (different == np.arange(len(encoded.dictionary))).all()
    label_of_value = labels_of(encoded.dictionary)
    rows: Integers = first_row[label_of_value[of_value]]
    return rows


SMALLEST_STAR = 16  # rows near one row, from which a group is grown
PROBES = 128  # rows of a ball that are compared with all others at a time, after fewer


def near_labels(hashes: Hashes, radius: int) -> Integers:
    """(rows,) the first row of the group of each row: rows within `radius` are of one group, and so
    is what they connect.

    Crowds around one centre are taken out first. Pairs that are known to be of one group are not
    compared.
    """
    components = Components(len(hashes))
    is_left = np.ones(len(hashes), np.bool_)
    for ball, fringe in balls(hashes, radius, is_left):
        _join_ball(hashes, ball, fringe, radius, components)
    rows = np.flatnonzero(is_left)

    def wanted(i: Numbers, j: Numbers) -> Mask:
        labels = components.known
        unknown: Mask = labels[rows[i]] != labels[rows[j]]
        return unknown

    for i, j in keyed_pieces(hashes[rows], radius, wanted):
        components.add(rows[i], rows[j])
    return components.labels()


def _join_ball(
    hashes: Hashes, ball: Integers, fringe: Integers, radius: int, components: Components
) -> None:
    """Connect the near rows of a ball, and those of its fringe to them.

    A row that was compared with all open rows is closed. A group is grown from a row with many near
    ones: each of its rows is compared with the rows outside of it only, which become few.
    """
    rows = np.concatenate([ball, fringe])
    words = hashes[rows]
    is_open = np.ones(len(rows), np.bool_)

    def compare(probes: Integers) -> tuple[Integers, Integers]:
        """Near pairs of probes and open rows, of which one at least is in the ball."""
        others = np.flatnonzero(is_open)
        of_ball = int(np.searchsorted(probes, len(ball)))
        i, j = dense_pairs(words[probes[:of_ball]], words[others], radius)
        others_of_ball = others[: np.searchsorted(others, len(ball))]
        more = dense_pairs(words[probes[of_ball:]], words[others_of_ball], radius)
        first = np.concatenate([probes[i], probes[of_ball + more[0]]])
        return first, np.concatenate([others[j], others[more[1]]])

    count = 1
    while len(probes := np.flatnonzero(is_open[: len(ball)])[:count]):
        count = min(2 * count, PROBES)
        i, j = compare(probes)
        components.add(rows[i], rows[j])
        is_open[probes] = False
        near = np.bincount(i, minlength=1)
        pivot = int(near.argmax())
        if near[pivot] < SMALLEST_STAR:
            continue
        is_waiting = np.zeros(len(rows), np.bool_)
        members = j[(i == pivot) & is_open[j]]
        while is_open.any() and (len(members) or is_waiting.any()):
            components.add(np.full(len(members), rows[pivot]), rows[members])
            is_open[members], is_waiting[members] = False, True
            probes = np.flatnonzero(is_waiting)[:count]
            count = min(2 * count, PROBES)
            is_waiting[probes] = False
            members = np.unique(compare(probes)[1])
        count = 1  # another group may be as large: its pairs are not collected at once


# --------------------------------------------------------------------------------------------------
# Images of files, folders, tars and Parquet files that a pool is compared with.


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
