"""Speeds of CLIP training that others published, in `published.json`: samples/s of one device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests import disk

PUBLISHED = Path(__file__).parent / "published.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSpeed:
    """One published run in 16 bits with captions padded to the context."""

    model: str
    device: str  # a key of `own_sheets`
    ranks: int
    samples_per_s: float  # of one device
    source: str

    def __post_init__(self) -> None:
        if self.ranks < 1 or not 0 < self.samples_per_s < math.inf:
            raise ValueError(f"{self.ranks} ranks with {self.samples_per_s} samples/s are no run")


def read_speeds(path: str | Path) -> tuple[PublishedSpeed, ...]:
    """The runs of a file. ValueError, with its name, for a wrong one."""
    document: Any = disk.read_json(path)
    speeds = document.get("speeds") if isinstance(document, dict) else None
    disk.check_types(tuple[PublishedSpeed, ...], speeds, f"{path}: speeds")
    assert isinstance(speeds, list)
    return tuple(disk.from_plain(PublishedSpeed, each) for each in speeds)


@functools.cache
def published_speeds() -> tuple[PublishedSpeed, ...]:
    """The published runs that clipmill knows."""
    return read_speeds(PUBLISHED)
