"""What a ticket did, in rows and bytes, from what its worker returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Rows that have an outcome, those among them that are stored, bytes, and the reasons of the
    others.
    """

    rows: int = 0
    stored: int = 0
    bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


Measurer = Callable[[Mapping[str, Any]], Measure]


def measure_commit(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that returns the plain commit record of a shard."""
    return Measure(
        rows=int(result["count"]),
        stored=int(result["successes"]),
        bytes=int(result["tar_bytes"]),
        reasons=result["reasons"],
    )


def measure_links(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that reads a part of a source: links or rows, and the pairs among them."""
    return Measure(rows=int(result["links"]), stored=int(result["pairs"]))


def measure_scored(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that scores a shard: a row of each score set."""
    rows = sum(result["scored"].values())
    return Measure(rows=rows, stored=rows)
