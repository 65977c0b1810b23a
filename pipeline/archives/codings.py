"""Transfer and content codings of HTTP bodies, undone as browsers and curl do it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

# Content codings that are undone here, each with the usual name.
INFLATED = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "x-deflate": "deflate"}
# Registered ones that a client without them cannot read. Every other token is no coding: browsers
# take the body as it stands.
PACKED = frozenset(("br", "zstd", "compress", "x-compress", "dcb", "dcz"))
# Answers that are no refusal, and whose body is not what was asked for (RFC 9110, 15.3): it is not
# ready, there is none, or it is a part.
NOT_WHOLE = frozenset((202, 204, 205, 206))
GZIP = b"\x1f\x8b"
MOST_MEMBERS = 1000  # of a gzip body: each one costs a copy of what follows it
LONGEST_SIZE_LINE = 4096  # bytes of a chunk's size and its extensions
CHUNK_SIZE = re.compile(rb"(?:\r?\n)?[ \t]*([0-9a-fA-F]{1,16})(?:[ \t;][^\n]*)?\r?\n")
TRAILERS = re.compile(rb"(?:[^\r\n][^\n]*\n)*\r?\n")  # the lines behind the last chunk


def is_whole(status: int) -> bool:
    """Whether the body of an answer with this status is what was asked for: that of 200, and as in
    browsers of 201 (made for this request), 203 (changed on the way) and the like."""
    return status // 100 == 2 and status not in NOT_WHOLE


def coding_names(values: Iterable[str]) -> list[str]:
    """The codings that header lines name, in lower case and in the order of their use; without
    identity and blanks."""
    names = [name.strip(" \t\"'").lower() for name in ",".join(values).split(",")]
    return [name for name in names if name not in ("", "identity")]


class Inflater:
    """Undoes gzip (of all its members) or deflate (with the header of zlib or raw) of a body that
    arrives in parts."""

    def __init__(self, coding: str) -> None:
        self.coding = INFLATED[coding]
        self._waiting = b""  # the first byte of a body or member
        self._stream = zlib.decompressobj()
        self._runs = False
        self._members = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing at the end."""
        return self._members > 0 and not self._runs

    def add(self, part: bytes, most: int) -> bytes:
        """What a part unpacks to, `most` bytes at most (more than 0). zlib.error where it is not
        what the coding says; what follows the last member is padding and left out."""
        data, unpacked = self._waiting + part, b""
        self._waiting = b""
        while data and len(unpacked) < most:
            if not self._runs:
                if len(data) < len(GZIP):
                    self._waiting = data
                    break
                if self._members and (self.coding != "gzip" or data[:2] != GZIP):
                    break
                if self._members == MOST_MEMBERS:
                    raise zlib.error(f"more than {MOST_MEMBERS} members")
                is_gzip = self.coding == "gzip" or data[:2] == GZIP
                has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
                self._stream = zlib.decompressobj(31 if is_gzip else 15 if has_header else -15)
                self._runs = True
            unpacked += self._stream.decompress(data, most - len(unpacked))
            if not self._stream.eof:
                break
            data, self._runs = self._stream.unused_data, False
            self._members += 1
        return unpacked


class Dechunker:
    """Undoes the transfer coding `chunked` of a body that arrives in parts; lines may end in LF."""

    def __init__(self) -> None:
        self.ended = False  # after the last chunk and its trailers
        self.behind = b""  # what follows the end
        self.waiting = b""  # a line that has not arrived whole
        self._left = 0  # bytes of the current chunk
        self._last = False

    def add(self, part: bytes) -> bytes:
        """The bytes of the chunks in a part. ValueError where no size of a chunk is there."""
        data, offset, parts = self.waiting + part, 0, []
        self.waiting = b""
        while not self.ended and offset < len(data):
            if self._left:
                parts.append(data[offset : offset + self._left])
                self._left -= len(parts[-1])
                offset += len(parts[-1])
                continue
            line = (TRAILERS if self._last else CHUNK_SIZE).match(data, offset)
            if line is None:
                self.waiting = data[offset:]
                if not self._last and (
                    b"\n" in self.waiting[2:] or len(self.waiting) > LONGEST_SIZE_LINE
                ):
                    raise ValueError("a chunk without its size")
                break
            offset = line.end()
            self.ended = self._last
            if not self._last:
                self._left = int(line[1], 16)
                self._last = not self._left
        if self.ended:
            self.behind = data[offset:]
        return b"".join(parts)
