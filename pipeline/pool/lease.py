"""At most one command writes into a pool: a lease with an owner, renewals and a number (its fence).

Whoever creates the claim file of the next fence has the lease; `lease.json` says who that is and is
renewed. A command has a `PoolWriter` of its lease, and jobs carry it to the workers. It compares
its fence with that of `lease.json` before it publishes, so that the workers of a command whose
lease was taken over are refused.

Clocks of the day may be wrong or set, so none decides that a lease may be taken over. On the
machine of the owner its process decides, and the machine's monotonic clock. On another machine, or
after a reboot, the command watches the lease: one that does not change for LEASE_S is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import shlex
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.commits import in_threads
from clipmill.manifests.layout import PoolLayout

LEASE_S = 60.0  # a lease that was not renewed for so long may be taken over
RENEWALS = 3  # in that time
POLL_S = 1.0  # between two looks of a command that waits for a lease
REMOVERS = 16  # threads that remove files: a remote store answers each after about 30 ms
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
    expires: float  # seconds since 1970, by the owner's clock
    uptime: float  # of the last renewal, by time.monotonic() of the owner's machine
    because: str  # why the owner could take it


@dataclass(frozen=True, slots=True)
class PoolWriter:
    """Writes into a pool under a lease: LeaseLost where another command has taken it over.

    Plain data, which jobs carry from the command to its workers. Without a fence there is no
    lease to lose: of a folder without a pool, or one that no other process knows.
    """

    pool: str
    fence: int | None = None  # the number of the lease

    @property
    def layout(self) -> PoolLayout:
        """The paths of the pool."""
        return PoolLayout(self.pool)

    def check(self) -> None:
        """LeaseLost where the lease is not the pool's last one."""
        if self.fence is None:
            return
        there = _read(self.layout)
        if there is None or there.fence != self.fence:
            raise LeaseLost(_lost_message(self.layout, self.fence, there))

    def publish(self, staged: Path, path: str) -> None:
        """Give a finished local file its name; it takes the place of one that is there."""
        self.check()
        disk.publish(staged, path)

    def publish_new(self, source: Path | bytes, path: str) -> None:
        """Publish a file of a stage, a finished local file, which is moved, or its bytes.

        A file that is there with the same content counts as success; FileExistsError with both
        hashes where its content is another one.
        """
        self.check()
        if isinstance(source, bytes):
            disk.create_bytes(path, source)
        else:
            disk.create_file(source, path)
            source.unlink()  # it may be the same file: who wrote into it again would change both

    @contextlib.contextmanager
    def parquet_writer(
        self, path: str, schema: pa.Schema, *, new: bool = False, **options: object
    ) -> Iterator[pq.ParquetWriter]:
        """A `disk.parquet_writer` of a file that is published, or published as new, at its end."""
        with disk.scratch_folder("clipmill-table-") as folder:
            staged = folder / "table.parquet"
            with disk.parquet_writer(staged, schema, **options) as writer:
                yield writer
            if new:
                self.publish_new(staged, path)
            else:
                self.publish(staged, path)

    def write_json(self, path: str, document: object, *, sealed: bool = False) -> None:
        """Write a document whole, see `disk.write_json`."""
        self.check()
        disk.write_json(path, document, sealed=sealed)

    def write_parquet(self, path: str, table: pa.Table) -> None:
        """Write a table whole."""
        self.check()
        disk.write_parquet(path, table)

    def remove(self, *paths: str) -> None:
        """Remove files, those of a list in some threads."""
        self.check()
        deque(in_threads(disk.remove, paths, REMOVERS), 0)


