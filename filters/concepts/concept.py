"""The concepts of a caption: which entries of the user's list occur in it, as MetaCLIP matches
them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from filters.base import FREE, Batch, Columns, Filter
from filters.concepts.entries import read_entries
from filters.concepts.matcher import Matcher, Rule, can_occur, check_installed
from manifests import disk

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Concept(Filter):
    """concept_entries: numbers of the entries that occur in the caption, ascending, from 0.
    concept_count: how many.

    entries: a text file with one entry a line, or a JSON list. rule: `spaces` is MetaCLIP 1's rule,
    `scripts` that of MetaCLIP 2, see `matcher.py`. ignore_case: MetaCLIP compares as it is written.
    """

    name: ClassVar[str] = "concept"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "concept_entries": pa.list_(pa.int32()),
        "concept_count": pa.int32(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "concept_entries": "numbers of the listed entries that occur in the caption, from 0",
        "concept_count": "how many listed entries occur in the caption",
    }
    entries: str = field(metadata=FREE)  # identity() says what is in it
    rule: Rule = "spaces"
    ignore_case: bool = False
    matcher: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.entries = os.path.abspath(self.entries)  # a worker may start in another folder
        if not os.path.isfile(self.entries):
            raise ValueError(
                f"filter concept: there is no file {self.entries}; "
                "give a list of entries, one a line or as JSON"
            )

    def identity(self) -> str:
        return disk.file_sha256(self.entries)

    def check(self) -> None:
        check_installed()
        read_entries(self.entries)

    def setup(self) -> None:
        entries = read_entries(self.entries)
        if silent := [entry for entry in entries if not can_occur(entry)]:
            logger.warning(
                "%d of %d entries can never occur, such as %r: MetaCLIP's rule puts a space on "
                "both sides of the marks , . ; : ? ! ` of a caption",
                len(silent),
                len(entries),
                silent[0],
            )
        self.matcher = Matcher(entries, self.rule, ignore_case=self.ignore_case)

    def score(self, batch: Batch) -> Columns:
        entries = self.matcher.match(batch.captions)
        return {"concept_entries": entries, "concept_count": pc.list_value_length(entries)}
