"""From one lab's pool to another's, through a web on loopback that changes in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import console, disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.disk import files
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.lock.lock_writer import write_lock
from tests.support import commands, locked_pools
from tests.support.locked_pools import image, rebuild, rows_of, tars, words
from tests.support.s3_server import s3_server, s3_variables
from tests.support.web_files import FileServer

ROOT = Path(__file__).resolve().parents[3]
COUNT = 60


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A pool of 58 of 60 images, and its lock."""
    folder = tmp_path_factory.mktemp("first")
    with locked_pools.serve(COUNT) as web:
        del web.files["/3.jpg"], web.files["/33.jpg"]
        pool = locked_pools.build_first(web, folder, COUNT)
    return pool, write_lock(pool, str(folder / "a.lock.parquet")).path


def outcomes(pool: str) -> dict[int, Any]:
    """Reason by number of the image."""
    rows = rows_of(pool, ["url", "reason"])
    return {int(row["url"].rpartition("/")[2][:-4]): row["reason"] for row in rows}


@pytest.mark.slow
def test_what_has_not_changed_is_the_same_byte_for_byte(
    locked: tuple[str, str], tmp_path: Path
) -> None:
    first, lock = locked
    with locked_pools.serve(COUNT) as web:  # the two images that were lost are there again
        totals = rebuild(web, lock, tmp_path / "second")
        assert not {"/3.jpg", "/33.jpg"} & set(web.hits)  # nobody asked for them
        assert sum(web.hits.values()) == COUNT - 2
    second = str(tmp_path / "second")
    assert tars(second) == tars(first)
    assert totals["complete"]
    assert totals["problems"] == []
    drift = totals["drift"]
    assert (drift["same"], drift["drift"], drift["not_asked"]) == (58, {}, {"http_4xx": 2})
    assert drift["same_tars"] == drift["shards"] == len(read_commits(first))
    head = write_lock(second, str(tmp_path / "b.lock.parquet")).head
    assert head.rows_sha256 == write_lock(first, str(tmp_path / "c.parquet")).head.rows_sha256
    assert set(head.views) == {"locked", "long", "raw"}
    assert not list(verify(second))


@pytest.mark.slow
def test_changed_and_lost_images_are_refused_with_their_reasons(
    locked: tuple[str, str], tmp_path: Path
) -> None:
    _, lock = locked
    second = str(tmp_path / "second")
    with locked_pools.serve(COUNT) as web:
        for i in (5, 6, 7):
            web.files[f"/{i}.jpg"] = image(1000 + i)
        web.files["/8.jpg"] = web.files["/8.jpg"] + b"\0"  # the same pixels in other bytes
        web.files["/9.jpg"] = b"<html>moved</html>"
        del web.files["/10.jpg"]
        totals = rebuild(web, lock, Path(second))
    assert totals["drift"]["drift"] == {"http_4xx": 1, "substituted": 5}
    assert totals["drift"]["same"] == 52
    reasons = outcomes(second)
    assert {i for i, reason in reasons.items() if reason == "substituted"} == {5, 6, 7, 8, 9}
    assert {i for i, reason in reasons.items() if reason == "not_locked"} == {3, 33}
    assert reasons[10] == "http_4xx"
    stored = [row for row in rows_of(second) if row["reason"] is None]
    assert len(stored) == 52
    substituted = next(row for row in rows_of(second) if row["reason"] == "substituted")
    assert "sha256 is" in substituted["error_message"]
    counts = count_pool(read_commits(second))
    assert (counts.fetch.attempted, counts.fetch.stored, counts.problems) == (60, 52, ())
    for data in tars(second):
        assert image(1005) not in data


