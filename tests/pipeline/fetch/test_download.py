"""A planned shard becomes one committed shard. Every pair has its outcome, and a second run
requests nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk, ray_runtime
from clipmill.manifests.columns import PAIRS, REASONS, SIDECAR, VOLATILE_COLUMNS
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Pair, Recipe, Source
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket
from clipmill.pipeline.fetch import download
from clipmill.pipeline.fetch.download import (
    Downloader,
    check_locked,
    read_file,
    row_not_asked,
)
from clipmill.pipeline.fetch.fetcher import Fetched, Fetcher
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.planning.plan_files import rows_of_shard
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardJob, ShardWriter
from tests.support import plans
from tests.support.commit_records import read_commit_records
from tests.support.pairs import write_part
from tests.support.sidecars import read_sidecar


def job_of(pool: Path, fetch: Fetch, kind: Any = "wat") -> ShardJob:
    """What the stage gives to a worker."""
    recipe = Recipe(name="r", source=Source(kind=kind, paths=("a",)), fetch=fetch)
    return ShardJob(out=PoolWriter(str(pool)), recipe=recipe, decoders=1)


@pytest.fixture
def workers() -> Iterator[Callable[..., Downloader]]:
    """Factories as the stage calls them, put away at the end."""
    downloaders: list[Downloader] = []

    def make(pool: Path, fetch: Fetch, kind: str = "wat") -> Downloader:
        downloaders.append(Downloader(job_of(pool, fetch, kind)))
        return downloaders[-1]

    yield make
    for worker in downloaders:
        worker.close()


def planned(
    pool: Path, urls: list[str], fetch: Fetch, kind: str = "wat", **columns: Any
) -> list[Ticket]:
    """A pool with these pairs, `columns` the same in each, and their plan; its tickets."""
    rows = [
        {
            "uid": disk.uid_of(url, f"picture {i}"),
            "url": url,
            "caption": f"picture {i}",
            "title": f"t{i}",
            "link": i,
        }
        | {
            "page_url": "http://page.test/",
            "page_lang": "en",
            "wat": "crawl.wat.gz",
            "warc_offset": 100 + i,
        }
        | columns
        for i, url in enumerate(urls)
    ]
    write_part(pool, pa.Table.from_pylist(rows, schema=PAIRS))
    recipe = Recipe(name="r", source=Source(kind=kind, paths=("crawl.wat.gz",)), fetch=fetch)  # type: ignore[arg-type]
    return [plans.ticket(str(pool), task) for task in plans.planned(str(pool), recipe)]


def rows_by_url(pool: Path, number: int = 0) -> dict[str, dict[str, Any]]:
    return {row["url"]: row for row in read_sidecar(str(pool), number).to_pylist()}


@pytest.mark.slow
def test_pictures_from_the_web_and_what_went_wrong(tmp_path: Path, web: Any, workers: Any) -> None:
    paths = [
        "picture/1",
        "picture/2",
        "status/404",
        "flaky/1/503",
        "bytes/100",
        "truncated",
        "picture/noai?X-Robots-Tag=noai",
    ]
    urls = [f"http://a.web.test/{path}" for path in paths]
    fetch = web.fetch(image_size=32, per_host=4)
    [ticket] = planned(tmp_path, urls, fetch)
    record = workers(tmp_path, fetch)(ticket)
    assert (record.count, record.successes, record.task) == (7, 3, ticket.id)
    assert record.reasons == {
        "http_4xx": 1,
        "not_an_image": 1,
        "optout_header": 1,
        "truncated": 1,
    }
    assert (record.failed_to_download, record.failed_to_resize) == (3, 1)
    rows = rows_by_url(tmp_path)
    good = rows[urls[0]]
    assert good["sha256"] == hashlib.sha256(web.picture).hexdigest()
    assert (good["original_width"], good["original_height"], good["height"]) == (64, 48, 32)
    assert (good["http_status"], good["content_type"], good["attempts"]) == (200, "image/jpeg", 1)
    assert (good["page_url"], good["wat"], good["warc_offset"], good["link"]) == (
        "http://page.test/", "crawl.wat.gz", 100, 0,
    )  # fmt: skip
    assert good["fetched_at"].year > 2020
    assert rows[urls[3]]["attempts"] == 2
    assert rows[urls[4]]["status"] == "failed_to_resize"
    assert rows[urls[4]]["sha256"] == hashlib.sha256(bytes(100)).hexdigest()
    assert json.loads(rows[urls[6]]["optout"])
    data = (tmp_path / "shards/00000.tar").read_bytes()
    member = json.loads(data[good["json_offset"] :][: good["json_length"]])
    assert (member["title"], member["page_url"]) == ("t0", "http://page.test/")
    order = [pair.url for pair in rows_of_shard(PoolLayout(str(tmp_path)), 0)]
    assert list(rows) == order, "rows are in the order of the plan"


def test_a_committed_shard_is_not_fetched_again(tmp_path: Path, web: Any, workers: Any) -> None:
    fetch = web.fetch(image_size=32)
    [ticket] = planned(tmp_path, ["http://a.web.test/picture"], fetch)
    first = workers(tmp_path, fetch)(ticket)
    hits = web.hits.total()
    assert workers(tmp_path, fetch)(ticket) == first
    assert web.hits.total() == hits
    with pytest.raises(ValueError, match=r"was written for task .* the plan has other there"):
        workers(tmp_path, fetch)(Ticket(id="other", group="0", payload=ticket.payload))


@pytest.mark.slow
def test_a_pool_goes_on_with_other_manners(tmp_path: Path, web: Any, workers: Any) -> None:
    urls = [f"http://a.web.test/picture/{i}" for i in range(8)]
    first = web.fetch(image_size=32, rows_per_shard=4, per_host=2)
    second = web.fetch(
        image_size=32,
        rows_per_shard=4,
        per_host=4,
        retries=0,
        deadline_s=8.0,
        user_agent="another/2.0 (+http://b.example)",
    )
    one, two = planned(tmp_path, urls, first)
    record = workers(tmp_path, first)(one)
    assert planned(tmp_path, urls, second) == [one, two]
    worker = workers(tmp_path, second)
    assert worker(one) == record
    assert worker(two).successes == 4
    records = read_commit_records(str(tmp_path)).values()
    manners = [record.manners or {} for record in records]
    assert [each["per_host"] for each in manners] == [2, 4]
    assert [each["deadline_s"] for each in manners] == [first.deadline_s, 8.0]
    assert manners[1]["user_agent"] == "another/2.0 (+http://b.example)"
    assert "img2dataset_python" not in manners[0], "a path of one machine"
    assert web.requests[-1][2]["user-agent"] == "another/2.0 (+http://b.example)"


@pytest.mark.slow
def test_two_builds_give_the_same_bytes_and_robots_txt_is_read_once(
    tmp_path: Path, web: Any, workers: Any
) -> None:
    urls = [f"http://a.web.test/picture/{i}" for i in range(12)]
    fetch = web.fetch(image_size=32, rows_per_shard=4)
    records = []
    for pool in (tmp_path / "a", tmp_path / "b"):
        before = web.hits["a.web.test/robots.txt"]
        worker = workers(pool, fetch)
        records.append([worker(ticket) for ticket in planned(pool, urls, fetch)])
        assert web.hits["a.web.test/robots.txt"] - before == 1
    assert len(records[0]) == 3
    for one, other in zip(*records, strict=True):
        assert (one.tar_sha256, one.sidecar_sha256) == (
            other.tar_sha256,
            other.sidecar_sha256,
        )


def test_half_of_a_surrogate_pair_in_the_signals_of_a_page_is_committed(
    tmp_path: Path, web: Any, workers: Any
) -> None:
    url, robots = "http://a.web.test/picture/1", r'{"meta": ["\ud800", "caf\udce9"]}'
    fetch = web.fetch(image_size=32)
    [ticket] = planned(tmp_path, [url], fetch, robots=robots)
    assert workers(tmp_path, fetch)(ticket).successes == 1
    optout = json.loads(rows_by_url(tmp_path)[url]["optout"])
    assert optout["page"] == {"meta": ["\ufffd", "café"]}


@pytest.mark.slow
def test_the_outcome_does_not_depend_on_the_order_of_arrival(
    tmp_path: Path, web: Any, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = web.fetch(image_size=32)
    hashes = set()
    for step in (1, -1):

        async def arriving(
            self: Any, pairs: Any, number: int, step: int = step
        ) -> AsyncIterator[Any]:
            for row in list(range(len(pairs)))[::step]:
                await asyncio.sleep(0)
                if row % 3 == 0:
                    yield row, Fetched(body=None, reason="dns", detail="no such name")
                else:
                    yield row, Fetched(body=web.picture, reason=None, http_status=200, attempts=1)

        monkeypatch.setattr(Fetcher, "fetch", arriving)
        pool = tmp_path / str(step)
        [ticket] = planned(pool, [f"http://h{i}.test/" for i in range(40)], fetch)
        record = workers(pool, fetch)(ticket)
        assert (record.successes, record.reasons) == (26, {"dns": 14})
        hashes.add((record.tar_sha256, record.sidecar_sha256))
    assert len(hashes) == 1


def mixed(hosts: int, rows: int) -> list[str]:
    """URLs of pictures, faults, redirects to other hosts and slow answers."""
    paths = [
        "picture/{i}",
        "status/404?{i}",
        "slow/0.05?{i}",
        "truncated/{i}",
        "flaky/1/503?{i}",
        "redirect?to=http://h0.web.test/picture/{i}",
        "bytes/100?{i}",
        "picture/{i}?X-Robots-Tag=noai",
    ]
    return [
        f"http://h{i % hosts}.web.test/" + paths[i % len(paths)].format(i=i) for i in range(rows)
    ]


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_bytes_whatever_runs_at_once(tmp_path: Path, web: Any) -> None:
    shards: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    fetch = web.fetch(image_size=32, rows_per_shard=15, retries=1)
    for engine, ahead in (("inline", 1), ("inline", 3), ("ray", 1), ("ray", 2)):
        web.hits.clear()
        pool = tmp_path / f"{engine}{ahead}"
        tickets = planned(pool, mixed(7, 120), fetch)
        work = Stage(name="fetch", work=Downloader, job=job_of(pool, fetch), concurrency=ahead)
        report = execute(work, tickets, engine=engine)  # type: ignore[arg-type]
        assert report.failed == {}
        shards[engine, ahead] = [
            (record.tar_sha256, steady(pool, name))
            for name, record in read_commit_records(str(pool)).items()
        ]
    ray_runtime.disconnect()
    first, *others = shards.values()
    assert len(first) >= 8
    assert all(other == first for other in others)


def steady(pool: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a sidecar without what may differ."""
    columns = [column for column in SIDECAR.names if column not in VOLATILE_COLUMNS]
    return list(read_sidecar(str(pool), name, columns).to_pylist())


