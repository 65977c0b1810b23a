"""What is read of a store: ranges, parts on disk, shards in memory."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from clipmill.train import store as store_module
from clipmill.train.store import (
    HEAD,
    PartCache,
    RangeClient,
    ReadFailed,
    ShardCache,
    coalesce,
    read_with_retries,
)


def ranges(rows, gap, part=1000):
    offset, length = np.array(rows, np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "GAP", gap)
        patch.setattr(store_module, "PART", part)
        return coalesce(offset, length)


def spans(of):
    return list(zip(of.start.tolist(), of.length.tolist(), strict=True))


def test_near_rows_share_a_range_and_far_ones_do_not():
    rows = [(0, 10), (15, 10), (31, 5)]
    assert spans(ranges(rows, 5)) == [(0, 25), (31, 5)]
    assert spans(ranges(rows, 6)) == [(0, 36)]
    assert spans(ranges(rows, 4)) == [(0, 10), (15, 10), (31, 5)]


def test_a_range_stays_within_its_size_but_for_one_large_row():
    rows = [(0, 40), (40, 40), (80, 40), (120, 500), (620, 10)]
    assert spans(ranges(rows, 100, 100)) == [(0, 80), (80, 40), (120, 500), (620, 10)]


@pytest.mark.parametrize("gap", [0, 7, 200])
def test_every_row_lies_in_its_range(gap):
    rng = np.random.default_rng(3)
    length = rng.integers(1, 60, 400)
    offset = np.cumsum(length + rng.integers(0, 30, 400))
    chosen = rng.integers(0, 400, 150)  # in any order, some of them twice
    offset, length = offset[chosen], length[chosen]
    found = ranges(list(zip(offset.tolist(), length.tolist(), strict=True)), gap, 300)
    start, size = found.start[found.of_row], found.length[found.of_row]
    assert (start <= offset).all()
    assert (offset + length <= start + size).all()
    assert (found.length <= 300).all()
    assert (np.diff(found.start) > 0).all()
    assert set(found.of_row.tolist()) == set(range(len(found.start)))
    for k in range(len(found.start)):
        here = np.unique(np.stack([offset, offset + length])[:, found.of_row == k], axis=1)
        assert (here[0, 1:] - here[1, :-1] <= gap).all()


# --------------------------------------------------------------------------------------------------


NAME = "ab" + "0" * 30


def name_of(number):
    return f"{number:02x}" + "0" * 30


def never():
    raise AssertionError("it is in the cache")


def test_a_part_is_fetched_once_and_read_by_all(tmp_path):
    caches = [PartCache(str(tmp_path), 10**6) for _ in range(3)]
    assert caches[0].open(NAME) is None
    assert not caches[0].has(NAME)
    part = caches[0].fetch(NAME, lambda: b"0123456789")
    assert part is not None
    assert part.read(2, 3) == b"234"
    assert part.read(8, 5) == b"89"
    for cache in caches:
        assert cache.has(NAME)
        assert cache.fetch(NAME, never) is not None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{NAME}.part"]


@pytest.mark.parametrize("damage", ["torn", "head", "flipped", "longer", "empty"])
def test_a_damaged_part_is_fetched_again(tmp_path, damage, caplog):
    PartCache(str(tmp_path), 10**6).add(NAME, b"x" * 1000)
    path = tmp_path / "ab" / f"{NAME}.part"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[HEAD.size + 500] ^= 4
    changed = {"torn": data[:-1], "head": data[:10], "longer": data + b"x", "empty": b""}
    path.write_bytes(bytes(changed.get(damage, data)))
    cache = PartCache(str(tmp_path), 10**6)
    part = cache.fetch(NAME, lambda: b"y" * 1000)
    assert part is not None
    assert part.read(0, 1000) == b"y" * 1000
    assert f"{NAME}.part is damaged and is fetched again" in caplog.text


def test_the_least_used_parts_go_first_and_can_still_be_read(tmp_path):
    cache = PartCache(str(tmp_path), 10_000)
    first = cache.fetch(name_of(0), lambda: b"0" * 1000)
    for number in range(1, 9):
        cache.add(name_of(number), bytes(1000))
        os.utime(cache._path(name_of(number)), (number, number))
    os.utime(cache._path(name_of(0)), (100, 100))
    other = PartCache(str(tmp_path), 10_000)
    assert other.open(name_of(1)) is not None  # used now
    for number in (20, 21):
        other.add(name_of(number), bytes(1000))
    left = {number for number in range(30) if other.has(name_of(number))}
    assert left == {0, 1, 4, 5, 6, 7, 8, 20, 21}
    assert first is not None
    other.limit = 1
    other.remove_old()
    assert not list(tmp_path.rglob("*.part"))
    assert first.read(0, 3) == b"000"


def test_the_limit_is_kept_while_many_parts_are_written(tmp_path):
    cache = PartCache(str(tmp_path), 50_000)
    most = 0
    for number in range(80):
        cache.add(name_of(number), bytes(2000))
        most = max(most, sum(path.stat().st_size for path in tmp_path.rglob("*.part")))
    assert 40_000 < most <= 50_000 * (1 + 1 / 64) + 2020


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    folder = tmp_path / "ab"
    folder.mkdir()
    old, new = folder / f".{NAME}.part.11", folder / f".{NAME}.part.22"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    PartCache(str(tmp_path), 10**6)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_no_more_turns_it_off_with_one_warning(
    tmp_path, number, monkeypatch, caplog
):
    cache = PartCache(str(tmp_path), 10**6)
    cache.add(name_of(1), b"there")

    def full(self, target):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "rename", full)
    with caplog.at_level(logging.WARNING):
        for part in (2, 3):
            assert cache.fetch(name_of(part), lambda: b"new") is None
    assert not cache.is_on
    assert len(caplog.records) == 1
    assert "takes no more" in caplog.text
    assert ("the disk is full" in caplog.text) == (number == errno.ENOSPC)
    assert cache.fetch(name_of(1), never) is not None  # what is there is still of use
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_a_thread_that_looked_before_a_part_was_there_fails_alone(tmp_path):
    cache = PartCache(str(tmp_path), 10**6)
    has_failed, may_go_on, looks = threading.Event(), threading.Event(), []

    def open_slowly(name, real=cache._open):
        looks.append(name)
        try:
            return real(name)
        except FileNotFoundError:
            if len(looks) == 2:
                has_failed.set()
                assert may_go_on.wait(900)
            raise

    def read():
        other.start()
        assert has_failed.wait(900)
        threading.Timer(0.2, may_go_on.set).start()  # while this thread waits for the other
        return b"data"

    cache._parts._load = open_slowly
    other = threading.Thread(target=cache.open, args=(name_of(1),))
    part = cache.fetch(name_of(1), read)
    other.join()
    assert part is not None
    assert part.read(0, 4) == b"data"


def test_many_threads_and_processes_may_want_one_part(tmp_path):
    caches = [PartCache(str(tmp_path), 10**6) for _ in range(4)]
    start = threading.Barrier(8)
    results: list[bytes] = []

    def want(cache):
        start.wait(900)
        for number in range(20):
            part = cache.fetch(name_of(number), lambda n=number: bytes([n]) * 500)
            assert part is not None
            results.append(part.read(0, 500))

    threads = [threading.Thread(target=want, args=(cache,)) for cache in caches * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(results)) == [bytes([n]) * 500 for n in range(20)]
    assert len(results) == 160


# --------------------------------------------------------------------------------------------------


CONTENT = bytes(range(256)) * 40
URL = "s3://bucket/a.tar"


class Store:
    """An HTTP server with ranges, whose answers can be made wrong. `log`: one entry a request."""

    def __init__(self):
        self.manner = ""
        self.log: list[str] = []
        self.connections = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def setup(self):
                store.connections += 1
                super().setup()

            def do_GET(self):
                store.log.append(self.path)
                first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                body, status = CONTENT[int(first) : int(last) + 1], 206
                if store.manner in ("403", "404", "503"):
                    status, body = int(store.manner), b"no"
                elif store.manner == "no ranges":
                    status, body = 200, CONTENT
                shift = 1 if store.manner == "other range" else 0
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Range", f"bytes {int(first) + shift}-{last}/10240")
                self.end_headers()
                self.wfile.write(body[:5] if store.manner == "short" else body)
                if store.manner in ("short", "closes"):
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def store(monkeypatch):
    one = Store()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    signed = []

    def sign(url):
        signed.append(url)
        return store_module._Address(("http", one.address), f"/a?signed={len(signed)}", 1e18)

    monkeypatch.setattr(store_module, "_sign", sign)
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def test_many_ranges_take_one_signature_and_one_connection_for_each_thread(store):
    client = RangeClient()
    starts = list(range(0, 10_000, 100))
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda start: client.read(URL, start, 100), starts))
        assert b"".join(parts) == CONTENT[:10_000]
        assert set(store.log) == {"/a?signed=1"} or len(set(store.log)) <= 4  # begun at once
        assert store.connections <= 4
    assert client.read(URL, 10_200, 100) == CONTENT[10_200:]  # the object ends before


@pytest.mark.parametrize("manner", ["404", "503", "no ranges", "short", "other range"])
def test_what_is_not_the_plain_case_is_left_to_the_caller(store, manner):
    client = RangeClient()
    assert client.read(URL, 0, 10) == CONTENT[:10]
    store.manner = manner
    assert client.read(URL, 50, 10) is None
    store.manner = ""
    assert client.read(URL, 70, 10) == CONTENT[70:80]  # on a connection without old bytes


def test_a_signature_that_has_run_out_is_made_anew_and_a_refusal_is_final(store):
    client = RangeClient()
    assert client.read(URL, 0, 10) == CONTENT[:10]
    store.manner = "403"
    assert client.read(URL, 0, 10) is None
    assert store.log[-2:] == ["/a?signed=1", "/a?signed=2"]
    store.manner, asked = "", len(store.log)
    assert client.read("s3://bucket/b.tar", 0, 10) is None
    assert len(store.log) == asked  # nobody is asked again
    assert client.read("s3://other/b.tar", 0, 10) == CONTENT[:10]


def test_a_connection_that_the_server_closed_is_opened_again(store):
    client = RangeClient()
    store.manner = "closes"
    for start in range(5):
        assert client.read(URL, start, 10) == CONTENT[start : start + 10]
    assert store.connections == 5


def test_other_stores_and_a_dead_server_are_left_to_the_caller(store):
    client = RangeClient()
    assert client.read("gs://bucket/a.tar", 0, 10) is None
    assert client.read("/local/a.tar", 0, 10) is None
    assert client.read(URL, 0, 0) is None
    assert not store.log
    store.server.server_close()
    assert client.read(URL, 0, 10) is None


def test_without_credentials_or_a_filesystem_the_usual_way_is_taken(monkeypatch):
    def missing(url):
        raise ValueError(f"{url} cannot be opened")

    monkeypatch.setattr(store_module.files, "filesystem", missing)
    client = RangeClient()
    assert client.read(URL, 0, 10) is None
    monkeypatch.setattr(store_module, "_sign", lambda url: pytest.fail("asked again"))
    assert client.read(URL, 0, 10) is None


# --------------------------------------------------------------------------------------------------


class SlowStore:
    """Loads that wait until `together` of them run at the same time."""

    def __init__(self, together):
        self.barrier = threading.Barrier(together, timeout=900)
        self.loads: Counter[int] = Counter()
        self.lock = threading.Lock()

    def load(self, number):
        with self.lock:
            self.loads[number] += 1
        self.barrier.wait()
        return f"shard {number}"


def test_one_shard_is_loaded_once_by_many_threads():
    started, release = threading.Event(), threading.Event()
    loads = Counter[int]()

    def load(number):
        loads[number] += 1
        started.set()
        assert release.wait(900)
        return object()

    cache = ShardCache(4, load)
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(cache, 3) for _ in range(8)]
        assert started.wait(900)
        release.set()
        values = {future.result() for future in futures}
    assert len(values) == 1
    assert loads == {3: 1}


def test_the_values_that_were_used_last_stay():
    loads: list[int] = []

    def load(number):
        loads.append(number)
        return number

    cache = ShardCache(2, load)
    for number in (0, 1, 0, 2, 0, 1):
        assert cache(number) == number
    assert loads == [0, 1, 2, 1]  # 1 was evicted by 2, then 2 by 1


def test_a_load_in_progress_is_not_evicted():
    store = SlowStore(together=4)
    cache = ShardCache(1, store.load)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(cache, range(4)))) == 4
    assert set(store.loads.values()) == {1}


def test_a_failed_load_is_told_to_all_who_wait_and_tried_again():
    failures = iter([OSError("no answer")])
    started, release = threading.Event(), threading.Event()

    def load(number):
        started.set()
        assert release.wait(900)
        if (error := next(failures, None)) is not None:
            raise error
        return number

    cache = ShardCache(2, load)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache, 7)
        assert started.wait(900)
        second = threads.submit(cache, 7)
        while second.running() is False:
            pass
        release.set()
        with pytest.raises(OSError, match="no answer"):
            first.result()
        error = second.exception()
    assert error is None or str(error) == "no answer"  # it waited, or came after the failure
    assert cache(7) == 7


# --------------------------------------------------------------------------------------------------


SILENT = TimeoutError("silent")
WAITS = [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("error", "times", "waits"),
    [
        (TimeoutError("The read operation timed out"), 1, WAITS[:1]),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 5, WAITS),
        (OSError(errno.EBUSY, "SlowDown"), 2, WAITS[:2]),
        (OSError(errno.ESTALE, "Stale file handle"), 1, WAITS[:1]),
        (aiohttp.ServerDisconnectedError("Server disconnected"), 1, WAITS[:1]),
        (SILENT, 6, WAITS),  # then it is a failed read
        (FileNotFoundError(errno.ENOENT, "No such file"), 1, []),
        (PermissionError(errno.EACCES, "Access Denied"), 1, []),
        (ValueError("damaged"), 1, []),
        (KeyError("name"), 1, []),
    ],
    ids=str,
)
def test_a_transient_error_is_repeated_with_growing_waits(monkeypatch, error, times, waits):
    waited, attempts = [], iter(range(times))
    monkeypatch.setattr(store_module.time, "sleep", waited.append)

    def read():
        if next(attempts, None) is not None:
            raise error
        return "data"

    if error is SILENT:
        message = r"00000\.tar could not be read in 6 attempts \(TimeoutError: silent\)"
        with pytest.raises(ReadFailed, match=message) as raised:
            read_with_retries(read, "00000.tar")
        assert raised.value.__cause__ is error
        assert not isinstance(raised.value, (ValueError, OSError))
    elif waits:
        assert read_with_retries(read, "00000.tar") == "data"
    else:
        with pytest.raises(type(error)):
            read_with_retries(read, "00000.tar")
    assert waited == waits