@pytest.mark.slow
def test_a_retry_compares_the_bytes_too(locked: tuple[str, str], tmp_path: Path) -> None:
    _, lock = locked
    second = tmp_path / "second"
    with locked_pools.serve(COUNT) as web:
        for i in (20, 21, 22):
            web.cuts[f"/{i}.jpg"] = 1  # the first answer ends in the middle
        before = rebuild(web, lock, second)
        assert before["drift"]["same"] == 55
        web.files["/21.jpg"] = image(2021)
        after = rebuild(web, lock, second, retry="transient")
    assert after["drift"]["same"] == 57
    assert after["drift"]["drift"] == {"substituted": 1}
    assert after["problems"] == []
    assert after["views"]["locked"]["kept"] == 57


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_pool_on_a_store_is_locked_and_built_again_there(
    locked: tuple[str, str], bucket: str, engine: str
) -> None:
    first, _ = locked
    lock, second = f"{bucket}/locks/a.lock.parquet", f"{bucket}/second"
    assert commands.audit(["lock", first, lock]) == 0
    assert disk.list_names(f"{bucket}/locks") == ["a.lock.parquet"]
    with locked_pools.serve(COUNT) as web:
        argv = ["--from-lock", lock, "--out", second, "--engine", engine, "--set", *words(web)]
        assert commands.build(argv) == 0
        assert commands.build(argv) == 0  # nothing is left to do
        assert sum(web.hits.values()) == COUNT - 2
    assert tars(second) == tars(first)
    document = disk.read_json(PoolLayout(second).pool_json)
    assert (document["complete"], document["problems"]) == (True, [])
    assert set(document["views"]) == {"locked", "long", "raw"}
    drift = disk.read_json(PoolLayout(second).drift_json)
    assert (drift["same"], drift["drift"]) == (COUNT - 2, {})
    assert not list(verify(second))
    again = write_lock(second, f"{bucket}/locks/b.lock.parquet")
    assert again.head.rows_sha256 == write_lock(first, f"{bucket}/locks/c.parquet").head.rows_sha256


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        console.program(command), cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def build_words(web: FileServer, lock: str, pool: Path) -> list[str]:
    out = ["--out", str(pool), "--engine", "inline"]
    return ["build", "--from-lock", lock, *out, "--set", *words(web)]


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on_with_the_same_command(
    locked: tuple[str, str], tmp_path: Path
) -> None:
    first, lock = locked
    pool = tmp_path / "second"
    with locked_pools.serve(COUNT) as web:
        command = build_words(web, lock, pool)
        with subprocess.Popen(
            console.program(command),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            until = time.monotonic() + 900
            while not list((pool / "shards").glob("*_stats.json")):
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
        done = run(*command)
    assert done.returncode == 0, done.stderr
    assert tars(str(pool)) == tars(first)
    assert "the same bytes             58  100.00%" in done.stdout
    assert f"{len(read_commits(first))} of {len(read_commits(first))} tars are the same" in (
        done.stdout
    )


def test_the_commands_end_in_one_plain_line(
    locked: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, lock = locked
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(Path(lock).read_bytes()[:-100])
    out = ["--out", str(tmp_path / "second"), "--engine", "inline"]
    agent = ["--set", "user_agent=x/1"]
    for argv in (
        ["--from-lock", str(damaged), *out, *agent],
        ["--from-lock", str(tmp_path / "none.parquet"), *out, *agent],
        ["--from-lock", lock, *out],
        ["--from-lock", lock, *out, "--set", "image_size=4", *agent[1:]],
        ["recipe.yaml", "--from-lock", lock, *out, *agent],
        ["recipe.yaml", *out, *agent],
        ["--from-lock", lock, *out, *agent, "--until", "crawl"],
    ):
        assert commands.build(argv) == 2, argv
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: "), argv
    assert not (tmp_path / "second" / "plan").exists()
    for argv in (
        ["lock", first, str(tmp_path / "x.txt")],
        ["lock", first, str(tmp_path / "x.parquet"), "--view", "lnog"],
        ["same-rows", first, str(damaged)],
        ["same-rows", first, lock, "--view", "lnog"],
        ["same-rows", first, lock, "--view", "raw", "long"],
        [first, "--view", "raw"],
        ["same-rows", first, lock, "--name", "../raw"],
    ):
        assert commands.audit(argv) == 2, argv
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: "), argv


def test_the_commands_of_the_guide(
    locked: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, lock = locked
    target = str(tmp_path / "b.parquet")
    assert commands.audit(["lock", first, target, "--view", "long", "--json"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    head = json.loads(printed[-1])
    assert (head["rows"], list(head["views"])) == (60, ["long"])
    assert printed[0].startswith("lock ")
    assert commands.audit(["same-rows", first, lock, target, "--view", "long", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["rows_sha256"] == head["views"]["long"]["rows_sha256"]
    assert result["view"] == "same_rows_long"