@dataclass(slots=True)
class Lease:
    """A lease that this process holds and renews."""

    layout: PoolLayout
    record: LeaseRecord
    _stop: threading.Event = field(default_factory=threading.Event)

    def renew(self) -> bool:
        """Move the end of the lease; False where another command has taken it over."""
        there = _read(self.layout)
        if there is None or there.fence > self.record.fence:
            return False
        self.record = dataclasses.replace(
            self.record, expires=time.time() + LEASE_S, uptime=time.monotonic()
        )
        disk.write_json(self.layout.lease_json, self.record)
        return True

    def keep(self) -> None:
        """Renew the lease until it is given back or lost. It runs in a thread."""
        while not self._stop.wait(LEASE_S / RENEWALS):
            try:
                if not self.renew():
                    lost = _lost_message(self.layout, self.record.fence, _read(self.layout))
                    logger.error("%s", lost)
                    return
            except (OSError, ValueError) as error:  # the next renewal may work
                logger.warning("the lease of %s could not be renewed: %s", self.layout, error)

    def give_back(self, thread: threading.Thread) -> None:
        """Stop renewing and mark the lease as free; its fence stays in the file."""
        self._stop.set()
        thread.join()
        there = _read(self.layout)
        if there is None or there.fence != self.record.fence:
            return
        free = dataclasses.replace(there, owner=None, expires=0.0)
        disk.write_json(self.layout.lease_json, free)


@contextlib.contextmanager
def hold_lease(pool: str, wait_s: float = 0.0, *, create: bool = False) -> Iterator[PoolWriter]:
    """Hold the lease of a pool while the body writes; LeaseHeld where another command has it.

    `wait_s` is how long to wait for that one. Unless `create` is set, a folder without shards gets
    no lease: the body says itself what is missing.
    """
    layout = PoolLayout(pool)
    if not create and not disk.exists(layout.shards):
        yield PoolWriter(pool)
        return
    lease = Lease(layout, _acquire(layout, wait_s))
    remove_partial_files(layout)
    thread = threading.Thread(target=lease.keep, name="lease", daemon=True)
    thread.start()
    try:
        yield PoolWriter(pool, lease.record.fence)
    finally:
        lease.give_back(thread)


def remove_partial_files(layout: PoolLayout) -> None:
    """Remove what killed processes had not yet given its name, outside of the shards.

    Call it under the lease of the pool, before anything is written. Files of the lease itself stay:
    another command may just be asking for it.
    """
    if disk.is_url(layout.root):
        return  # an object is there whole or not at all
    root, shards = disk.local_path(layout.root), disk.local_path(layout.shards)
    for path in root.glob("views/.*.partial-*"):  # masks in the making
        shutil.rmtree(path, ignore_errors=True)
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(folder, name) != shards]
        for name in files:
            if name.startswith(".") and ".partial." in name and "lease" not in name:
                Path(folder, name).unlink(missing_ok=True)
    # A folder of single files beside their bundle, which an error of the disk kept from going.
    for parts in root.glob("scores/*/*/"):
        with contextlib.suppress(OSError):  # it has files
            parts.rmdir()


@dataclass(slots=True)
class LeaseWatch:
    """What a process sees of the leases that others hold, from its first look at them on."""

    # By file: the record, since when it is unchanged, whether it was seen to change
    _seen: dict[str, tuple[LeaseRecord, float, bool]] = field(default_factory=dict)
    # The lease that was looked at last is over by the clock, and no renewal was seen so far.
    is_undecided: bool = False

    def live_owner(self, pool: str) -> LeaseOwner | None:
        """The process that holds the lease of a pool; None where it is free.

        Call it again and again: whether a process of another machine still renews it shows within
        LEASE_S.
        """
        path = PoolLayout(pool).lease_json
        record = _read(PoolLayout(pool))
        return None if record is None or self.why_free(path, record) else record.owner

    def why_free(self, path: str, record: LeaseRecord) -> str | None:
        """Why the lease or claim in a file may be taken; None where its owner may write."""
        self.is_undecided = False
        if record.owner is None:
            return "it was given back"
        now = time.monotonic()
        on_this_machine = record.owner.machine is not None and record.owner.machine == _machine()
        if on_this_machine and _process_start(record.owner.pid) != record.owner.process:
            return "its process had ended"
        last, since, changed = self._seen.get(path, (record, now, False))
        if last != record:
            since, changed = now, True
        self._seen[path] = record, since, changed
        silent_s = now - since
        if on_this_machine and record.uptime <= now:
            silent_s = now - record.uptime
        if silent_s >= LEASE_S:
            return f"it was not renewed for {silent_s:.0f} s"
        says_live = 0 <= record.expires - time.time() <= LEASE_S
        self.is_undecided = not (on_this_machine or says_live or changed)
        return None


