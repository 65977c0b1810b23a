"""Which pairs come first: the same for any number of partitions, resumed after a stop, and nothing
is left behind.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Source
from clipmill.pipeline import shuffle
from clipmill.pipeline.crawl import crawler
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.executor import tickets
from clipmill.pipeline.pool.lease import PoolWriter
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
    totals = crawl(source, PoolWriter(pool), "inline")
    left = [[(r["url"], r["caption"], r["link"]) for r in part] for part in rows(pool)]
    assert left == expected(source)
    assert totals["links"] == totals["pairs"] + sum(totals["reasons"].values()) == 1600
    assert disk.list_names(disk.join(pool, "pairs")) == [f"part-{k:05d}.parquet" for k in range(5)]
    assert not disk.list_names(disk.join(pool, "pairs", ".extracted"))


@pytest.mark.parametrize("stop", ["run-uids-", "run-repeated-", "pairs/part-00003"])
def test_a_stop_in_any_step_is_made_good_and_what_is_done_is_not_done_again(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawler, "ROWS_PER_PARTITION", 40)
    source = tables(tmp_path / "in", rows=40)
    crawl(source, PoolWriter(str(tmp_path / "whole")), "inline")
    written: list[str] = []
    before = 0 if stop == "pairs/part-00003" else 2  # of the same step
    stopped = False

    def watched(name: str) -> None:
        real = getattr(disk, name)

        def write(staged: str | Path, path: str | Path) -> None:
            nonlocal stopped
            file = str(path).partition("/pool/")[2]
            if not stopped and stop in file and sum(stop in each for each in written) == before:
                stopped = True
                raise KeyboardInterrupt
            written.append(file)
            real(staged, path)

        monkeypatch.setattr(disk, name, write)

    watched("publish")
    watched("create_file")
    pool = str(tmp_path / "pool")
    with pytest.raises(KeyboardInterrupt):
        crawl(source, PoolWriter(pool), "inline")
    (tmp_path / "pool/pairs/.part-00001.parquet.partial.1").write_bytes(b"half")
    crawl(source, PoolWriter(pool), "inline")
    assert stopped
    assert len(written) == len(set(written))
    assert sorted(path.name for path in (tmp_path / "pool/pairs").glob("*part-*")) == [
        f"part-{k:05d}.parquet" for k in range(5)
    ]
    assert not list((tmp_path / "pool/pairs/.extracted").iterdir())
    for k in range(5):
        name = f"pairs/part-{k:05d}.parquet"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "pool" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.ray
def test_workers_and_killed_workers_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies at a ticket of each step: it is replaced, and the ticket runs again."""
    from clipmill.manifests import ray_runtime

    monkeypatch.setattr(crawler, "ROWS_PER_PARTITION", 300)
    monkeypatch.setattr(crawler, "FEW", 0)
    monkeypatch.setattr(tickets, "RETRY_PAUSE_S", 0.0)
    source, marks = tables(tmp_path / "in"), tmp_path / "marks"
    try:
        for engine in ("inline", "ray"):
            if engine == "ray":
                for step in ("scatter", "gather", "write"):
                    self_kills.mark(marks, step, 1)
                monkeypatch.setattr(shuffle, "Stage", partial(self_kills.dying_stage, str(marks)))
            crawl(source, PoolWriter(str(tmp_path / engine)), engine, workers=2)  # type: ignore[arg-type]
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
    disk.write_parquet(crawler.extracted(PoolLayout(pool), 0), table, metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crawler, "ROWS_PER_PARTITION", -(-len(uids) // partitions))
        assert crawler.commit(PoolWriter(pool), ["x"], {}, "inline", counts=np.array([5])) == {}
    left = disk.read_parquet(PoolLayout(pool).pairs_part(0))
    assert left["link"].to_pylist() == [0, 1, 2, 4]
    assert disk.read_metadata(PoolLayout(pool).pairs_part(0))["reasons"] == {"duplicate_pair": 1}


def test_uids_that_are_no_hexadecimal_are_named_as_the_failure(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**dict.fromkeys(PAIRS.names), "uid": "x" * 32}], schema=PAIRS)
    metadata = {"pairs": 1, "reasons": {}}
    disk.write_parquet(crawler.extracted(PoolLayout(str(tmp_path)), 0), table, metadata)
    failed = crawler.commit(PoolWriter(str(tmp_path)), ["x"], {}, "inline", counts=np.array([1]))
    assert "a uid does not have 32 hex digits" in failed["scatter-00000"]
