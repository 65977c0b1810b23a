"""Offsets and lengths of the members of a plain tar; damage is an error, never the end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clipmill.manifests import disk

BLOCK = 512  # of a tar
EMPTY = 20 * BLOCK  # bytes of a tar without members; more zeros are a download that never came
CHUNK = 2**20
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A regular file in a tar: `length` bytes from `offset`."""

    name: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where the next header begins."""
        return self.offset + self.length + -self.length % BLOCK


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """A local file itself, or a temporary local copy of a URL. ValueError where there is none."""
    if not disk.is_url(path):
        if not disk.local_path(path).is_file():
            raise ValueError(f"{path} does not exist or is not a file")
        yield disk.local_path(path)
        return
    with tempfile.NamedTemporaryFile(prefix="clipmill-copy-") as copy:

        def attempt() -> None:
            copy.seek(0)
            copy.truncate()
            with disk.open_file(path) as source:
                shutil.copyfileobj(source, copy, CHUNK)
            copy.flush()

        try:
            disk.retried(attempt, path)
        except FileNotFoundError:
            raise ValueError(f"{path} does not exist") from None
        yield Path(copy.name)


def index_tar(
    path: str, local: Path | None = None, links: list[Member] | None = None
) -> list[Member]:
    """The regular files of a plain tar (ustar, GNU or pax) in order, without links and folders.

    `local` is a local copy of the tar, where there is one already; else a URL is copied first.
    `links` gets the hard and symbolic links, as members without bytes.
    Damage is not taken for the end, as streaming readers do. ValueError with the offset for a wrong
    header, a member or end mark that is missing, and bytes behind the end; also for a compressed
    tar.
    """
    if local is None:
        with local_copy(path) as copy:
            return index_tar(path, copy, links)
    size = local.stat().st_size
    links = [] if links is None else links
    with open(local, "rb") as f:
        members = list(_members(f, path, size, links))
    if not members and not links and size > EMPTY:
        raise ValueError(f"{path} has {size:,} zeros and no member; get the file again")
    return members


def _members(f: IO[bytes], path: str, size: int, links: list[Member]) -> Iterator[Member]:
    changed: dict[str, str] = {}  # what an extended header says about the next member
    offset = 0
    while True:
        f.seek(offset)
        header = f.read(BLOCK)
        if offset == 0:
            _refuse_compressed(header, path)
        if len(header) < BLOCK:
            raise ValueError(f"{path} is cut off: it ends at byte {size} without an end mark")
        if not header.strip(b"\0"):
            break
        _check_header(header, path, offset)
        kind, length = header[156:157], int(changed.get("size", _number(header[124:136])))
        data, ends = offset + BLOCK, offset + BLOCK
        if kind not in b"123456":  # links, devices, folders and pipes have no bytes
            ends += length + -length % BLOCK
        if ends > size:
            raise ValueError(
                f"{path} is cut off: a member at byte {data} needs {length} bytes, "
                f"the file has {size}"
            )
        if kind in (b"x", b"L"):
            changed |= _extended(f.read(length), kind, path, offset)
        elif kind == b"S" or any(key.startswith("GNU.sparse") for key in changed):
            raise ValueError(
                f"{path} has a sparse member at byte {offset}; pack it again without --sparse"
            )
        elif kind not in (b"g", b"K"):
            name = changed.get("path") or _name(header)
            changed = {}
            if kind in (b"0", b"\0", b"7") and not name.endswith("/"):
                yield Member(name=name, offset=data, length=length)
            elif kind in (b"1", b"2"):
                links.append(Member(name=name, offset=data, length=0))
        offset = ends
    for block in iter(lambda: f.read(CHUNK), b""):
        if block.strip(b"\0"):
            raise ValueError(
                f"{path} has more data behind its end mark at byte {offset}: two tars in one file? "
                "Pack them as one"
            )


def _refuse_compressed(header: bytes, path: str) -> None:
    for magic, name in COMPRESSED.items():
        if header.startswith(magic):
            raise ValueError(
                f"{path} is compressed ({name}), so its members cannot be read by their offsets; "
                "unpack it"
            )


def _check_header(header: bytes, path: str, offset: int) -> None:
    """ValueError for a wrong checksum: the sum of the header's bytes, its own field as blanks."""
    with contextlib.suppress(ValueError):
        blanked = header[:148] + b" " * 8 + header[156:]
        _number(header[124:136])
        difference = sum(blanked) - _number(header[148:156])
        # Some old writers took bytes for signed ones.
        if difference == 0 or difference == 256 * sum(byte > 127 for byte in blanked):
            return
    raise ValueError(f"{path} is damaged, or no tar: the header at byte {offset} is wrong")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # too large for octal digits
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.split(b"\0")[0].strip() or b"0"
    if not digits.isdigit():  # a length below 0 would lead back to the same header, without end
        raise ValueError("no octal number")
    return int(digits, 8)


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode("utf-8", "backslashreplace")


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _extended(data: bytes, kind: bytes, path: str, offset: int) -> dict[str, str]:
    """path and size from a pax header, or the long name of a GNU one."""
    if kind == b"L":
        return {"path": _text(data)}
    fields: dict[str, str] = {}
    try:
        while data.strip(b"\0"):
            length = int(data.split(b" ", 1)[0])
            key, value = data[:length].split(b" ", 1)[1].removesuffix(b"\n").split(b"=", 1)
            fields[key.decode()] = value.decode("utf-8", "backslashreplace")
            data = data[length:]
        if not fields.get("size", "0").isdecimal():
            raise ValueError("no length")
    except (ValueError, IndexError):
        raise ValueError(
            f"{path} is damaged: the extended header at byte {offset} is wrong"
        ) from None
    return fields
