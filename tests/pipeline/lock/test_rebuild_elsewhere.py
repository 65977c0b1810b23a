"""A pool from a lock where both lie on an S3 server, and by Ray's workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import read_commits
from manifests.disk import files
from manifests.layout import PoolLayout
from pipeline.audit.integrity import verify
from pipeline.lock.lock_writer import write_lock
from tests.support import commands, locked_pools
from tests.support.locked_pools import image, rows_of, tars, words
from tests.support.s3_server import s3_server, s3_variables
from tests.support.web_files import FileServer

COUNT = 45  # in three shards
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of botocore
]


@pytest.fixture(scope="module")
def web() -> Iterator[FileServer]:
    with locked_pools.serve(COUNT) as web:
        yield web


@pytest.fixture(scope="module")
def first(web: FileServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return locked_pools.build_first(web, tmp_path_factory.mktemp("first"), COUNT)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("localbucket")
    s3fs = pytest.importorskip("s3fs")
    with s3_server(tmp_path) as url:
        for name, value in s3_variables(url).items():
            monkeypatch.setenv(name, value)
        files._conditional.clear()
        yield "s3://pools"
    s3fs.S3FileSystem.clear_instance_cache()


def build_words(web: FileServer, lock: str, pool: str, engine: str) -> list[str]:
    return ["--from-lock", lock, "--out", pool, "--engine", engine, "--set", *words(web)]


def check_rebuilt(first: str, second: str) -> None:
    """The second pool is complete and whole, and has the tars of the first."""
    assert tars(second) == tars(first)
    document = disk.read_json(PoolLayout(second).pool_json)
    assert (document["complete"], document["problems"]) == (True, [])
    drift = disk.read_json(PoolLayout(second).drift_json)
    assert (drift["same"], drift["drift"]) == (COUNT, {})
    assert set(document["views"]) == {"locked", "long", "raw"}
    assert not list(verify(second))


def test_a_pool_on_a_store_is_locked_and_built_again_there(
    first: str, web: FileServer, bucket: str
) -> None:
    lock, second = f"{bucket}/locks/a.lock.parquet", f"{bucket}/second"
    assert commands.audit(["lock", first, lock]) == 0
    assert disk.list_names(f"{bucket}/locks") == ["a.lock.parquet"]
    assert commands.build(build_words(web, lock, second, "inline")) == 0
    check_rebuilt(first, second)
    asked = sum(web.hits.values())
    assert commands.build(build_words(web, lock, second, "inline")) == 0  # nothing is left to do
    assert sum(web.hits.values()) == asked
    again = write_lock(second, f"{bucket}/locks/b.lock.parquet")
    assert again.head.rows_sha256 == write_lock(first, f"{bucket}/locks/c.parquet").head.rows_sha256


def test_a_build_on_a_store_refuses_what_was_substituted(
    first: str, web: FileServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, second = f"{bucket}/a.lock.parquet", f"{bucket}/second"
    write_lock(first, lock)
    for i in (3, 30):
        monkeypatch.setitem(web.files, f"/{i}.jpg", image(1000 + i))
    assert commands.build(build_words(web, lock, second, "inline")) == 0
    drift = disk.read_json(PoolLayout(second).drift_json)
    assert (drift["same"], drift["drift"]) == (COUNT - 2, {"substituted": 2})
    lost = {row["url"].rpartition("/")[2] for row in rows_of(second) if row["reason"] is not None}
    assert lost == {"3.jpg", "30.jpg"}


@pytest.mark.ray
def test_workers_of_ray_build_a_pool_from_a_lock(first: str, web: FileServer, bucket: str) -> None:
    lock, second = write_lock(first, f"{bucket}/a.lock.parquet").path, f"{bucket}/by_ray"
    assert commands.build(build_words(web, lock, second, "ray")) == 0
    check_rebuilt(first, second)
    assert len(read_commits(second)) == len(read_commits(first)) == 3
