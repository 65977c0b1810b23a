"""What was lost and why: counts by reason, each with one example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from manifests import disk
from manifests.pool_layout import PoolLayout, read_commit_records
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
        counts.examples[reason] = _shortened(example)


def reject_images(
    counts: Counter[str], reasons: Mapping[int, str], page: str, urls: Callable[[int], object]
) -> None:
    """Count the images of a page that are no pairs, given as {number: reason}. `urls` has the link
    of an image: it is asked only for the first of a reason."""
    examples = counts.examples if isinstance(counts, PartCounts) else {}
    for number, reason in reasons.items():
        counts[reason] += 1
        if reason not in examples:
            examples[reason] = _shortened(f"{page}: {urls(number)!r}")


def _shortened(text: str) -> str:
    """Printable text of at most LONGEST_EXAMPLE characters: what a web page says is not trusted."""
    text = printable(text)
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How many rows a stage lost for one reason, and one of them."""

    stage: str  # crawl or fetch
    reason: str
    count: int
    example: str

    def __str__(self) -> str:
        example = f", for example {self.example}" if self.example else ""
        return f"{self.count:,} {self.reason} in {self.stage}{example}"


def top_reasons(pool: str, limit: int = 3) -> list[Loss]:
    """The commonest reasons of a pool's lost rows, crawl and fetch together; [] where none is
    lost. Duplicates are not counted as lost: their pair is there once."""
    losses = [*_crawl_losses(pool), *_fetch_losses(pool)]
    losses.sort(key=lambda loss: -loss.count)
    with_examples = []
    for loss in losses[:limit]:
        if loss.stage == "fetch":
            loss = _with_fetch_example(pool, loss)
        with_examples.append(loss)
    return with_examples


def _crawl_losses(pool: str) -> Iterator[Loss]:
    layout = PoolLayout(pool)
    reasons, examples = Counter[str](), dict[str, str]()
    for name in disk.list_names(layout.pairs, ".parquet"):
        metadata = disk.read_metadata(disk.join(layout.pairs, name))
        reasons.update(metadata.get("reasons", {}))
        for reason, example in metadata.get("examples", {}).items():
            examples.setdefault(reason, example)
    del reasons["duplicate_pair"]
    for reason, count in reasons.items():
        yield Loss(stage="crawl", reason=reason, count=count, example=examples.get(reason, ""))


def _fetch_losses(pool: str) -> Iterator[Loss]:
    reasons = Counter[str]()
    for record in read_commit_records(pool).values():
        reasons.update(record.reasons)
    for reason, count in reasons.items():
        yield Loss(stage="fetch", reason=reason, count=count, example="")


def _with_fetch_example(pool: str, loss: Loss) -> Loss:
    """The loss with the first row of its reason: URL and error message from the sidecar."""
    layout = PoolLayout(pool)
    for shard, record in read_commit_records(pool).items():
        if loss.reason in record.reasons:
            where: list[tuple[str, str, Any]] = [("reason", "=", loss.reason)]
            columns = ["url", "error_message", "reason"]
            table = disk.read_parquet(layout.sidecar(shard), columns, where=where)
            row = table.slice(0, 1).to_pylist()[0]
            example = _shortened(f"{row['url']} ({row['error_message']})")
            return Loss(stage=loss.stage, reason=loss.reason, count=loss.count, example=example)
    return loss
