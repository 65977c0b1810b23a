"""What reads every row of a pool after its images are there: scores, views, page, export, blend.

Two pools without images: one with columns of scores and two views, as benchmarks/pools/look.py
makes them, and one whose rows have captions and hashes, a fifth of them copies of others.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.scaling import growth_steps as steps
from clipmill.manifests.schema import FilterSpec
from clipmill.pipeline.audit.integrity import audit_pool
from clipmill.train.data.view_rows import open_view
from clipmill.train.mixture.order import Order
from clipmill.train.mixture.schedule import SourceRows

BASE, UNIT = 1_250_000, "rows"
STEPS = [
    "choose", "look", "export", "audit", "tokens", "blend",
    "caption", "duplicate", "concept", "balance",
]  # fmt: skip
SCORED = "captions"  # the folder of the second pool


def prepare(folder: Path, count: int) -> None:
    steps.make_pool(folder, count)
    (folder / SCORED).mkdir()
    steps.make_scored(folder / SCORED, count)


def choose(folder: Path, count: int) -> None:
    """Two views of seven rules, two of them `top`."""
    steps.forget_views(folder)
    steps.views_of_rows(folder, count)


def look(folder: Path, count: int) -> None:
    """The page."""
    steps.page(folder, count)


def export(folder: Path, count: int) -> None:
    """The rows of a view with their scores, joined, as Parquet."""
    steps.export_parquet(folder, count)


def audit(folder: Path, count: int) -> None:
    """The counts of every stage."""
    counts = audit_pool(str(folder / "pool")).counts
    assert counts is not None
    assert sum(counts.fetch.reasons.values()) + counts.fetch.stored == count


def tokens(folder: Path, count: int) -> None:
    """CLIP's tokens of every caption of the first pool."""
    steps.score_by(FilterSpec(name="tokens"), folder)


def blend(folder: Path, count: int) -> None:
    """Two views mixed: every row of both once, in batches of 8,192."""
    sources = []
    for name, weight in (("basic", 0.7), ("top30", 0.3)):
        rows = open_view(str(folder / "pool"), name).shard_rows
        sources.append(SourceRows(name=name, weight=weight, shard_rows=rows))
    order = Order(sources, 8192)
    for step in range(sum(int(source.shard_rows.sum()) for source in sources) // 8192):
        order.batch(step)


def caption(folder: Path, count: int) -> None:
    """The filter `caption`, row by row."""
    steps.caption(folder / SCORED, count)


def duplicate(folder: Path, count: int) -> None:
    """Groups of equal images over the pool."""
    steps.duplicate(folder / SCORED, count)


def concept(folder: Path, count: int) -> None:
    """A list of 1,002 entries searched in the captions."""
    steps.concept(folder / SCORED, count)


def balance(folder: Path, count: int) -> None:
    """At most 20 rows of each entry, by what `concept` found."""
    steps.balance(folder / SCORED, count)