@pytest.mark.slow
def test_stragglers_of_a_shard_overlap_the_next(tmp_path: Path, web: Any) -> None:
    """Three shards, each with rows that take 4 s: 12 s one after the other, 4 s at once."""
    urls = [
        f"http://h{i}.web.test/" + (f"slow/4?{i}" if i % 10 == 0 else f"picture/{i}")
        for i in range(60)
    ]
    fetch = web.fetch(image_size=32, rows_per_shard=20)
    order: list[tuple[float, str]] = []
    real = ShardWriter.add

    def record_time(self: Any, row: int, record: Any, *rest: Any) -> None:
        order.append((time.monotonic(), record["url"]))
        real(self, row, record, *rest)

    tickets = planned(tmp_path, urls, fetch)
    assert len(tickets) >= 3
    job = job_of(tmp_path, fetch)
    work = Stage(name="fetch", work=Downloader, job=job, concurrency=len(tickets))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "add", record_time)
        report = execute(work, tickets, engine="inline")
    assert report.failed == {}
    quick = [at for at, url in order if "picture" in url]
    slow = [at for at, url in order if "slow" in url]
    assert max(quick) < min(slow), "every quick row of every shard ends before the first slow one"


def test_what_breaks_under_way_commits_nothing(
    tmp_path: Path, web: Any, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = web.fetch(image_size=32)
    [ticket] = planned(tmp_path, [f"http://a.web.test/picture/{i}" for i in range(4)], fetch)
    real = ShardWriter.add

    def broken(self: Any, row: int, *args: Any) -> None:
        if row == 2:
            raise OSError(28, "No space left on device")
        real(self, row, *args)

    worker = workers(tmp_path, fetch)
    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", broken)
        with pytest.raises(OSError, match="No space left"):
            worker(ticket)
    assert read_commit_records(str(tmp_path)) == {}
    assert worker(ticket).successes == 4, "the worker goes on"


def test_local_files(tmp_path: Path, web: Any, workers: Any) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "good.jpg").write_bytes(web.picture)
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "big.jpg").write_bytes(bytes(5000))
    (folder / "text.jpg").write_bytes(b"words and words")
    urls = [
        str(folder / name) for name in ("good.jpg", "empty.jpg", "big.jpg", "text.jpg", "none.jpg")
    ] + [str(folder)]
    fetch = Fetch(image_size=32, max_bytes=4096, rows_per_shard=10)
    [ticket] = planned(tmp_path / "pool", urls, fetch, "files")
    job = job_of(tmp_path / "pool", fetch, "files")
    stage = Stage(name="fetch", work=Downloader, job=job)
    done: dict[str, Any] = {}
    report = execute(stage, [ticket], engine="inline", on_done=done.__setitem__)
    assert report.failed == {}
    assert done[ticket.id]["successes"] == 1
    rows = rows_by_url(tmp_path / "pool")
    assert [rows[url]["reason"] for url in urls] == [
        None, "empty", "too_many_bytes", "not_an_image", "missing_file", "missing_file",
    ]  # fmt: skip
    assert rows[urls[4]]["error_message"] == "No such file or directory"
    assert rows[urls[0]]["sha256"] == hashlib.sha256(web.picture).hexdigest()
    assert rows[urls[0]]["final_url"] is None


