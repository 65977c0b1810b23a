from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manifests.schema import TarStream
from tests.support.other_tars import pack
from train.data import tar_streams
from train.data.damage import StageTimes
from train.data.tar_streams import Share, StreamCounts, TarReader
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


def test_two_readers_share_the_tars(tars: list[str]) -> None:
    keys: list[str] = []
    for number in range(2):
        with reader_of(tars, reader=number, of=2) as (reader, _):
            keys += [reader.take().key for _ in range(2 * ROWS)]
    assert len(set(keys)) == 4 * ROWS


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
