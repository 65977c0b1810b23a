"""Reading archives that may be damaged: a stream that can be wound back, and gzip members whole or
broken."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

GZIP = b"\x1f\x8b\x08"
CHUNK = 1 << 14  # bytes that are read at a time
STEP = 256  # bytes of a broken chunk that are lost with it
WINDOW = 1 << 20  # compressed bytes in front of a break in which the next member is looked for
LONGEST_RECORD = 1 << 26  # a larger length is taken for damage: reading it would swallow the file
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
Chunks = Iterator[tuple[int, bytes | None]]


class Tape:
    """A stream that can be wound back to `keep`: the bytes read since then stay in memory.

    OSError of the stream itself is remembered in `broken`, as a reader of damaged data raises
    OSError too. A stream that ends before its size has a broken connection: ConnectionError.
    """

    def __init__(self, stream: Any, start: int = 0) -> None:
        """`start`: the position of the stream in its file."""
        self._stream, self._buffer = stream, bytearray()
        self._start = self._position = start  # of the buffer, and of what is read next
        self._size: int | None = getattr(stream, "size", None)
        self.broken: OSError | None = None

    def read(self, size: int = CHUNK) -> bytes:
        offset = self._position - self._start
        if offset >= len(self._buffer):
            try:
                data = self._stream.read(size if size > 0 else CHUNK)
                if not data and self._size is not None and self._position < self._size:
                    raise ConnectionError(
                        f"the file ended at byte {self._position} of {self._size}"
                    )
            except OSError as error:
                self.broken = error
                raise
            self._buffer += data
        data = bytes(self._buffer[offset : offset + size] if size > 0 else self._buffer[offset:])
        self._position += len(data)
        return data

    def peek(self, position: int, size: int) -> bytes:
        """Bytes at a position that is still in memory."""
        offset = position - self._start
        return bytes(self._buffer[offset : offset + size])

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """Return to a position that is still in memory."""
        assert whence == 0
        assert self._start <= position <= self._start + len(self._buffer)
        self._position = position
        return position

    def close(self) -> None:
        """Nothing: who opened the stream closes it."""

    def rewind(self) -> int:
        """Return to the first position that is still in memory."""
        self._position = self._start
        if not self._buffer:
            self.read(CHUNK)
            self._position = self._start
        return self._start

    def keep(self, position: int) -> None:
        """Forget the bytes before `position`."""
        del self._buffer[: max(0, position - self._start)]
        self._start = max(self._start, position)

    def find(self, pattern: bytes, position: int) -> int:
        """Go to the next `pattern` from `position` on; -1 where there is none."""
        self.seek(position)
        overlap = b""
        while data := self.read(CHUNK):
            overlap += data
            if (offset := overlap.find(pattern)) >= 0:
                offset += self._position - len(overlap)
                self.seek(offset)
                return offset
            overlap = overlap[1 - len(pattern) :]
            self.keep(self._position - len(overlap))
        return -1


def chunks(tape: Tape) -> Chunks:
    """(offset of a gzip member, decompressed bytes) from the first byte that the tape holds; of a
    file that is not compressed (offset of its first byte, bytes). None where a member breaks off.
    """
    start = tape.rewind()
    return _inflated(tape) if tape.peek(start, len(GZIP)) == GZIP else _plain(tape)


def _plain(tape: Tape) -> Chunks:
    start = tape.tell()
    while chunk := tape.read(CHUNK):
        tape.keep(tape.tell())
        yield start, chunk


def _inflated(tape: Tape) -> Chunks:
    """Members where they are expected, and behind a broken one where their magic bytes are. Bytes
    that only look like a member are passed over silently."""
    start = expected = tape.tell()
    while (start := tape.find(GZIP, expected)) >= 0:
        member, is_member, whole = zlib.decompressobj(31), start == expected, False
        try:
            while not member.eof and (data := tape.read(CHUNK)):
                before = member.copy()
                chunk = member.decompress(data)
                tape.keep(max(start, tape.tell() - WINDOW))
                is_member = True
                yield start, chunk
            whole = member.eof
            if whole:
                expected = tape.tell() - len(member.unused_data)
            else:  # damage can make it run over the members behind it, to the end of the file
                expected = max(start + 1, tape.rewind())
        except zlib.error:
            for chunk in _until_error(before, data):
                is_member = True
                yield start, chunk
            expected = max(start + 1, tape.rewind())
        if is_member and not whole:
            yield start, None


def _until_error(member: Any, data: bytes) -> Iterator[bytes]:
    """What can be had of a chunk in which the deflate stream breaks."""
    with suppress(zlib.error):
        for start in range(0, len(data), STEP):
            if chunk := member.decompress(data[start : start + STEP]):
                yield chunk
