"""One writer at a time: a live lease is respected, an abandoned one is taken over."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.pool import lease
from clipmill.pipeline.pool.lease import (
    LeaseHeld,
    LeaseLost,
    LeaseOwner,
    LeaseRecord,
    PoolWriter,
    hold_lease,
)

ROUNDS = 10
PROCESSES = multiprocessing.get_context("forkserver")


def take_and_wait(pool: str, pipe: Connection) -> None:
    """Take the lease and say so; hold it until a word comes."""
    pipe.recv()
    try:
        with hold_lease(pool, create=True) as held:
            pipe.send(held.fence)
            pipe.recv()
    except LeaseHeld as error:
        pipe.send(str(error))


def start(pool: str, count: int) -> list[tuple[Any, Connection]]:
    processes = []
    for _ in range(count):
        ours, theirs = multiprocessing.Pipe()
        process = PROCESSES.Process(target=take_and_wait, args=(pool, theirs))
        process.start()
        processes.append((process, ours))
    return processes


def record_of(pool: str) -> LeaseRecord:
    record: LeaseRecord = disk.from_plain(LeaseRecord, disk.read_json(PoolLayout(pool).lease_json))
    return record


def write_lease(pool: str, **changes: Any) -> LeaseRecord:
    """The lease of another process."""
    owner = LeaseOwner(
        host="node7", pid=os.getpid(), command="clipmill build r.yaml", started=time.time() - 300,
        machine="another", process="1", token="t",
    )  # fmt: skip
    fields: dict[str, Any] = {
        "fence": 4, "owner": owner, "expires": time.time() + 30, "uptime": 0.0, "because": "",
        **changes,
    }  # fmt: skip
    record = LeaseRecord(**fields)
    disk.write_json(PoolLayout(pool).lease_json, record)
    return record


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_live_lease_is_respected_and_a_free_one_is_taken(store: str, tmp_path: Path) -> None:
    pool = str(tmp_path / "pool") if store == "local" else f"memory://{tmp_path}"
    with hold_lease(pool, create=True) as held:
        assert held.fence == 1
        held.check()
        message = r"is being written by `.*` \(process \d+ on .*, since 0 s\); wait for that"
        with pytest.raises(LeaseHeld, match=message), hold_lease(pool, create=True):
            pass
        PoolWriter(pool, 1).check()
        with pytest.raises(LeaseLost):
            PoolWriter(pool, 2).check()
        PoolWriter(pool).check()
    assert record_of(pool).owner is None
    with hold_lease(pool, create=True) as held:
        assert held.fence == 2
        with pytest.raises(LeaseLost, match="its lease was taken over by"):
            PoolWriter(pool, 1).check()


@pytest.mark.slow
def test_of_two_that_start_at_once_one_wins(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        pool = str(tmp_path / str(number))
        processes = start(pool, 2)
        for _, pipe in processes:
            pipe.send("go")
        answers = [pipe.recv() for _, pipe in processes]
        assert sorted(type(answer) for answer in answers if answer == 1) == [int]
        [refusal] = [answer for answer in answers if answer != 1]
        assert "\n" not in refusal
        assert "lease" in refusal
        for process, pipe in processes:
            if answers.pop(0) == 1:
                pipe.send("end")
            process.join(300)
            assert process.exitcode == 0
        assert record_of(pool).owner is None


def test_the_lease_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    pool = str(tmp_path)
    [(process, pipe)] = start(pool, 1)
    pipe.send("go")
    assert pipe.recv() == 1
    with pytest.raises(LeaseHeld, match=f"process {process.pid} on"), hold_lease(pool, create=True):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join(300)
    with hold_lease(pool, create=True) as held:
        assert held.fence == 2
    assert sorted(os.listdir(pool)) == [".lease-00000002.json", "lease.json"]


def test_a_stopped_owner_is_taken_over_after_the_end_and_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, not killed: it does not renew, and goes on later."""
    monkeypatch.setattr(lease, "LEASE_S", 0.6)
    pool = str(tmp_path)
    with hold_lease(pool, create=True) as first:
        renew, own = lease.Lease.renew, lease.Lease(PoolLayout(pool), record_of(pool))
        monkeypatch.setattr(
            lease.Lease, "renew", lambda each: each.record.fence == first.fence or renew(each)
        )
        time.sleep(1.0)
        with hold_lease(pool, create=True) as second:
            monkeypatch.undo()  # it goes on
            assert (first.fence, second.fence) == (1, 2)
            with pytest.raises(LeaseLost):
                first.check()
            assert not own.renew()
            with pytest.raises(LeaseLost, match=r"because it was not renewed for \d s;"):
                first.check()
            second.check()
    assert record_of(pool).fence == 2


DAY_S = 86400.0


