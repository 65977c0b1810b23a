"""A pool on an object store: a real server program on loopback, faults at every n-th request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from clipmill.manifests import disk
from clipmill.manifests.disk import files
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import (
    read_commit_record,
    remove_uncommitted,
    replace_shard,
)
from clipmill.pipeline.pool.tars import index_tar
from tests.support import commands
from tests.support.commit_records import read_commit_records
from tests.support.five_rows import five_rows, write_five
from tests.support.s3_server import (
    FAULTS,
    SHORT_TIMEOUTS,
    FaultyProxy,
    s3_server,
    s3_variables,
)
from tests.support.sidecars import read_sidecar
from tests.support.trials import EVERY

pytest.importorskip("localbucket")
pytest.importorskip("s3fs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of botocore
]


def nth_requests(fault: str, total: int, step: int) -> range:
    """Every n-th request, as CLIPMILL_CHAOS says, else every `step`-th; others for each fault."""
    step = EVERY or step
    return range(1 + FAULTS.index(fault) % step, total + 1, step)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    folder = tmp_path_factory.mktemp("store")
    with s3_server(folder) as url, pytest.MonkeyPatch.context() as patch:
        proxy = FaultyProxy(url)
        for name, value in s3_variables(proxy.url).items():
            patch.setenv(name, value)
        patch.setitem(fsspec.config.conf, "s3", SHORT_TIMEOUTS)
        files._conditional.clear()
        yield proxy
        proxy.close()
        forget_connections()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_PAUSE_S", 0.01)


def forget_connections() -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


# --- one shard ------------------------------------------------------------------------------------


def assert_whole(pool: str) -> None:
    """Every committed shard has the bytes that its record names."""
    layout = PoolLayout(pool)
    for shard, record in read_commit_records(pool).items():
        data = disk.read_bytes(layout.tar(record))
        assert len(data) == record.tar_bytes
        assert files.source_sha256(data) == record.tar_sha256
        sidecar = disk.read_bytes(layout.sidecar(shard, record.revision))
        assert files.source_sha256(sidecar) == record.sidecar_file_sha256


def commit_and_replace(pool: str) -> None:
    write_five(pool)
    replace_shard(PoolWriter(pool), 3, read_sidecar(pool, 3))
    remove_uncommitted(PoolLayout(pool))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_request_of_a_commit_leaves_one_whole_shard(
    proxy: FaultyProxy, fault: str, tmp_path: Path
) -> None:
    expected = write_five(str(tmp_path))
    commit_and_replace(f"s3://pools/{fault}-first")  # the bucket is probed once
    proxy.fail_at(0, fault)
    commit_and_replace(f"s3://pools/{fault}-0")
    total = len(proxy.requests)
    assert total > (4 if fault == "412" else 20)
    # Each timeout takes seconds
    for n in nth_requests(fault, total + 1, 12 if fault == "timeout" else 4):
        pool = f"s3://pools/{fault}-{n}"
        proxy.fail_at(n, fault)
        commit_and_replace(pool)
        failed = proxy.failed
        proxy.fail_at(0, fault)
        record = read_commit_record(PoolLayout(pool), 3)
        assert record is not None, (n, failed)
        assert record.tar_sha256 == expected.tar_sha256
        assert_whole(pool)
        names = disk.list_names(PoolLayout(pool).shards)
        assert names == sorted([record.tar, record.sidecar, "00003_stats.json"]), (n, failed)
        assert (failed is not None) or n >= total


def test_a_committed_object_is_not_overwritten(proxy: FaultyProxy, tmp_path: Path) -> None:
    pool = "s3://pools/twice"
    first = write_five(pool)
    before = disk.read_bytes(PoolLayout(pool).tar(first))
    changed = five_rows()
    changed[0] = (changed[0][0], b"another image", {})
    assert write_five(pool, given=changed) == first
    with pytest.raises(FileExistsError, match="another content"):
        disk.create_bytes(PoolLayout(pool).tar(first), b"other")
    with pytest.raises(FileExistsError, match="another content"):
        disk.replace_bytes(PoolLayout(pool).commit_record(3), b"new", b"not what is there")
    assert disk.read_bytes(PoolLayout(pool).tar(first)) == before
    assert files._conditional == {"s3://pools": True}
    assert len(index_tar(PoolLayout(pool).tar(first))) == 9


def test_ranges_of_an_object_are_those_of_a_local_file(proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.fail_at(0, "503")
    for data in (b"", b"01234"):
        for path in (name := f"s3://pools/ranges/{len(data)}", tmp_path / "x"):
            disk.write_bytes(path, data)
        for start, length in ((0, None), (0, 2), (2, None), (2, 9), (5, None), (5, 2), (7, 1)):
            expected = disk.read_bytes(tmp_path / "x", start, length)
            assert disk.read_bytes(name, start, length) == expected, (data, start, length)


def test_the_stand_in_of_a_store_keeps_nothing_of_half_an_upload(
    proxy: FaultyProxy, tmp_path: Path
) -> None:
    import socket
    from urllib.parse import urlsplit

    proxy.fail_at(0, "503")
    with s3_server(tmp_path) as url:
        for address in map(urlsplit, (proxy.url, url)):
            with socket.create_connection((address.hostname, address.port)) as connection:
                head = b"PUT /pools/half HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
                connection.sendall(head + b"01234")
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
    assert files.info("s3://pools/half") is None
    assert not (tmp_path / "pools" / "half").exists()


def test_a_store_that_is_gone_for_seconds_costs_no_shard(proxy: FaultyProxy) -> None:
    pool = "s3://pools/gone"
    proxy.fail_at(0, "503")
    proxy.go_down(3.0)
    write_five(pool)
    assert_whole(pool)


def test_an_error_that_stays_is_raised_at_once(proxy: FaultyProxy) -> None:
    with pytest.raises(FileNotFoundError):
        disk.read_bytes("s3://pools/none/x")
    with pytest.raises(OSError, match="bucket"):
        disk.write_bytes("s3://no-such-bucket/x", b"1")


# --- a whole build --------------------------------------------------------------------------------


def build_pool(tiny: Path, pool: str, *words: str) -> int:
    return commands.build([str(tiny / "tiny.yaml"), "--out", pool, "--engine", "inline", *words])


def counts(pool: str) -> dict[str, Any]:
    document: dict[str, Any] = disk.read_json(PoolLayout(pool).pool_json)
    return {key: document[key] for key in ("complete", "crawl", "fetch", "views", "problems")}


def test_a_build_on_a_store_is_the_one_on_disk(proxy: FaultyProxy, tiny: Path) -> None:
    local = str(tiny / "local")
    remote_pool = "s3://pools/built"
    assert build_pool(tiny, local) == build_pool(tiny, remote_pool) == 0
    assert counts(local) == counts(remote_pool)
    tars = {}
    for pool in (local, remote_pool):
        records = read_commit_records(pool)
        tars[pool] = [(r.tar_sha256, r.sidecar_sha256) for r in records.values()]
        assert len(records) == 3
    assert tars[local] == tars[remote_pool]
    assert build_pool(tiny, remote_pool) == 0  # nothing is left to do
    assert commands.score([remote_pool, "--filters", "picture", "--engine", "inline"]) == 0
    assert commands.filter_pool([remote_pool, "--recipe", str(tiny / "tiny.yaml"), "--json"]) == 0


@pytest.mark.parametrize("fault", FAULTS if EVERY else ("503", "lost_answer"))
def test_a_fault_at_requests_of_a_build_ends_with_exact_counts(
    proxy: FaultyProxy, fault: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--until", "fetch")
    proxy.fail_at(0, fault)
    clean = f"s3://pools/clean-{fault}"
    assert build_pool(tiny, clean, *words) == 0
    total = len(proxy.requests)
    expected = counts(clean)
    tried = reached = 0
    for n in nth_requests(fault, total, max(1, total // 2)):
        pool = f"s3://pools/build-{fault}-{n}"
        proxy.fail_at(n, fault)
        status = build_pool(tiny, pool, *words)
        reached += proxy.failed is not None
        tried += 1
        errors = capsys.readouterr().err
        proxy.fail_at(0, fault)
        assert_whole(pool)
        if status != 0:
            assert errors.splitlines()[-1].startswith("error: "), (n, errors)
            assert build_pool(tiny, pool, *words) == 0, (n, proxy.failed)
        assert counts(pool) == expected, (n, proxy.failed)
        assert_whole(pool)
    print(json.dumps({"fault": fault, "requests": total, "tried": tried, "reached": reached}))
    assert reached >= tried - 2