@pytest.mark.slow
def test_a_row_of_a_further_round_names_the_row_that_it_retries(
    tmp_path: Path, web: Any, workers: Any
) -> None:
    urls = ["http://a.web.test/flaky/1/503", "http://a.web.test/picture"]
    fetch = web.fetch(image_size=32, retries=0)
    [ticket] = planned(tmp_path, urls, fetch)
    worker = workers(tmp_path, fetch)
    assert worker(ticket).reasons == {"http_5xx": 1}
    failed = rows_by_url(tmp_path)[urls[0]]
    recipe = Recipe(name="r", source=Source(kind="wat", paths=("crawl.wat.gz",)), fetch=fetch)
    [task] = plans.retried(str(tmp_path), recipe, [failed["key"]])
    record = worker(plans.ticket(str(tmp_path), task))
    assert (record.count, record.successes, record.retries) == (1, 1, 1)
    again = rows_by_url(tmp_path, task.shard)[urls[0]]
    assert (again["retry_of"], again["uid"]) == (failed["key"], failed["uid"])


@pytest.mark.parametrize("outcome", ["http_4xx", "withheld", "unverifiable"])
def test_a_row_that_a_lock_has_not_stored_is_not_asked_for(outcome: str) -> None:
    pair = Pair(uid="a", url="http://x.test/", caption="c", locked_outcome=outcome)
    row = row_not_asked(pair)
    assert row is not None
    assert (row["uid"], row["caption"], row["reason"]) == ("a", "c", "not_locked")
    assert row["error_message"] == f"its outcome in the lock is {outcome}"
    stored = dataclasses.replace(pair, locked_outcome="stored", locked_sha256="ab")
    assert row_not_asked(stored) is None
    assert row_not_asked(dataclasses.replace(pair, locked_outcome=None)) is None
    purged = Pair(uid="a", url=None, caption=None)  # type: ignore[arg-type]
    assert row_not_asked(purged) == {"uid": "a", "reason": "purged"}