@pytest.mark.parametrize("offset_s", [-DAY_S, -120.0, 120.0, DAY_S])
def test_a_wrong_clock_takes_no_lease_of_a_running_process(
    offset_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, clock = str(tmp_path), time.time
    with hold_lease(pool, create=True) as held:
        monkeypatch.setattr(time, "time", lambda: clock() + offset_s)
        with pytest.raises(LeaseHeld), hold_lease(pool, create=True):
            pass
        held.check()


@pytest.mark.slow
@pytest.mark.parametrize("expires_in_s", [-DAY_S, -1.0, DAY_S])
def test_a_lease_of_another_machine_is_free_when_it_was_not_renewed(
    expires_in_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.5)
    monkeypatch.setattr(lease, "POLL_S", 0.05)
    pool = str(tmp_path)
    record = write_lease(pool, expires=time.time() + expires_in_s)
    begun = time.monotonic()
    with hold_lease(pool, create=True) as held:
        assert held.fence == record.fence + 1
    assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("expires_in_s", [-DAY_S, DAY_S])
def test_a_lease_that_another_machine_renews_is_respected_whatever_its_clock_says(
    expires_in_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.05)
    pool = str(tmp_path)
    record = write_lease(pool, expires=time.time() + expires_in_s)
    renewed = dataclasses.replace(record, expires=record.expires + 20, uptime=20.0)
    timer = threading.Timer(0.15, disk.write_json, (PoolLayout(pool).lease_json, renewed))
    timer.start()
    with pytest.raises(LeaseHeld, match="node7"), hold_lease(pool, create=True):
        pass
    timer.join()
    assert record_of(pool) == renewed


def test_a_lease_of_another_machine_is_refused_at_once_before_its_end(tmp_path: Path) -> None:
    pool = str(tmp_path)
    write_lease(pool)
    message = r"`clipmill build r\.yaml` \(process \d+ on node7, since 5 min\)"
    with pytest.raises(LeaseHeld, match=message), hold_lease(pool, create=True):
        pass


def test_a_process_of_this_machine_that_hangs_loses_its_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool, now = str(tmp_path), time.monotonic()
    write_lease(pool, owner=lease._this_process(), uptime=now - 66, expires=time.time() + DAY_S)
    with hold_lease(pool, create=True) as held:
        assert held.fence == 5
    assert "since 0 s): it was not renewed for 66 s" in caplog.text


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    pool = str(tmp_path)
    owner = dataclasses.replace(lease._this_process(), process="1")
    write_lease(pool, owner=owner, expires=time.time() + DAY_S)
    with hold_lease(pool, create=True) as held:
        assert held.fence == 5


def test_a_claim_whose_owner_ended_before_it_wrote_the_lease_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.1)
    monkeypatch.setattr(lease, "POLL_S", 0.02)
    pool = str(tmp_path)
    record = write_lease(pool, expires=0.0)
    claim = PoolLayout(pool).lease_claim(5)
    disk.write_json(claim, dataclasses.replace(record, fence=5))
    with hold_lease(pool, create=True) as held:
        assert held.fence == 6
    assert sorted(os.listdir(pool)) == [".lease-00000006.json", "lease.json"]
    disk.write_json(
        PoolLayout(pool).lease_claim(7),
        dataclasses.replace(record, fence=7, expires=time.time() + 0.09),
    )
    with pytest.raises(LeaseHeld, match="node7"), hold_lease(pool, create=True):
        pass


def test_a_command_that_may_wait_gets_the_lease_when_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.05)
    monkeypatch.setattr(lease, "LEASE_S", 0.3)
    pool = str(tmp_path)
    write_lease(pool, expires=time.time() + 0.3)
    with hold_lease(pool, wait_s=10, create=True) as held:
        assert held.fence == 5
    monkeypatch.setattr(lease, "LEASE_S", 60.0)
    write_lease(pool)
    with pytest.raises(LeaseHeld), hold_lease(pool, wait_s=0.2, create=True):
        pass


def test_a_lease_is_renewed_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.3)
    pool = str(tmp_path)
    with hold_lease(pool, create=True) as held:
        first = record_of(pool).expires
        until = time.monotonic() + 900
        while record_of(pool).expires <= first and time.monotonic() < until:
            time.sleep(0.02)
        assert record_of(pool).expires > first
        disk.remove(PoolLayout(pool).lease_json)
        with pytest.raises(LeaseLost, match=r"lease\.json was removed"):
            held.check()


def test_a_folder_without_shards_is_left_as_it_is(tmp_path: Path) -> None:
    with hold_lease(str(tmp_path / "typo")) as held:
        assert held.fence is None
        held.check()
    assert not (tmp_path / "typo").exists()


def test_a_file_that_is_no_lease_is_named(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text('{"fence": "4"}')
    message = r"lease\.json is not a lease of clipmill .* remove it if"
    with pytest.raises(ValueError, match=message), hold_lease(str(tmp_path), create=True):
        pass


def test_a_new_lease_removes_what_killed_processes_left_unnamed(tmp_path: Path) -> None:
    left = [
        ".pool.json.partial.77-aa", "index/.index.json.partial.77-aa",
        "scores/caption@1/.00000.parquet.partial.77-aa", "views/raw/.bundle.partial.x",
        "scores/caption@1/00000/.00001.parquet.partial.77-aa",
    ]  # fmt: skip
    kept = [
        "pool.json",
        "..lease-00000002.json.partial.77-aa",
        "views/long/00000.parquet",
        "scores/caption@1/00001/01000.parquet",
        "shards/00000.tar",
    ]
    for name in (*left, *kept):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    with hold_lease(str(tmp_path), create=True):
        assert not [name for name in left if (tmp_path / name).exists()]
        assert all((tmp_path / name).exists() for name in kept)
        assert not (tmp_path / "scores/caption@1/00000").exists()
