"""What the order of a run asks about rows, and what it says about its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from manifests.disk import to_plain
from train.mixing.balance import Chances
from train.rng import Ints


class RowNumbers(Protocol):
    """Numbers of rows that may not be in one batch together: equal where they collide."""

    column: str
    sources: frozenset[int]  # those of which a row may collide with another one

    def __call__(self, source: int, shard: Ints, row: Ints) -> Ints:
        """(rows,) numbers ≥ 0 of kept rows of a source."""


class RowChances(Protocol):
    """Chances of the rows of balanced sources."""

    @property
    def candidates(self) -> Mapping[int, int]:
        """Balanced source -> rows that a draw looks at."""

    def __call__(self, source: int, shard: Ints, row: Ints) -> Chances:
        """(rows,) the chances of kept rows of a balanced source, above 0 and up to 1."""

    def unique(self, source: int, rows: int, drawn: int) -> int:
        """About how many different rows come in so many draws."""

    def identity(self) -> dict[str, Any]:
        """What decides the chances: {name of the source: its rule}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What some steps draw from one source.

    repeats: the mean, drawn / rows. share: of the samples of all sources. unique: different rows,
    of a balanced source an estimate. captions: text column -> draws, where there are several.
    """

    drawn: int
    rows: int
    repeats: float
    share: float
    unique: int
    captions: dict[str, int] | None = None

    def document(self) -> dict[str, Any]:
        """As plain values, without captions where there is one column."""
        plain: dict[str, Any] = to_plain(self)
        if self.captions is None:
            del plain["captions"]
        return plain


class RunOrder(Protocol):
    """Step to rows: `Order`, or `SegmentOrder` of a live run."""

    seed: int

    def batch(self, step: int, rows: range | None = None) -> tuple[Ints, Ints, Ints]:
        """(source, shard, row) of each row of a batch, or of some of its `rows`."""

    def captions(self, step: int, rows: range) -> list[str | None]:
        """The text column of each of some rows of a batch; None: the stored tokens."""

    def substitute(self, source: int, step: int, position: int, attempt: int) -> tuple[int, int]:
        """(shard, row) that replaces row `position` of batch `step`: of the same source."""

    def repeats(self, steps: int) -> dict[str, Repeats]:
        """Per source, what `steps` steps from the start draw."""

    def identity(self) -> dict[str, Any]:
        """Everything that decides the order, as plain values; `fingerprint` is its hash."""

    def fingerprint(self) -> str:
        """Hash of the identity."""