def test_the_bytes_of_a_locked_row_must_be_those_of_the_lock() -> None:
    right = hashlib.sha256(b"right").hexdigest()
    pair = Pair(uid="a", url="x", caption="c", locked_outcome="stored", locked_sha256=right)
    check_locked(b"right", pair)
    check_locked(b"any", Pair(uid="a", url="x", caption="c"))
    for body, each in (
        (b"wrong", pair),
        (b"", pair),
        (b"right", dataclasses.replace(pair, locked_sha256=None)),
        (b"right", dataclasses.replace(pair, locked_sha256=right.upper())),
    ):
        with pytest.raises(RejectedImage) as caught:
            check_locked(body, each)
        assert caught.value.reason == "substituted"


def test_a_file_behind_a_url(tmp_path: Path) -> None:
    disk.write_bytes("memory://files/a.jpg", b"bytes")
    assert read_file("memory://files/a.jpg", 10).body == b"bytes"
    assert read_file("memory://files/a.jpg", 4).reason == "too_many_bytes"
    for missing in ("memory://files/none.jpg", "nul\0.jpg", str(tmp_path)):
        fetched = read_file(missing, 10)
        assert (fetched.body, fetched.reason) == (None, "missing_file")
        assert fetched.detail
        assert fetched.reason in REASONS


