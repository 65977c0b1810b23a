"""A copy of a tar with some of its samples: byte ranges are copied, nothing is decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from pipeline.pool.tars import BLOCK, CHUNK, end_mark, index_tar, local_copy

PARTS = ("image", "text", "json")  # members of a sample
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TarCopy:
    """What was written, and what was left out of it."""

    sha256: str
    bytes: int
    removed: Integers  # (ranges, 2) begin and end in the old tar, ascending


def copy_tar_without(
    tar: str, target: Path, rows: pa.Table, removed: Mask, expected_sha256: str
) -> TarCopy:
    """Copy a tar into a local file without the samples of some rows of its sidecar.

    The members' places come from the sidecar where they fill the tar, as in every tar that was
    written here; else from the headers of the tar, and a sample is what shares its name up to the
    first dot. ValueError, and a file that must not be used, where the sha256 of the old tar is not
    `expected_sha256`: its damage would get a hash that says it is whole.
    """
    names = rows.filter(pa.array(removed))["image_name"].drop_null().to_pylist()
    stems = {_stem(name) for name in names}
    return _copy_tar(tar, target, rows, removed, lambda stem: stem in stems, expected_sha256)


def copy_tar_with(
    tar: str, target: Path, rows: pa.Table, kept: Mask, expected_sha256: str
) -> TarCopy:
    """Copy the samples of some stored rows of a sidecar, and nothing else, into a local file.

    Like `copy_tar_without`; members that belong to no stored row, as in tars of other programs, are
    left out too.
    """
    stored = np.asarray(rows["image_offset"].is_valid().to_numpy(), np.bool_)
    stems = {_stem(name) for name in rows.filter(pa.array(kept))["image_name"].to_pylist()}
    return _copy_tar(
        tar, target, rows, stored & ~kept, lambda stem: stem not in stems, expected_sha256
    )


def _copy_tar(
    tar: str,
    target: Path,
    rows: pa.Table,
    removed: Mask,
    is_removed: Callable[[str], bool],
    expected_sha256: str,
) -> TarCopy:
    """removed, is_removed: the rows, and the stems of members, that are left out."""
    with local_copy(tar) as source:
        spans = _spans_of_sidecar(rows, removed)
        copy = None if spans is None else _copy(source, target, *spans, expected_sha256)
        if copy is None:  # there are members that the sidecar does not list
            spans = _spans_of_headers(tar, source, is_removed)
            copy = _copy(source, target, *spans, expected_sha256)
    if copy is None:
        raise ValueError(
            f"{tar} is damaged or was changed: its sha256 is not that of its commit record; "
            "mend it first: python pipeline/audit.py POOL --repair"
        )
    return copy


def moved_offsets(rows: pa.Table, removed: Integers) -> pa.Table:
    """The rows of a sidecar with the offsets that the members have in a copy without ranges."""
    lengths = np.concatenate([[0], np.cumsum(removed[:, 1] - removed[:, 0])])
    for part in PARTS:
        name = f"{part}_offset"
        offsets = np.asarray(pc.fill_null(rows[name], 0).to_numpy(), np.int64)
        moved = offsets - lengths[np.searchsorted(removed[:, 0], offsets, side="right")]
        missing = rows[name].is_null().to_numpy()
        column = pa.array(moved, pa.int64(), mask=np.asarray(missing, np.bool_))
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def _spans_of_sidecar(rows: pa.Table, removed: Mask) -> tuple[Integers, int] | None:
    """((ranges, 2) of the removed rows, end of the last member) if the members that the sidecar
    lists lie one behind the other from byte 0 on; else None.
    """
    begins, ends, is_removed = [], [], []
    for part in PARTS:
        there = np.asarray(rows[f"{part}_offset"].is_valid().to_numpy(), np.bool_)
        offsets = np.asarray(rows[f"{part}_offset"].drop_null().to_numpy(), np.int64)
        lengths = np.asarray(rows[f"{part}_length"].drop_null().to_numpy(), np.int64)
        if len(lengths) != len(offsets):
            return None
        begins.append(offsets - BLOCK)
        ends.append(offsets + lengths + -lengths % BLOCK)
        is_removed.append(removed[there])
    begin, end = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    if not len(begin) or begin[0] != 0 or (begin[1:] != end[:-1]).any():
        return None
    mask = np.concatenate(is_removed)[order]
    return _merged(np.stack([begin[mask], end[mask]], axis=1)), int(end[-1])


def _spans_of_headers(
    tar: str, source: Path, is_removed: Callable[[str], bool]
) -> tuple[Integers, int]:
    """The same from the headers of a tar that another program wrote."""
    spans, begin = [], 0
    for member in index_tar(tar, source):
        end = member.offset + member.length + -member.length % BLOCK
        if is_removed(_stem(member.name)):
            spans.append((begin, end))
        begin = end
    return _merged(np.array(spans, np.int64).reshape(-1, 2)), begin


def _stem(name: str) -> str:
    """What the members of one sample share: the path up to the first dot of the base name."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _merged(spans: Integers) -> Integers:
    """Adjacent ranges as one."""
    if not len(spans):
        return spans
    is_first = np.append(True, spans[1:, 0] != spans[:-1, 1])
    is_last = np.append(is_first[1:], True)
    return np.stack([spans[is_first, 0], spans[is_last, 1]], axis=1)


def _copy(
    source: Path, target: Path, removed: Integers, end: int, expected_sha256: str
) -> TarCopy | None:
    """Write the bytes up to `end` without the ranges, and an end mark.

    None where there is more than an end mark behind `end`, or the old tar has another sha256.
    """
    before = hashlib.sha256()
    after = None  # up to the first range both are the same, and hashed once
    written = position = 0
    with open(source, "rb") as old, disk.naming(target), open(target, "wb") as new:
        for begin, stop in [*removed.tolist(), (end, end)]:
            for data in _read(old, begin - position):
                before.update(data)
                if after is not None:
                    after.update(data)
                new.write(data)
                written += len(data)
            after = after or before.copy()
            for data in _read(old, stop - begin):
                before.update(data)
            position = stop
        for data in _read(old, None):
            before.update(data)
            if data.strip(b"\0"):
                return None
        mark = end_mark(written)
        assert after is not None
        after.update(mark)
        new.write(mark)
    if before.hexdigest() != expected_sha256:
        return None
    return TarCopy(sha256=after.hexdigest(), bytes=written + len(mark), removed=removed)


def _read(file: Any, length: int | None) -> Iterator[bytes]:
    """The next bytes of a file, to its end where `length` is None."""
    left = length
    while left is None or left > 0:
        data = file.read(CHUNK if left is None else min(CHUNK, left))
        if not data:
            return
        if left is not None:
            left -= len(data)
        yield data
