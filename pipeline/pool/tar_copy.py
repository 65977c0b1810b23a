"""A copy of a tar with some of its samples: members keep their bytes, no image is decoded.

JSON members may get keys."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.arrays import Mask
from clipmill.manifests.text import is_printable, valid_text
from clipmill.pipeline.pool.shard_writer import end_mark, member_block
from clipmill.pipeline.pool.tars import BLOCK, CHUNK, Member, index_tar, local_copy

PARTS = ("image", "text", "json")  # members of a sample
UNSAFE = re.compile(r"\\|^[A-Za-z]:")  # what other systems read as a folder or a drive
ODD = re.compile(r"[^A-Za-z0-9_.-]")  # in an extension


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TarCopy:
    """What was written, and where its members lie."""

    sha256: str
    bytes: int
    members: Mapping[int, Member]  # by their offset in the old tar

    def moved(self, rows: pa.Table) -> pa.Table:
        """Rows of the old sidecar, whose members are all in the copy, as they are listed there."""
        for part in PARTS:
            offsets = rows[f"{part}_offset"].to_pylist()
            members = [None if offset is None else self.members[offset] for offset in offsets]
            columns = {f"{part}_offset": "offset", f"{part}_length": "length"}
            if part == "image":
                columns["image_name"] = "name"
            for column, attribute in columns.items():
                place = rows.schema.get_field_index(column)
                field = rows.schema.field(place)
                values = [member and getattr(member, attribute) for member in members]
                rows = rows.set_column(place, field, pa.array(values, field.type))
        return rows


def copy_tar_without(
    tar: str, target: Path, rows: pa.Table, removed: Mask, expected_sha256: str
) -> TarCopy:
    """Copy a tar into a local file without the samples of some rows of its sidecar.

    What belongs to no row stays, unless it shares the name of a removed sample. ValueError where
    the sha256 of the old tar is not `expected_sha256`: its damage would get a hash that says it is
    whole.
    """
    names = rows.filter(pa.array(removed))["image_name"].drop_null().to_pylist()
    stems = set(map(_stem, names))
    blocks, begin = [], 0
    with _whole(tar, expected_sha256) as source:
        for number, member in _members_of_rows(index_tar(tar, source), rows):
            is_removed = _stem(member.name) in stems if number is None else removed[number]
            if not is_removed:
                blocks.append(_Block(member.name, member.offset, member.length, begin, member.end))
            begin = member.end
        return _write(source, target, blocks)


def copy_tar_with(
    tar: str,
    target: Path,
    rows: pa.Table,
    kept: Mask,
    expected_sha256: str,
    added: Sequence[Mapping[str, object]] = (),
) -> TarCopy:
    """Copy the samples of some stored rows of a sidecar, and nothing else, into a local file.

    Like `copy_tar_without`, but members that belong to no stored row are left out, as are links.
    Names that lead out of a folder, or that a member has already, come from strangers: then every
    sample of the tar is named after its row's key. added: {key: a plain value or None} of each kept
    row, for its JSON member. A key that the member has stays as it is, and so does a member that
    holds no JSON object.
    """
    keys, json_offsets = rows["key"].to_pylist(), rows["json_offset"].to_pylist()
    new_json = dict(zip(np.flatnonzero(kept).tolist(), added, strict=True)) if added else {}
    with _whole(tar, expected_sha256) as source, open(source, "rb") as old:
        members = _members_of_rows(index_tar(tar, source), rows)
        names = [member.name for number, member in members if number is not None and kept[number]]
        are_safe = len(set(names)) == len(names) and all(map(_is_safe, names))
        blocks, used, begin = [], set[str](), 0
        for number, member in members:
            start, begin = begin, member.end
            if number is None or not kept[number]:
                continue
            name, head = member.name, b""
            if not are_safe:
                extension = ODD.sub("_", name.rpartition("/")[2].partition(".")[2])
                name = f"{keys[number]}.{extension}"
                while name in used:
                    name += "_"
                used.add(name)
            if not are_safe or member.offset - start != BLOCK:  # links lie before it
                info = tarfile.TarInfo(name)
                info.size, info.mode = member.length, 0o644
                start, head = member.offset, info.tobuf(tarfile.GNU_FORMAT)
            length = member.length
            if number in new_json and member.offset == json_offsets[number]:
                old.seek(member.offset)
                content = old.read(length)
                changed = _with_keys(content, new_json[number])
                if changed != content:
                    start, head, length = member.end, member_block(name, changed), len(changed)
            blocks.append(_Block(name, member.offset, length, start, member.end, head))
        return _write(source, target, blocks)


@dataclass(frozen=True, slots=True)
class _Block:
    """A member of a copy: new bytes, then those of the old tar from `begin` to `end`."""

    name: str
    old: int  # its offset in the old tar
    length: int
    begin: int
    end: int
    head: bytes = b""


def _write(source: Path, target: Path, blocks: Iterable[_Block]) -> TarCopy:
    spans: list[tuple[bytes, int, int]] = []  # new bytes, then a range of the old tar
    members, size = {}, 0
    for block in blocks:
        head, begin = block.head, block.begin
        if spans and not head and spans[-1][2] == begin:  # adjacent ranges are copied as one
            head, begin, _ = spans.pop()
        spans.append((head, begin, block.end))
        size += len(block.head) + block.end - block.begin
        offset = size - (block.length + -block.length % BLOCK)
        members[block.old] = Member(name=block.name, offset=offset, length=block.length)
    mark, digest = end_mark(size), hashlib.sha256()
    with open(source, "rb") as old, disk.naming(target), open(target, "wb") as new:
        for head, begin, end in [*spans, (mark, 0, 0)]:
            digest.update(head)
            new.write(head)
            old.seek(begin)
            for start in range(begin, end, CHUNK):
                data = old.read(min(CHUNK, end - start))
                digest.update(data)
                new.write(data)
    return TarCopy(sha256=digest.hexdigest(), bytes=size + len(mark), members=members)


@contextlib.contextmanager
def _whole(tar: str, expected_sha256: str) -> Iterator[Path]:
    """A local copy of a tar that has this sha256."""
    with local_copy(tar) as source:
        if disk.file_sha256(source) != expected_sha256:
            raise ValueError(
                f"{tar} is damaged or was changed: its sha256 is not that of its commit record; "
                "mend it first: clipmill audit repair POOL"
            )
        yield source


def _is_safe(name: str) -> bool:
    """Whether a member of this name stays in the folder that a program unpacks it into."""
    leads_out = any(part in ("", "..") for part in name.split("/"))
    return is_printable(name) and not leads_out and UNSAFE.search(name) is None


def _members_of_rows(members: Sequence[Member], rows: pa.Table) -> list[tuple[int | None, Member]]:
    """(number of the row that it belongs to, member), in the order of the tar.

    A sample is what shares its name up to the first dot; another one of that name begins where an
    extension repeats. It is that of the row whose members it has.
    """
    own: dict[int, int] = {}
    for part in PARTS:
        offsets = rows[f"{part}_offset"].to_pylist()
        own |= {offset: number for number, offset in enumerate(offsets) if offset is not None}
    latest: dict[str, int] = {}  # stem -> number of its last sample
    names: list[set[str]] = []  # of each sample
    sample_of: list[int] = []
    row_of: dict[int, int] = {}
    for member in members:
        stem = _stem(member.name)
        if stem not in latest or member.name in names[latest[stem]]:
            latest[stem] = len(names)
            names.append(set())
        sample = latest[stem]
        names[sample].add(member.name)
        sample_of.append(sample)
        if member.offset in own:
            row_of.setdefault(sample, own[member.offset])
    return [(row_of.get(sample), member) for sample, member in zip(sample_of, members, strict=True)]


def _stem(name: str) -> str:
    """What the members of one sample share: the path up to the first dot of the base name."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _with_keys(content: bytes, values: Mapping[str, object]) -> bytes:
    """A JSON object with more keys, in the form of `member_json`."""
    try:
        known = json.loads(content)
    except ValueError:
        return content
    if not isinstance(known, dict):
        return content
    text = json.dumps({**values, **known}, sort_keys=True, ensure_ascii=False)
    return valid_text(text).encode()
