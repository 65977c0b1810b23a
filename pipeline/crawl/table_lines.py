"""Lines of a text file in bounded memory: a line without end costs itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, AnyStr

LONGEST_LINE = 1 << 26  # characters or bytes, as many as the longest field of a .csv has


def bounded_lines(stream: IO[AnyStr]) -> Iterator[AnyStr | None]:
    """The lines of a file with their ends; None for one of more than LONGEST_LINE characters."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or _ends(line):
            yield line
            continue
        while (rest := stream.readline(LONGEST_LINE)) and not _ends(rest):
            pass
        yield None


def _ends(line: str | bytes) -> bool:
    return line[-1:] in ("\n", "\r", b"\n")
