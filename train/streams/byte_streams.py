"""The bytes of a tar from its beginning to its end: a file, a store, a web server or a command.

Nothing is asked to seek. A source that ends too early is noticed: by the status of its command, by
the length that the server announced, by the checksum of gzip, or by the end mark that every tar
has.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Protocol

from manifests import disk
from manifests.text import printable
from train.data import read_with_retries

COMMAND = "pipe:"
WEB = ("http://", "https://")
BLOCK = 2**20
END = 512  # zero bytes: a tar ends with two such blocks at least
GZIP = b"\x1f\x8b"
WEB_TIMEOUT_S = 60.0  # without a byte
MESSAGE_BYTES = 2000  # of what a command wrote to stderr


class BrokenSource(Exception):
    """A tar that ended too early or cannot be opened; the message is the reason."""


class Source(Protocol):
    """Bytes in their order."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""

    def check_end(self) -> None:
        """BrokenSource where the end that was read is not that of the source."""

    def stop(self) -> None:
        """Let a `read` that waits end soon. From any thread."""

    def close(self) -> None:
        """Free what it holds."""


class _File:
    """A local file, or an object of a store."""

    def __init__(self, path: str) -> None:
        self._stack = contextlib.ExitStack()
        opened = self._stack.enter_context(disk.open_file(path))
        file = opened if disk.is_url(path) else self._stack.enter_context(opened.open("rb"))
        self.read = file.read

    def check_end(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self._stack.close()


class _Web:
    """What a web server sends; it need not know ranges."""

    def __init__(self, url: str) -> None:
        def attempt() -> Any:
            try:
                return urllib.request.urlopen(url, timeout=WEB_TIMEOUT_S)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code >= 500 or error.code == 429:
                    raise ConnectionError(f"status {error.code}") from error
                raise BrokenSource(f"the server answers {error.code} {error.reason}") from None
            except urllib.error.URLError as error:
                if isinstance(error.reason, OSError):
                    raise error.reason from error
                raise

        self._response = read_with_retries(attempt, "it", "check the connection to the server")
        self.read = self._response.read

    def check_end(self) -> None:
        if self._response.length:
            raise BrokenSource(f"the server ended {self._response.length:,} bytes too early")

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self._response.close()


class _Command:
    """What a shell command writes.

    It has a session of its own: Ctrl-C ends the run after its step, and not the command before.
    """

    def __init__(self, command: str) -> None:
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.read = self._process.stdout.read

    def check_end(self) -> None:
        status = self._process.wait()
        if status == 0:
            return
        size = self._messages.seek(0, os.SEEK_END)
        self._messages.seek(max(0, size - MESSAGE_BYTES))
        lines = self._messages.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"with status {status}" if status > 0 else f"by signal {-status}"
        raise BrokenSource(f"the command ended {how}{f': {printable(last)}' if last else ''}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.stop()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._messages.close()


class TarBytes:
    """A source as `tarfile` reads it: unpacked where it is compressed by gzip."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._start = source.read(len(GZIP))
        self._file: gzip.GzipFile | None = None
        if self._start == GZIP:
            self._file = gzip.GzipFile(fileobj=io.BufferedReader(_Joined(self._start, source)))
        self._tail = b""
        self._size = 0

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the tar. BrokenSource for damage of the compressed data."""
        try:
            data = self._read(size)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise BrokenSource(str(error)) from error
        self._size += len(data)
        self._tail = (self._tail + data)[-END:]
        return data

    def _read(self, size: int) -> bytes:
        if self._file is not None:
            return self._file.read(size)
        start, self._start = self._start, b""
        return start + self._source.read(size - len(start))

    def finish(self) -> None:
        """Read what is left. BrokenSource where the source or the tar ended too early, and where
        something follows the tar."""
        follows = False
        while data := self.read(BLOCK):
            follows = follows or bool(data.strip(b"\0"))
        self._source.check_end()
        if follows:
            raise BrokenSource(
                "the tar ends and more data follows: a header is damaged, or another tar is there, "
                "which must be named by itself"
            )
        if self._size % END or self._tail != bytes(END):
            raise BrokenSource("it ends without the end mark of a tar, so it was cut off")

    def close(self) -> None:
        """Free what it holds, but not the source."""
        if self._file is not None:
            self._file.close()


class _Joined(io.RawIOBase):
    """Bytes that were read already, then those of a source."""

    def __init__(self, start: bytes, source: Source) -> None:
        self._start, self._source = start, source

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        start, self._start = self._start, b""
        data = start or self._source.read(len(into))
        into[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_source(name: str) -> Iterator[Source]:
    """The source of a path, a URL or pipe:COMMAND. BrokenSource where it cannot be opened, and
    ReadFailed where a server does not answer."""
    try:
        source: Source
        if name.startswith(COMMAND):
            source = _Command(name.removeprefix(COMMAND))
        elif name.startswith(WEB):
            source = _Web(name)
        else:
            source = _File(name)
    except OSError as error:
        raise BrokenSource(error.strerror or str(error)) from error
    try:
        yield source
    finally:
        source.close()
