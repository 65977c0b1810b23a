"""At most one command writes into a pool: a lease with an owner, an end and a number (its fence).

Whoever creates the claim file of the next fence has the lease; `lease.json` says who that is and is
renewed. A worker that publishes compares the fence that it was given with that of `lease.json`, so
that the workers of a command whose lease was taken over are refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from manifests import disk
from manifests.pool_layout import PoolLayout
from pipeline.pool.commits import remove_partial_files

LEASE_S = 60.0  # a lease that was not renewed for so long may be taken over
RENEWALS = 3  # in that time
POLL_S = 1.0  # between two looks of a command that waits for a lease
MAX_COMMAND = 200  # characters of a command line that are kept
logger = logging.getLogger(__name__)


class LeaseLost(ValueError):
    """Another command has taken the lease over: nothing more may be written."""


class LeaseHeld(ValueError):
    """Another command holds the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOwner:
    """A process that holds a lease, and what tells on its machine whether it still runs."""

    host: str
    pid: int
    command: str
    started: float  # when it took the lease, in seconds since 1970
    machine: str | None  # boot and process namespace; None where there is no /proc
    process: str | None  # start time of the process: a number may be used again
    token: str  # no two claims are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """lease.json, and each claim file."""

    fence: int
    owner: LeaseOwner | None  # None: the lease was given back
    expires: float  # seconds since 1970


@dataclass(slots=True)
class Lease:
    """A lease that this process holds, or none (`fence` is None) on a folder without a pool."""

    pool: str
    record: LeaseRecord | None = None
    lost: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def fence(self) -> int | None:
        """What the workers compare before they publish."""
        return None if self.record is None else self.record.fence

    def check(self) -> None:
        """LeaseLost where another command has taken the lease over."""
        if self.lost:
            raise LeaseLost(_lost_message(self.pool, _read(self.pool)))
        check_fence(self.pool, self.fence)

    def renew(self) -> bool:
        """Move the end of the lease; False where another command has taken it over."""
        assert self.record is not None
        there = _read(self.pool)
        if there is None or there.fence > self.record.fence:
            self.lost = True
            return False
        expires = time.time() + LEASE_S
        self.record = LeaseRecord(fence=self.record.fence, owner=self.record.owner, expires=expires)
        disk.write_json(PoolLayout(self.pool).lease_json, self.record)
        return True

    def keep(self) -> None:
        """Renew the lease until it is given back or lost. It runs in a thread."""
        while not self._stop.wait(LEASE_S / RENEWALS):
            try:
                if not self.renew():
                    logger.error("%s", _lost_message(self.pool, _read(self.pool)))
                    return
            except (OSError, ValueError) as error:  # the next renewal may work
                logger.warning("the lease of %s could not be renewed: %s", self.pool, error)

    def give_back(self, thread: threading.Thread) -> None:
        """Stop renewing and mark the lease as free; its fence stays in the file."""
        self._stop.set()
        thread.join()
        there = _read(self.pool)
        if self.lost or there is None or there.fence != self.fence:
            return
        free = LeaseRecord(fence=there.fence, owner=None, expires=0.0)
        disk.write_json(PoolLayout(self.pool).lease_json, free)


