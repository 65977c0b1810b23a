"""Which pairs come first: the same for any number of partitions, resumed after a stop, and nothing
is left behind.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import PAIRS
from manifests.layout import PoolLayout
from manifests.schema import Source
from pipeline.crawl import crawler
from pipeline.crawl.crawler import crawl
from pipeline.executor import tickets
from tests.support import self_kills


def tables(folder: Path, seed: int = 0, parts: int = 5, rows: int = 400) -> Source:
    """Tables whose rows repeat within and across them; one has no rows, one no new ones."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for k in range(parts):
        count = 0 if k == 2 else rows
        lines = [
            f"http://p.test/{0 if k == 3 else rng.randrange(900)}.jpg,c{rng.randrange(2)}"
            for _ in range(count)
        ]
        (folder / f"{k}.csv").write_text("\n".join(["url,caption", *lines, ""]))
        paths.append(str(folder / f"{k}.csv"))
    return Source(kind="table", paths=tuple(paths))


def rows(pool: str, parts: int = 5) -> list[list[dict[str, Any]]]:
    return [disk.read_parquet(PoolLayout(pool).pairs_part(k)).to_pylist() for k in range(parts)]


def expected(source: Source) -> list[list[tuple[str, str, int]]]:
    """What stays, by the plain rule."""
    seen: set[tuple[str, str]] = set()
    parts: list[list[tuple[str, str, int]]] = []
    for path in source.paths:
        parts.append([])
        for number, line in enumerate(Path(path).read_text().splitlines()[1:]):
            url, caption = line.split(",")
            if (url, caption) not in seen:
                seen.add((url, caption))
                parts[-1].append((url, caption, number))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_partition", [4_000_000, 500, 64])
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_the_first_stays_however_many_partitions_there_are(
    rows_per_partition: int, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawler, "ROWS_PER_PARTITION", rows_per_partition)
    source, pool = tables(tmp_path / "in"), f"{scheme}{tmp_path}/pool"
    totals = crawl(source, pool, "inline")
    assert [[(r["url"], r["caption"], r["link"]) for r in part] for part in rows(pool)] == expected(
        source
    )
    assert totals["links"] == totals["pairs"] + sum(totals["reasons"].values()) == 1600
    assert disk.list_names(disk.join(pool, "pairs")) == [f"part-{k:05d}.parquet" for k in range(5)]
    assert not disk.list_names(disk.join(pool, "pairs", ".extracted"))


@pytest.mark.parametrize("stop", ["run-uids-", "run-repeated-", "pairs/part-00003"])
def test_a_stop_in_any_step_is_made_good_and_what_is_done_is_not_done_again(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawler, "ROWS_PER_PARTITION", 150)
    source = tables(tmp_path / "in")
    crawl(source, str(tmp_path / "whole"), "inline")
    written: list[str] = []
    write, publish, stopped = disk.publish, disk.create_file, False

    def watched(path: str | Path) -> None:
        nonlocal stopped
        name = str(path).partition("/pool/")[2]
        if (
            not stopped
            and stop in name
            and sum(stop in other for other in written) == (stop != "pairs/part-00003") * 2
        ):
            stopped = True
            raise KeyboardInterrupt
        written.append(name)

    def writing(staged: str | Path, path: str | Path) -> None:
        watched(path)
        write(staged, path)

    def publishing(staged: str | Path, path: str | Path) -> None:
        watched(path)
        publish(staged, path)

    monkeypatch.setattr(disk, "publish", writing)
    monkeypatch.setattr(disk, "create_file", publishing)
    pool = str(tmp_path / "pool")
    with pytest.raises(KeyboardInterrupt):
        crawl(source, pool, "inline")
    crawl(source, pool, "inline")
    assert stopped
    assert len(written) == len(set(written))
    for k in range(5):
        assert (tmp_path / f"whole/pairs/part-{k:05d}.parquet").read_bytes() == Path(
            PoolLayout(pool).pairs_part(k)
        ).read_bytes()


def test_a_step_that_fails_is_named_and_nothing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pool = tables(tmp_path / "in"), str(tmp_path / "pool")
    publish = disk.publish

    def full(staged: str | Path, path: str | Path) -> None:
        if "run-repeated-" in str(path):
            raise OSError("no space left")
        publish(staged, path)

    monkeypatch.setattr(disk, "publish", full)
    totals = crawl(source, pool, "inline")
    assert list(totals["failed"]) == ["gather-00000"]
    assert "no space left" in totals["failed"]["gather-00000"]
    assert totals["pairs"] == 0
    monkeypatch.undo()
    assert crawl(source, pool, "inline")["failed"] == {}


@pytest.mark.slow
@pytest.mark.ray
def test_workers_and_killed_workers_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies at a ticket of each step: it is replaced, and the ticket runs again."""
    from manifests import ray_runtime

    monkeypatch.setattr(crawler, "ROWS_PER_PARTITION", 300)
    monkeypatch.setattr(crawler, "FEW", 0)
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0.0)
    source, marks = tables(tmp_path / "in"), tmp_path / "marks"
    try:
        for engine in ("inline", "ray"):
            if engine == "ray":
                for step in ("scatter", "gather", "write"):
                    self_kills.mark(marks, step, 1)
                monkeypatch.setattr(crawler, "Stage", partial(self_kills.dying_stage, str(marks)))
            crawl(source, str(tmp_path / engine), engine, workers=2)  # type: ignore[arg-type]
    finally:
        ray_runtime.disconnect()
    assert not list(marks.iterdir())
    assert rows(str(tmp_path / "inline")) == rows(str(tmp_path / "ray"))


@pytest.mark.parametrize("partitions", [1, 3])
def test_uids_that_are_equal_in_one_half_only_both_stay(partitions: int, tmp_path: Path) -> None:
    """64 of the 128 bits would drop one pair of a billion by chance, and half of them if forged."""
    low, high = "0123456789abcdef", "fedcba9876543210"
    uids = [low + low, high + low, high + high]  # neighbours share their last, their first bits
    uids += [uids[1], "f" * 32]
    pool = str(tmp_path)
    rows = [{**dict.fromkeys(PAIRS.names), "uid": uid, "link": k} for k, uid in enumerate(uids)]
    metadata = {"pairs": len(uids), "reasons": {}, "source_id": "x"}
    table = pa.Table.from_pylist(rows, schema=PAIRS)
    disk.write_parquet(crawler.extracted(pool, 0), table, metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crawler, "ROWS_PER_PARTITION", -(-len(uids) // partitions))
        assert crawler.commit(pool, ["x"], {}, "inline") == {}
    left = disk.read_parquet(PoolLayout(pool).pairs_part(0))
    assert left["link"].to_pylist() == [0, 1, 2, 4]
    assert disk.read_metadata(PoolLayout(pool).pairs_part(0))["reasons"] == {"duplicate_pair": 1}


def test_uids_that_are_no_hexadecimal_are_named_as_the_failure(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**dict.fromkeys(PAIRS.names), "uid": "x" * 32}], schema=PAIRS)
    metadata = {"pairs": 1, "reasons": {}}
    disk.write_parquet(crawler.extracted(str(tmp_path), 0), table, metadata)
    failed = crawler.commit(str(tmp_path), ["x"], {}, "inline")
    assert "a uid does not have 32 hex digits" in failed["scatter-00000"]
