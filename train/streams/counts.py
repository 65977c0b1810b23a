"""What a run has read of its streams, and what it says of them in its log and in run.json."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LISTED = 100  # broken tars that are kept by name


class StreamCounts:
    """Counts of one source, filled by its readers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tars = 0  # read to their end, or to where they are broken
        self.skipped: Counter[str] = Counter()  # samples by reason
        self.broken = 0
        self.reasons: dict[str, str] = {}  # of the first LISTED broken tars

    def skip(self, reason: str) -> None:
        """Count a sample that cannot be used."""
        with self._lock:
            self.skipped[reason] += 1

    def end_tar(self, tar: str, broken: str | None = None) -> None:
        """Count a tar that was read; `broken`: why it ended too early."""
        with self._lock:
            self.tars += 1
            if broken is not None:
                self.broken += 1
                if len(self.reasons) < LISTED:
                    self.reasons[tar] = broken

    def to_plain(self) -> dict[str, Any]:
        """As plain values for JSON."""
        with self._lock:
            return {
                "tars_read": self.tars,
                "skipped": dict(sorted(self.skipped.items())),
                "broken": self.broken,
                "broken_tars": dict(self.reasons),
            }


def sum_counts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of the plain values of several ranks."""
    tars = broken = 0
    skipped: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for part in parts:
        tars += part["tars_read"]
        broken += part["broken"]
        skipped.update(part["skipped"])
        reasons |= part["broken_tars"]
    listed = dict(list(reasons.items())[:LISTED])
    return {
        "tars_read": tars,
        "skipped": dict(sorted(skipped.items())),
        "broken": broken,
        "broken_tars": listed,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDraws:
    """What some steps draw from a source, and what was read for them so far."""

    drawn: int
    share: float
    tars: int  # of the source
    read: Mapping[str, Any] = field(default_factory=dict)  # StreamCounts of this rank

    def document(self) -> dict[str, Any]:
        """As plain values for run.json. The number of rows is not known."""
        return {"drawn": self.drawn, "share": self.share, "tars": self.tars, **self.read}

    def realised(self) -> dict[str, Any]:
        """As a line of the log has it."""
        return {
            "samples": self.drawn,
            "share": self.share,
            "skipped": sum(self.read.get("skipped", {}).values()),
            "broken": self.read.get("broken", 0),
        }