def _acquire(layout: PoolLayout, wait_s: float) -> LeaseRecord:
    """The lease, as soon as it is free; LeaseHeld after `wait_s` seconds, or as soon as it is known
    whether its owner renews it.
    """
    ends = time.monotonic() + wait_s
    watch, waiting = LeaseWatch(), False
    while True:
        try:
            return _take(layout, watch)
        except LeaseHeld as error:
            if time.monotonic() >= ends and not watch.is_undecided:
                raise
            if not waiting:
                longest_s = max(wait_s, LEASE_S if watch.is_undecided else 0.0)
                logger.info("waiting up to %.0f s: %s", longest_s, error)
            waiting = True
            left_s = ends - time.monotonic()
            time.sleep(min(POLL_S, left_s) if left_s > 0 else POLL_S)


def _take(layout: PoolLayout, watch: LeaseWatch) -> LeaseRecord:
    """Claim the next fence and write lease.json. LeaseHeld where another process has it."""
    before = _read(layout)
    because: str | None = "there was none"
    if before is not None and (because := watch.why_free(layout.lease_json, before)) is None:
        raise LeaseHeld(_held_message(layout, before))
    assert because is not None
    first = fence = 0 if before is None else before.fence
    while True:
        fence += 1
        record = LeaseRecord(
            fence=fence,
            owner=_this_process(),
            expires=time.time() + LEASE_S,
            uptime=time.monotonic(),
            because=because,
        )
        try:
            disk.create_json(layout.lease_claim(fence), record)
            break
        except FileExistsError:
            claim = layout.lease_claim(fence)
            other = _read(layout, claim)
            if other is None or watch.why_free(claim, other) is None:  # None: just removed
                raise LeaseHeld(_held_message(layout, other)) from None
    after = _read(layout)
    if after is not None and after.fence >= fence:  # it was taken and given back in the meantime
        disk.remove(layout.lease_claim(fence))
        raise LeaseHeld(_held_message(layout, after))
    disk.write_json(layout.lease_json, record)
    for old in range(max(first, 1), fence):
        disk.remove(layout.lease_claim(old))
    if before is not None and before.owner is not None:
        logger.warning(
            "%s: its lease is taken over from %s: %s", layout, _owner_text(before.owner), because
        )
    return record


def _read(layout: PoolLayout, path: str | None = None) -> LeaseRecord | None:
    """lease.json of a pool, or a claim file; None where there is none."""
    path = path or layout.lease_json
    try:
        document = disk.read_json(path)
        record: LeaseRecord = disk.from_plain(LeaseRecord, document)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{path} is not a lease of clipmill ({error}); remove it if nothing writes into the "
            "pool"
        ) from None
    return record


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


def _held_message(layout: PoolLayout, record: LeaseRecord | None) -> str:
    if record is None or record.owner is None:
        return f"{layout}: another command took its lease at the same moment; run this one again"
    return (
        f"{layout} is being written by {_owner_text(record.owner)}; wait for that command or end "
        f"it: its lease is free at its end, for another machine after {LEASE_S:.0f} s without a "
        "renewal"
    )


def _lost_message(layout: PoolLayout, fence: int, record: LeaseRecord | None) -> str:
    """`fence` is that of the command which has lost the lease, `record` the lease now."""
    if record is None:
        return f"{layout}: its lease.json was removed while it was written; run the command again"
    owner = "another command" if record.owner is None else _owner_text(record.owner)
    why = f", because {record.because}" if record.fence == fence + 1 else ""
    return f"{layout}: its lease was taken over by {owner}{why}; nothing more is written"
