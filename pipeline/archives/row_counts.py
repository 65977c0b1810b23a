"""Counts of the rows of a part that are no pairs: by reason, each with the first as an example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from manifests.text import printable

LONGEST_EXAMPLE = 200  # characters


class PartCounts(Counter[str]):
    """`links`, `pairs`, `damaged_records` and every reason of one part; `examples` has the first
    row of each reason."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, str] = {}


def reject(counts: Counter[str], reason: str, example: str) -> None:
    """Count a row that is no pair. Its example is kept where `counts` is PartCounts."""
    counts[reason] += 1
    if isinstance(counts, PartCounts) and reason not in counts.examples:
        counts.examples[reason] = shortened(example)


def reject_images(
    counts: Counter[str], reasons: Mapping[int, str], page: str, urls: Callable[[int], object]
) -> None:
    """Count the images of a page that are no pairs, given as {number: reason}. `urls` has the link
    of an image: it is asked only for the first of a reason."""
    examples = counts.examples if isinstance(counts, PartCounts) else {}
    for number, reason in reasons.items():
        counts[reason] += 1
        if reason not in examples:
            examples[reason] = shortened(f"{page}: {urls(number)!r}")


def shortened(text: str) -> str:
    """Printable text of at most LONGEST_EXAMPLE characters. Text of web pages is not trusted."""
    text = printable(text)
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
