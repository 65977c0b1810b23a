"""The commonest reasons why the rows of a pool were lost, each with one example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from manifests import disk
from manifests.commits import Commits, read_commits
from pipeline.archives import shortened
from pipeline.crawl.parts import examples, read_parts, reason_totals


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


def top_reasons(pool: str, limit: int = 3, commits: Commits | None = None) -> list[Loss]:
    """The commonest reasons of a pool's lost rows, crawl and fetch together; [] where none is
    lost. Duplicates are not counted as lost: their pair is there once.

    commits: what is committed, if the caller has read it.
    """
    if commits is None:
        commits = read_commits(pool, ["reasons"])
    losses = [*_crawl_losses(pool), *_fetch_losses(commits)]
    losses.sort(key=lambda loss: -loss.count)
    with_examples = []
    for loss in losses[:limit]:
        if loss.stage == "fetch":
            loss = _with_fetch_example(commits, loss)
        with_examples.append(loss)
    return with_examples


def _crawl_losses(pool: str) -> Iterator[Loss]:
    parts = read_parts(pool)
    reasons, first_examples = reason_totals(parts), examples(parts)
    del reasons["duplicate_pair"]
    for reason, count in reasons.items():
        example = first_examples.get(reason, "")
        yield Loss(stage="crawl", reason=reason, count=count, example=example)


def _fetch_losses(commits: Commits) -> Iterator[Loss]:
    for reason, count in commits.reasons().items():
        yield Loss(stage="fetch", reason=reason, count=count, example="")


def _with_fetch_example(commits: Commits, loss: Loss) -> Loss:
    """The loss with the first row of its reason: URL and error message from the sidecar."""
    shard = commits.first_with(loss.reason)
    if shard is None:
        return loss
    where: list[tuple[str, str, Any]] = [("reason", "=", loss.reason)]
    columns = ["url", "error_message", "reason"]
    table = disk.read_parquet(commits.sidecar(shard), columns, where=where)
    row = table.slice(0, 1).to_pylist()[0]
    example = shortened(f"{row['url']} ({row['error_message']})")
    return Loss(stage=loss.stage, reason=loss.reason, count=loss.count, example=example)
