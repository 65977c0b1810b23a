"""A store in this process, over a folder: every request waits, and all share one line.

`slow:///tmp/pool` is the folder /tmp/pool. Waiting takes no processor time, so a machine with other
work measures latency as a quiet one does.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import ClassVar

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class SlowStore(AbstractFileSystem):  # type: ignore[misc]
    """Reads of local files that cost a request each. Set `wait_s` and the like on the class."""

    protocol = "slow"
    cachable = False
    wait_s = 0.0  # of a request
    bytes_per_s = float("inf")  # of all requests together
    failures = 0  # of the next reads of bytes, each as a time-out
    requests: ClassVar[list[tuple[str, str, int]]] = []  # (kind, file name, bytes)
    most_at_once = 0
    _at_once = 0
    _line_free = 0.0
    _lock = threading.Lock()

    @classmethod
    def reset(cls, wait_s=0.0, bytes_per_s=float("inf")):
        """Forget what was asked, and set the costs."""
        cls.wait_s, cls.bytes_per_s = wait_s, bytes_per_s
        cls.failures, cls.requests, cls.most_at_once, cls._line_free = 0, [], 0, 0.0

    @classmethod
    def reads(cls, suffix=".tar"):
        """The requests for bytes of files of this kind."""
        return [each for each in cls.requests if each[0] == "read" and each[1].endswith(suffix)]

    @classmethod
    def request(cls, kind, path, size=0):
        """Wait as one request does, and count it."""
        with cls._lock:
            cls.requests.append((kind, path.rpartition("/")[2], size))
            cls._at_once += 1
            cls.most_at_once = max(cls.most_at_once, cls._at_once)
            now = time.monotonic()
            cls._line_free = max(cls._line_free, now) + size / cls.bytes_per_s
            wait = cls.wait_s + cls._line_free - now
            fails = kind == "read" and cls.failures > 0
            cls.failures -= fails
        if wait > 0:
            time.sleep(wait)
        with cls._lock:
            cls._at_once -= 1
        if fails:
            raise TimeoutError("the read timed out")

    def info(self, path, **_):
        self.request("info", path)
        return self._details(self._strip_protocol(path))

    def ls(self, path, detail=True, **_):
        self.request("list", path)
        folder = self._strip_protocol(path)
        paths = [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
        return [self._details(each) for each in paths] if detail else paths

    def cat_file(self, path, start=None, end=None, **_):
        data = _bytes_of(self._strip_protocol(path), start or 0, end)
        self.request("read", path, len(data))
        return data

    def _open(self, path, mode="rb", **options):
        return _SlowFile(self, path, mode, **options)

    @staticmethod
    def _details(path):
        is_folder = Path(path).is_dir()
        size = Path(path).stat().st_size  # FileNotFoundError where there is none
        return {"name": path, "size": size, "type": "directory" if is_folder else "file"}


class _SlowFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start, end):
        data = _bytes_of(self.path, start, end)
        SlowStore.request("read", self.path, len(data))
        return data


def _bytes_of(path, start, end):
    with open(path, "rb") as f:
        f.seek(start)
        return f.read() if end is None else f.read(end - start)


def register():
    """Make slow:// known to fsspec."""
    fsspec.register_implementation("slow", SlowStore, clobber=True)
