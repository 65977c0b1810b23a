"""A list of content that must never be stored: hashes of bytes, and perceptual hashes of images.

One hash a line: 64 hex digits are the sha256 of the received bytes, 16 hex digits a perceptual hash
of `manifests/phash.py`. Blank lines and lines that begin with # are skipped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from manifests import disk

SHA256 = re.compile(r"[0-9a-f]{64}")
PHASH = re.compile(r"[0-9a-f]{16}")
IDENTITY_DIGITS = 16

Digests = np.ndarray[Any, np.dtype[np.bytes_]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


class KnownBad:
    """The list in memory, 32 bytes a sha256 and 8 bytes a perceptual hash."""

    def __init__(self, digests: Iterable[str], hashes: Iterable[str], distance: int) -> None:
        """digests, hashes: hex digits. `distance`: bits that a perceptual hash may differ by."""
        unique = sorted({bytes.fromhex(digest) for digest in digests})
        self.digests: Digests = np.array(unique, "S32")
        numbers = sorted({int(each, 16) for each in hashes})
        self.hashes: Hashes = np.array(numbers, np.uint64)
        self.distance = distance

    @classmethod
    def read(cls, path: str, distance: int) -> KnownBad:
        """The list of a file. ValueError for a line that is neither of the two hashes."""
        digests, hashes = _read_lines(path)
        return cls(digests, hashes, distance)

    @property
    def identity(self) -> str:
        """Hash of the list itself: neither its path nor the order of its lines counts."""
        content = hashlib.sha256(self.digests.tobytes())
        content.update(b"phash" + self.hashes.tobytes())
        return content.hexdigest()[:IDENTITY_DIGITS]

    def has_bytes(self, body: bytes) -> bool:
        """Whether the sha256 of these bytes is listed."""
        digest = np.array([hashlib.sha256(body).digest()], "S32")
        position = int(np.searchsorted(self.digests, digest)[0])
        return position < len(self.digests) and bool(self.digests[position] == digest[0])

    def has_image(self, hashes: Iterable[int]) -> bool:
        """Whether one of the perceptual hashes of an image is near a listed one."""
        for each in hashes:
            bits = np.bitwise_count(self.hashes ^ np.uint64(each % 2**64))
            if len(bits) and int(bits.min()) <= self.distance:
                return True
        return False


def _read_lines(path: str) -> tuple[list[str], list[str]]:
    try:
        text = disk.read_bytes(path).decode()
    except FileNotFoundError:
        raise ValueError(f"fetch.known_bad names {path}, which does not exist") from None
    except UnicodeDecodeError:
        raise ValueError(f"fetch.known_bad names {path}, which is not a text file") from None
    digests, hashes = [], []
    for number, line in enumerate(text.splitlines(), 1):
        value = line.strip().lower()
        if SHA256.fullmatch(value):
            digests.append(value)
        elif PHASH.fullmatch(value):
            hashes.append(value)
        elif value and not value.startswith("#"):
            raise ValueError(
                f"{path} line {number} is {line.strip()[:80]!r}; write a sha256 (64 hex digits) or "
                "a perceptual hash (16 hex digits)"
            )
    return digests, hashes
