"""A copy of a tar with some of its samples: byte ranges are copied, no image is decoded.

JSON members may get keys."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.text import valid_text
from pipeline.pool.shard_writer import member_block
from pipeline.pool.tars import BLOCK, CHUNK, Member, end_mark, index_tar, local_copy

PARTS = ("image", "text", "json")  # members of a sample
UNSAFE = re.compile(r"\\|^[A-Za-z]:")  # what other systems read as a folder or a drive
ODD = re.compile(r"[^A-Za-z0-9_.-]")  # in an extension
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
    with local_copy(tar) as source:
        spans = _spans_of_sidecar(rows, removed)
        copy = None if spans is None else _copy(source, target, *spans, expected_sha256)
        if copy is None:  # there are members that the sidecar does not list
            spans = _spans_of_headers(tar, source, stems)
            copy = _copy(source, target, *spans, expected_sha256)
    if copy is None:
        raise ValueError(_damaged(tar))
    return copy


def copy_tar_with(
    tar: str, target: Path, rows: pa.Table, kept: Mask, expected_sha256: str
) -> tuple[TarCopy, pa.Table]:
    """Copy the samples of some stored rows of a sidecar, and nothing else, into a local file.

    The second value: the kept rows with the names and offsets of the copy. Like
    `copy_tar_without`, but members that belong to no stored row are left out, as are links. Names
    that lead out of a folder, or that a member has already, come from strangers: then every sample
    of the tar is named after its row's key.
    """
    stored = np.asarray(rows["image_offset"].is_valid().to_numpy(), np.bool_)
    kept_rows = rows.filter(pa.array(kept))
    names = kept_rows["image_name"].to_pylist()
    with local_copy(tar) as source:
        spans = _spans_of_sidecar(rows, stored & ~kept) if _are_safe(names) else None
        copy = None if spans is None else _copy(source, target, *spans, expected_sha256)
        if copy is not None:
            return copy, moved_offsets(rows, copy.removed).filter(pa.array(kept))
        if disk.file_sha256(source) != expected_sha256:
            raise ValueError(_damaged(tar))
        return _write_anew(tar, source, target, kept_rows)


def _are_safe(names: Sequence[str]) -> bool:
    """Whether members of these names stay in the folder that a program unpacks them into."""
    return len(set(names)) == len(names) and all(map(_is_safe, names))


def _is_safe(name: str) -> bool:
    leads_out = any(part in ("", "..") for part in name.split("/"))
    return name.isprintable() and not leads_out and UNSAFE.search(name) is None


def _write_anew(tar: str, source: Path, target: Path, rows: pa.Table) -> tuple[TarCopy, pa.Table]:
    """Write the members of some rows with headers of our own; the rows with their new places."""
    members = _members_of_rows(index_tar(tar, source), rows)
    names = [member.name for _, member in members]
    keys, are_safe = rows["key"].to_pylist(), _are_safe(names)
    offsets = {part: rows[f"{part}_offset"].to_pylist() for part in PARTS}
    parts: dict[tuple[int, int], str] = {}
    for part, values in offsets.items():
        parts |= dict.fromkeys(enumerate(values), part)
    image_names = rows["image_name"].to_pylist()
    digest, written, used = hashlib.sha256(), 0, set[str]()
    with open(source, "rb") as old, disk.naming(target), open(target, "wb") as new:

        def write(data: bytes) -> None:
            nonlocal written
            digest.update(data)
            new.write(data)
            written += len(data)

        for number, member in members:
            name = member.name
            if not are_safe:
                extension = ODD.sub("_", name.rpartition("/")[2].partition(".")[2])
                name = f"{keys[number]}.{extension}"
                while name in used:
                    name += "_"
            used.add(name)
            info = tarfile.TarInfo(name)
            info.size, info.mode = member.length, 0o644
            write(info.tobuf(tarfile.GNU_FORMAT))
            listed = parts.get((number, member.offset))
            if listed is not None:
                offsets[listed][number] = written
                if listed == "image":
                    image_names[number] = name
            old.seek(member.offset)
            for data in _read(old, member.length):
                write(data)
            write(bytes(-member.length % BLOCK))
        write(end_mark(written))
    for name, values in [
        ("image_name", image_names),
        *((f"{p}_offset", offsets[p]) for p in PARTS),
    ]:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(
            place, rows.schema.field(name), pa.array(values, rows.schema.types[place])
        )
    nothing = np.zeros((0, 2), np.int64)
    return TarCopy(sha256=digest.hexdigest(), bytes=written, removed=nothing), rows


def _members_of_rows(members: Sequence[Member], rows: pa.Table) -> list[tuple[int, Member]]:
    """(number of the row, member) of what belongs to the rows, in the order of the tar.

    A sample is what shares its name up to the first dot; another one of that name begins where an
    extension repeats. It is that of the row whose members it has.
    """
    own: dict[int, int] = {}
    for part in PARTS:
        offsets = rows[f"{part}_offset"].to_pylist()
        own |= {offset: number for number, offset in enumerate(offsets) if offset is not None}
    latest: dict[str, dict[str, Member]] = {}
    samples: list[dict[str, Member]] = []
    for member in members:
        stem = _stem(member.name)
        if stem not in latest or member.name in latest[stem]:
            latest[stem] = {}
            samples.append(latest[stem])
        latest[stem][member.name] = member
    chosen = []
    for sample in samples:
        numbers = [own[each.offset] for each in sample.values() if each.offset in own]
        chosen += [(numbers[0], member) for member in sample.values() if numbers]
    return sorted(chosen, key=lambda each: each[1].offset)


def _damaged(tar: str) -> str:
    return (
        f"{tar} is damaged or was changed: its sha256 is not that of its commit record; "
        "mend it first: clipmill audit repair POOL"
    )


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


def _spans_of_headers(tar: str, source: Path, removed: Collection[str]) -> tuple[Integers, int]:
    """The same from the headers of a tar that another program wrote."""
    spans, begin = [], 0
    for member in index_tar(tar, source):
        end = member.offset + member.length + -member.length % BLOCK
        if _stem(member.name) in removed:
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


# --- keys of JSON members -------------------------------------------------------------------------


def copy_with_json(
    tar: Path, target: Path, rows: pa.Table, added: Sequence[Mapping[str, Any]]
) -> tuple[pa.Table, TarCopy]:
    """Copy a tar; the JSON member of each row of its sidecar gets more keys.

    added: per row {key: a plain value or None}. A key that the member has stays as it is, and so
    does a member that holds no JSON object. Returns the rows with the members' new places.
    """
    new_json = {}
    for offset, values in zip(rows["json_offset"].to_pylist(), added, strict=True):
        if offset is not None:
            new_json[offset] = values
    places: dict[int, tuple[int, int]] = {}  # offset in the old tar -> (offset, length)
    digest, position, written = hashlib.sha256(), 0, 0
    with open(tar, "rb") as old, disk.naming(target), open(target, "wb") as new:
        for member in index_tar(str(tar), tar):
            old.seek(position)
            position = member.offset + member.length + -member.length % BLOCK
            block = old.read(position - old.tell())
            length = member.length
            if member.offset in new_json:
                content = block[len(block) - (position - member.offset) :][:length]
                changed = _with_keys(content, new_json[member.offset])
                if changed != content:
                    block, length = member_block(member.name, changed), len(changed)
            padded = length + -length % BLOCK
            places[member.offset] = (written + len(block) - padded, length)
            digest.update(block)
            new.write(block)
            written += len(block)
        mark = end_mark(written)
        digest.update(mark)
        new.write(mark)
    for part in PARTS:
        before = rows[f"{part}_offset"].to_pylist()
        for number, name in enumerate((f"{part}_offset", f"{part}_length")):
            moved = [None if offset is None else places[offset][number] for offset in before]
            index = rows.column_names.index(name)
            rows = rows.set_column(index, rows.schema.field(name), pa.array(moved, pa.int64()))
    nothing = np.zeros((0, 2), np.int64)
    return rows, TarCopy(sha256=digest.hexdigest(), bytes=written + len(mark), removed=nothing)


def _with_keys(content: bytes, values: Mapping[str, Any]) -> bytes:
    """A JSON object with more keys, in the form of `member_json`."""
    try:
        known = json.loads(content)
    except ValueError:
        return content
    if not isinstance(known, dict):
        return content
    text = json.dumps({**values, **known}, sort_keys=True, ensure_ascii=False)
    return valid_text(text).encode()