@contextlib.contextmanager
def hold_lease(pool: str, wait_s: float = 0.0, *, create: bool = False) -> Iterator[Lease]:
    """Hold the lease of a pool while the body runs; LeaseHeld where another command has it.

    `wait_s` is how long to wait for that one. Unless `create` is set, a folder without shards gets
    no lease: the body says itself what is missing.
    """
    if not create and not disk.exists(PoolLayout(pool).shards):
        yield Lease(pool)
        return
    lease = Lease(pool, _acquire(pool, wait_s))
    remove_partial_files(pool)
    thread = threading.Thread(target=lease.keep, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        lease.give_back(thread)


def check_fence(pool: str, fence: int | None) -> None:
    """LeaseLost where the lease with this fence is not the pool's last one. None is not checked."""
    if fence is None:
        return
    there = _read(pool)
    if there is None or there.fence != fence:
        raise LeaseLost(_lost_message(pool, there))


def live_owner(pool: str) -> LeaseOwner | None:
    """The process that holds the lease of a pool; None where it is free, or its owner has ended."""
    record = _read(pool)
    return record.owner if record is not None and _is_live(record) else None


def _acquire(pool: str, wait_s: float) -> LeaseRecord:
    """The lease, as soon as it is free; LeaseHeld after `wait_s` seconds."""
    ends = time.monotonic() + wait_s
    waiting = False
    while True:
        try:
            return _take(pool)
        except LeaseHeld as error:
            if time.monotonic() >= ends:
                raise
            if not waiting:
                logger.info("waiting up to %.0f s: %s", wait_s, error)
            waiting = True
            time.sleep(min(POLL_S, max(0.0, ends - time.monotonic())))


def _take(pool: str) -> LeaseRecord:
    """Claim the next fence and write lease.json. LeaseHeld where another process was faster."""
    layout = PoolLayout(pool)
    before = _read(pool)
    if before is not None and _is_live(before):
        raise LeaseHeld(_held_message(pool, before))
    first = fence = 0 if before is None else before.fence
    while True:
        fence += 1
        record = LeaseRecord(fence=fence, owner=_this_process(), expires=time.time() + LEASE_S)
        try:
            disk.create_json(layout.lease_claim(fence), record)
            break
        except FileExistsError:
            other = _read(pool, layout.lease_claim(fence))
            if other is None or _is_live(other):  # None: its owner has just removed it
                raise LeaseHeld(_held_message(pool, other)) from None
    after = _read(pool)
    if after is not None and after.fence >= fence:  # it was taken and given back in the meantime
        disk.remove(layout.lease_claim(fence))
        raise LeaseHeld(_held_message(pool, after))
    disk.write_json(layout.lease_json, record)
    for old in range(max(first, 1), fence):
        disk.remove(layout.lease_claim(old))
    if before is not None and before.owner is not None:
        logger.warning("%s: taken over from %s, which has ended", pool, _owner_text(before.owner))
    return record


def _read(pool: str, path: str | None = None) -> LeaseRecord | None:
    """lease.json of a pool, or a claim file; None where there is none."""
    path = path or PoolLayout(pool).lease_json
    try:
        document = disk.read_json(path)
        disk.check_types(LeaseRecord, document, "LeaseRecord")
        record: LeaseRecord = disk.from_plain(LeaseRecord, document)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{path} is not a lease of clipmill ({error}); remove it if nothing writes into the "
            "pool"
        ) from None
    return record


def _is_live(record: LeaseRecord) -> bool:
    """Whether the owner may still write: it is not known to have ended, and not silent for long."""
    if record.owner is None or record.expires < time.time():
        return False
    return not _has_ended(record.owner)


def _has_ended(owner: LeaseOwner) -> bool:
    """True for a process of this machine that does not run any more; False where that is unknown,
    on another machine or in another container.
    """
    if owner.machine is None or owner.machine != _machine():
        return False
    return _process_start(owner.pid) != owner.process


def _this_process() -> LeaseOwner:
    return LeaseOwner(
        host=socket.gethostname(),
        pid=os.getpid(),
        command=shlex.join(sys.argv)[:MAX_COMMAND],
        started=time.time(),
        machine=_machine(),
        process=_process_start(os.getpid()),
        token=secrets.token_hex(8),
    )


def _machine() -> str | None:
    """The boot of this machine and the namespace of its process numbers; None without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _owner_text(owner: LeaseOwner) -> str:
    age = max(0.0, time.time() - owner.started)
    shown = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} min"
    return f"`{owner.command}` (process {owner.pid} on {owner.host}, since {shown})"


def _held_message(pool: str, record: LeaseRecord | None) -> str:
    if record is None or record.owner is None:
        return f"{pool}: another command took its lease at the same moment; run this one again"
    return (
        f"{pool} is being written by {_owner_text(record.owner)}; wait for that command or end it: "
        f"its lease ends within {LEASE_S:.0f} s of its end"
    )


def _lost_message(pool: str, record: LeaseRecord | None) -> str:
    if record is None:
        return f"{pool}: its lease.json was removed while it was written; run the command again"
    owner = "another command" if record.owner is None else _owner_text(record.owner)
    return (
        f"{pool}: its lease was taken over by {owner}, because this command did not renew it in "
        "time; nothing more is written"
    )
