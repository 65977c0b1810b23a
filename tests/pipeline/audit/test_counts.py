"""Counts of a pool agree with each other, or the contradiction is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk, identity
from manifests.layout import SHARD_VERSION, PoolLayout, pool_fingerprint, read_commit_records
from manifests.records import CrawlCounts, FinalCounts, ScoreCounts
from manifests.schema import Recipe, Source
from pipeline.audit.counts import count_pool, write_pool_json
from pipeline.external.adopt import adopt_tars, tar_tickets
from pipeline.pool.shard_writer import member_block
from tests.support import audited, commands


def test_the_counts_of_a_whole_pool(pool: str) -> None:
    counts = count_pool(pool)
    assert counts.crawl == CrawlCounts(parts=1, links=26, pairs=24, reasons={"empty_alt": 2})
    fetch = counts.fetch
    assert fetch.shards == fetch.planned == len(read_commit_records(pool)) > 1
    assert fetch.attempted == 24 == fetch.stored + sum(fetch.reasons.values())
    assert fetch.reasons == {"dns": 2, "http_4xx": 4}
    assert fetch.classes == {"permanent": 4, "transient": 2}
    assert counts.views["raw"].kept == fetch.stored == 18
    assert list(counts.scores.values()) == [ScoreCounts(rows=24, stored=18, scored=18)]
    assert (counts.complete, counts.problems) == (True, ())


def test_a_row_that_was_retried_counts_once(pool: str) -> None:
    audited.retry_transient(pool)
    counts = count_pool(pool)
    fetch = counts.fetch
    assert (fetch.attempted, fetch.retries, fetch.stored) == (26, 2, 20)
    assert fetch.reasons == {"dns": 2, "http_4xx": 4}
    assert fetch.final == FinalCounts(stored=20, reasons={"http_4xx": 4})
    assert counts.problems == ()


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("count", 1, "shards/00001: {} attempted, but"),
        ("successes", -1, "attempted, but {} stored +"),
        ("failed_to_resize", 1, "with a reason, but failed_to_download + failed_to_resize = "),
        ("task", "other", "rows of task other; the plan has"),
    ],
)
def test_counts_that_contradict_each_other_are_named(
    pool: str, key: str, change: Any, message: str
) -> None:
    path = PoolLayout(pool).commit_record(1)
    record = disk.read_json(path)
    value = record[key] + change if isinstance(change, int) else change
    disk.write_json(path, {**record, key: value})
    problems = count_pool(pool).problems
    assert any(message.format(value) in problem for problem in problems), problems
    assert commands.audit([pool]) == 3
    disk.write_json(path, record)
    assert count_pool(pool).problems == ()


def test_a_reason_of_another_version_is_named(pool: str) -> None:
    path = PoolLayout(pool).commit_record(1)
    record = disk.read_json(path)
    reasons = dict(record["reasons"])
    _, rows = reasons.popitem()
    reasons["eclipse"] = rows
    disk.write_json(path, {**record, "reasons": reasons})
    counts = count_pool(pool)
    assert any("rows have the reason 'eclipse', which is none of" in p for p in counts.problems)
    assert counts.fetch.reasons["eclipse"] == rows
    assert commands.audit([pool]) == 3


def test_links_that_are_lost_are_named(pool: str) -> None:
    path = PoolLayout(pool).pairs_part(0)
    table, metadata = disk.read_parquet(path), disk.read_metadata(path)
    disk.write_parquet(path, table, {**metadata, "links": 27})
    assert count_pool(pool).problems == (
        "pairs/part-00000.parquet: 27 links, but 24 pairs + 2 dropped",
    )
    longer = pa.concat_tables([table, table.slice(0, 1)])
    disk.write_parquet(path, longer, {**metadata, "links": 27, "pairs": 25})
    assert count_pool(pool).problems == (
        "all shards are committed with 24 rows, but there are 25 pairs",
    )


def test_a_tar_of_the_recipe_that_was_not_adopted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(member_block("x.txt", b"words") + bytes(1024))
    pool = str(tmp_path / "pool")
    source = Source(kind="shards", paths=(str(tmp_path / "*.tar"),))
    disk.write_json(PoolLayout(pool).recipe_json, Recipe(name="r", source=source))
    work = adopt_tars({"pool": pool})
    for done, ticket in enumerate(tar_tickets(source), 1):
        work(ticket)
        counts = count_pool(pool)
        assert (counts.fetch.shards, counts.fetch.planned) == (done, 2)
        assert counts.complete == (done == 2)
    (tmp_path / "a.tar").unlink()
    (tmp_path / "b.tar").unlink()
    assert "there is no tar at" in count_pool(pool).problems[0]


def test_pool_json_can_be_made_again(pool: str) -> None:
    first = write_pool_json(pool, audited.RECIPE, {"crawl": 1.5, "fetch": 2.0})
    assert first == disk.read_json(disk.join(pool, "pool.json"))
    assert (first["recipe"], first["recipe_hash"]) == (
        "audited",
        identity.recipe_hash(audited.RECIPE),
    )
    assert first["fingerprint"] == pool_fingerprint(read_commit_records(pool))
    assert first["fetch"]["stored"] == 18
    assert first["versions"]["shard"] == [SHARD_VERSION]
    again = write_pool_json(pool, audited.RECIPE, {"fetch": 0.5})
    assert again["seconds"] == {"crawl": 1.5, "fetch": 2.5}
    disk.remove(disk.join(pool, "pool.json"))
    assert {**write_pool_json(pool, audited.RECIPE, {}), "seconds": 0} == {**first, "seconds": 0}
