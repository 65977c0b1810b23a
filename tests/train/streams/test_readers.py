from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manifests.schema import TarStream
from tests.support.other_tars import pack
from train.data import tar_streams
from train.data.damage import StageTimes
from train.data.tar_streams import (
    LISTED,
    Share,
    StreamCounts,
    TarReader,
    readers_of_rank,
    sum_counts,
    tars_of_reader,
)
from train.data.view_rows import ReadFailed

ROWS = 6


@contextmanager
def reader_of(
    tars: list[str], *, reader: int = 0, of: int = 1, **options: Any
) -> Iterator[tuple[TarReader, StreamCounts]]:
    counts = StreamCounts()
    stream = TarStream(tars=tuple(tars), **options)
    share = Share(name="s", stream=stream, tars=tars, reader=reader, readers=of, seed=3)
    one = TarReader(share, counts, StageTimes())
    try:
        yield one, counts
    finally:
        one.close()
        assert not one._thread.is_alive()


def test_a_pass_gives_every_sample_once_in_another_order(tars: list[str]) -> None:
    with reader_of(tars) as (reader, _):
        passes = [[reader.take().key for _ in range(4 * ROWS)] for _ in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(set(passes[0]))
    assert passes[0] != passes[1]
    assert passes[0] != sorted(passes[0])
    with reader_of(tars) as (again, _):
        assert [again.take().key for _ in range(4 * ROWS)] == passes[0]


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_each_pass_reads_every_tar_once_whatever_the_number_of_readers(readers: int) -> None:
    names = [f"{k}.tar" for k in range(7)]
    read: Counter[tuple[int, str]] = Counter()
    for reader in range(readers):
        entries = range(reader, 3 * len(names), readers)  # of three passes
        read.update(itertools.islice(tars_of_reader(names, reader, readers, 5), len(entries)))
    assert read == Counter(itertools.product(range(3), names))


def test_readers_never_outnumber_tars() -> None:
    assert readers_of_rank(tars=8, world=8, threads=4) == 1
    assert readers_of_rank(tars=100, world=8, threads=16) == 4
    assert readers_of_rank(tars=100, world=1, threads=2) == 2
    assert readers_of_rank(tars=3, world=1, threads=0) == 1


@pytest.mark.parametrize("dead", ["pipe:exit 7", "pipe:head -c 1500 {}", "pipe:cat {}; exit 7"])
def test_a_dead_pipe_ends_the_run_or_is_counted(tars: list[str], dead: str) -> None:
    bad = dead.format(tars[0])
    with (
        reader_of([*tars[1:], bad]) as (reader, _),
        pytest.raises(ReadFailed, match=r"of stream 's' is broken: .*; mend it, or set broken"),
    ):
        [reader.take() for _ in range(20 * ROWS)]
    with reader_of([*tars[1:], bad], broken="count") as (reader, counts):
        keys = {reader.take().key for _ in range(8 * ROWS)}
    assert {f"{k}{row:03d}" for k in (1, 2, 3) for row in range(ROWS)} <= keys
    assert counts.broken
    assert set(counts.reasons) == {bad}


def test_a_source_without_a_usable_sample_is_a_mistake_and_not_a_hang(tmp_path: Path) -> None:
    lonely = [str(pack(tmp_path / f"{k}.tar", [(f"{k}.txt", b"text")])) for k in range(3)]
    with (
        reader_of(lonely) as (reader, _),
        pytest.raises(ValueError, match=r"'s' has no usable sample \(\d+ with no image\)"),
    ):
        reader.take()
    with (
        reader_of([str(tmp_path / "none.tar")], broken="count") as (reader, _),
        pytest.raises(ReadFailed, match="no usable sample"),
    ):
        reader.take()


def test_a_silent_pipe_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_streams, "SILENT_S", 0.3)
    monkeypatch.setattr(tar_streams, "LOOK_S", 0.05)
    began = time.monotonic()
    with (
        reader_of(["pipe:sleep 1000"]) as (reader, _),
        pytest.raises(ReadFailed, match=r"pipe:sleep 1000 of stream 's' gave no sample"),
    ):
        reader.take()
    assert time.monotonic() - began < 60


def test_the_counts_of_ranks_are_added_up_and_few_tars_are_named() -> None:
    one, other = StreamCounts(), StreamCounts()
    for number in range(2 * LISTED):
        one.end_tar(f"{number}.tar", "cut off")
    other.end_tar("a.tar")
    for counts in (one, other, other):
        counts.skip("no image")
    total = sum_counts([one.to_plain(), other.to_plain()])
    assert len(total.pop("broken_tars")) == LISTED
    assert total == {"tars_read": 2 * LISTED + 1, "skipped": {"no image": 3}, "broken": 2 * LISTED}
