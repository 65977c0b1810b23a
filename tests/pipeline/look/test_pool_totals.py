from __future__ import annotations

import dataclasses

import pytest

from manifests.records import CrawlCounts
from pipeline.audit.counts import count_pool
from pipeline.look.survey import Survey, totals_of_pool


def test_the_books_are_those_of_the_accounting(pool: str, survey: Survey) -> None:
    counts = count_pool(pool)
    totals = survey.totals
    assert dict(totals.funnel) == {
        "attempted": counts.fetch.attempted,
        "stored": counts.fetch.stored,
    }
    assert {line.reason: line.count for line in totals.reasons} == counts.fetch.reasons
    assert counts.fetch.attempted == counts.fetch.stored + sum(
        line.count for line in totals.reasons
    )
    assert totals.reasons[0].example == "https://img4.example/4.jpg"
    assert totals.reasons[0].kind == "permanent"


def test_links_that_are_no_pairs_have_reasons_of_their_own(survey: Survey) -> None:
    crawl = CrawlCounts(parts=1, links=90, pairs=60, reasons={"no_alt": 10, "scheme": 20})
    counts = dataclasses.replace(survey.counts, crawl=crawl)
    totals = totals_of_pool(counts, survey.rows)
    assert totals.funnel[:2] == (("links", 90), ("pairs", 60))
    assert [(line.reason, line.kind) for line in totals.reasons][:2] == [
        ("scheme", "crawl"),
        ("no_alt", "crawl"),
    ]
    assert sum(line.count for line in totals.reasons if line.kind == "crawl") == 30


def test_no_pool_is_a_mistake(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ValueError, match="is it the folder of a pool"):
        count_pool(str(tmp_path_factory.mktemp("nothing")))