@pytest.mark.slow
def test_a_worker_tells_of_the_rows_that_have_an_outcome_and_of_slow_hosts(
    tmp_path: Path, web: Any, workers: Any
) -> None:
    fetch = web.fetch(image_size=32, per_host=4, deadline_s=1.0, retries=0)
    paths = ["picture/1", "picture/2", "status/404", "hang"]
    [ticket] = planned(tmp_path, [f"http://a.web.test/{path}" for path in paths], fetch)
    worker = workers(tmp_path, fetch)
    assert json.loads(worker.progress()) == {"tickets": {}, "hosts": []}
    thread = threading.Thread(target=worker, args=(ticket,))
    thread.start()
    told = []
    while thread.is_alive():
        told += json.loads(worker.progress())["tickets"].values()
        time.sleep(0.02)
    thread.join()
    assert all(each["total"] == 4 for each in told)
    rows = [each["rows"] for each in told]
    assert rows == sorted(rows)
    assert max(rows) >= 3
    report = json.loads(worker.progress())
    assert report["tickets"] == {}, "its rows are in the commit record now"
    [host] = report["hosts"]
    assert (host["host"], host["rows"], host["reason"]) == ("a.web.test", 1, "deadline")
    assert host["seconds"] >= 1.0


def test_a_file_that_is_never_read_ends_with_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    read = download.read_file

    def hang(path: str, max_bytes: int) -> Fetched:
        if path.endswith("gone.jpg"):
            never.wait(900)
        return read(path, max_bytes)

    monkeypatch.setattr(download, "read_file", hang)
    monkeypatch.setattr(download, "FILE_DEADLINE_S", 0.1)
    (tmp_path / "a.jpg").write_bytes(b"bytes")
    pairs = [
        Pair(uid=f"{i:032x}", url=str(tmp_path / name), caption="")
        for i, name in enumerate(("gone.jpg", "a.jpg"))
    ]

    async def run() -> list[tuple[str | None, bytes | None]]:
        ends = [end async for _, end in download.read_all(pairs, Fetch())]
        return [(end.reason, end.body) for end in ends]

    assert asyncio.run(run()) == [("deadline", None), (None, b"bytes")]
    never.set()
