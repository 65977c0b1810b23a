"""Bytes of pictures to checked, upright, resized ones, in child processes that may die of it.

`Decoders` runs `check_and_resize` in children started as `python -m pipeline.images.child`, which speak length-prefixed
frames: a crash, a hang or a hunger for memory in a C decoder costs that one picture.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import struct
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, features

from pipeline.images.header import Limits, RejectedImage
from pipeline.images.row_options import Box
from pipeline.images.transform import DecodedImage, contained, limits_of

if TYPE_CHECKING:
    from types import TracebackType

    from manifests.schema import Fetch

ROOT = Path(__file__).resolve().parents[2]
MEMORY_BYTES = (
    1536 * 2**20
)  # of address space per child: 33 MP cost 400 MB, numpy and Pillow 300 MB
OPEN_FILES = 32
RECYCLE = 10_000  # pictures per child: what leaks, leaks no further; a new one costs 0.2 s of CPU
DEADLINE_S = (
    2.5  # of CPU per picture, so that a busy machine changes no outcome: 33 MP cost up to 1.5 s
)
PATIENCE = 4  # times that by the clock, for a child that sleeps
HELLO_S = 60.0  # for a child to import its libraries, on a busy machine
IN_FLIGHT = 4  # pictures that a child has at once: it never waits for the next
CHILD = ("-m", "pipeline.images.child")
INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "TMPDIR",
)  # of the environment: a child has nothing to give away

# --- the child -----------------------------------------------------------------------------------------------------
# Both ways: two big-endian 32-bit lengths, that much JSON, that many bytes. A child greets with an empty frame.

LENGTHS = struct.Struct(">II")
FACTS = ("extension", "width", "height", "original_width", "original_height", "exif")


def _frame(text: bytes, data: bytes) -> bytes:
    return b"".join((LENGTHS.pack(len(text), len(data)), text, data))


def _order(limits: Limits, boxes: Sequence[Box]) -> bytes:
    """What a child is asked to do with a picture."""
    return json.dumps(
        [{name: getattr(limits, name) for name in Limits.__slots__}, list(boxes)]
    ).encode()


def serve(memory_bytes: int, deadline_s: float) -> None:
    """Answers frames on stdin until it is closed. Runs in a child, under limits that end it rather than the machine."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not land among the answers
    Image.init()  # every plugin is imported now: later there are few files to open
    if features.check("avif"):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a child per core already
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(_frame(b"{}", b""))
    answers.flush()
    known, limits, boxes = b"", None, ()
    while len(lengths := source.read(LENGTHS.size)) == LENGTHS.size:
        head, size = LENGTHS.unpack(lengths)
        if (
            order := source.read(head)
        ) != known or limits is None:  # most pictures of a run have the same
            settings, boxes = json.loads(order)
            known, limits = order, Limits(**settings)
        body = source.read(size)
        signal.setitimer(
            signal.ITIMER_PROF, deadline_s
        )  # SIGPROF ends the process, in C code and as an orphan too
        try:
            picture = contained(body, limits, boxes)
            found, data = {n: getattr(picture, n) for n in FACTS}, picture.data
        except RejectedImage as bad:
            found, data = {"reason": bad.reason, "detail": bad.detail}, b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(_frame(json.dumps(found).encode(), data))
        answers.flush()


# --- the parent ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    frame: bytes
    answer: asyncio.Future[DecodedImage | RejectedImage]


@dataclass(slots=True, eq=False)
class _Child:
    process: asyncio.subprocess.Process
    jobs: deque[_Job]  # sent and not answered; it works on the first
    sent: int = 0
    overdue: asyncio.TimerHandle | None = None
    late: bool = False  # it was ended because its picture took too long


class Decoders:
    """Child processes that decode. `async with Decoders() as decoders: await decoders.decode(body, settings)`.

    A child that dies, or is killed at the deadline, costs the picture it was working on; the others that it had been
    sent go to the next child.
    """

    def __init__(
        self,
        children: int | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        recycle: int = RECYCLE,
        in_flight: int = IN_FLIGHT,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._count = children or os.cpu_count() or 1
        self._patience_s = deadline_s * PATIENCE
        self._recycle = recycle
        self._in_flight = in_flight
        self._command = (sys.executable, *CHILD, str(memory_bytes), str(deadline_s))
        self._waiting: deque[_Job] = deque()
        self._children: list[_Child] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self._places: list[asyncio.Task[None]] = []
        self._closing = False
        self._broken: BaseException | None = None
        self._settings: Fetch | None = None  # of the last picture, and what a child is told of them
        self._plain = b""

    async def __aenter__(self) -> Decoders:
        for _ in range(self._count):
            place = asyncio.create_task(self._place())
            place.add_done_callback(self._left)
            self._places.append(place)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        for child in self._children:
            _hang_up(child)
        _, hanging = await asyncio.wait(self._places, timeout=1.0)
        for child in self._children:
            _kill(child.process)
        if hanging:
            await asyncio.wait(hanging, timeout=1.0)
        for place in self._places:
            place.cancel()
        await asyncio.gather(*self._places, return_exceptions=True)
        for process in self._processes:  # of a place that was cancelled while it started one
            _kill(process)
            await _ended(process)
        for job in self._waiting:
            job.answer.cancel()

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are at work."""
        return [child.process.pid for child in self._children]

    async def decode(
        self, body: bytes, settings: Fetch, boxes: Sequence[Box] = ()
    ) -> DecodedImage | RejectedImage:
        """What `check_and_resize` gives or raises, from a child. RuntimeError where no child can be started."""
        if self._broken is not None:
            raise self._broken
        if self._settings is not settings:
            self._settings, self._plain = settings, _order(limits_of(settings), ())
        order = _order(limits_of(settings), boxes) if boxes else self._plain
        job = _Job(_frame(order, body), asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._feed()
        return await job.answer

    def _feed(self) -> None:
        """Sends what waits to the children that have the least to do."""
        while self._waiting:
            free = [c for c in self._children if self._takes(c)]
            if not free:
                return
            job = self._waiting.popleft()
            if job.answer.done():  # given up by who asked
                continue
            child = min(free, key=lambda c: len(c.jobs))
            assert child.process.stdin is not None
            child.process.stdin.write(job.frame)
            child.sent += 1
            child.jobs.append(job)
            if len(child.jobs) == 1:
                self._watch(child)

    def _takes(self, child: _Child) -> bool:
        """Whether one more picture can be sent to it; one that has died is not out of the list at once."""
        assert child.process.stdin is not None
        return (
            len(child.jobs) < self._in_flight
            and child.sent < self._recycle
            and not child.process.stdin.is_closing()
        )

    def _watch(self, child: _Child) -> None:
        """Gives a child's first picture its time."""
        if child.overdue is not None:
            child.overdue.cancel()
        child.overdue = None
        if child.jobs:
            child.overdue = asyncio.get_running_loop().call_later(
                self._patience_s, self._too_late, child
            )

    def _too_late(self, child: _Child) -> None:
        """The answer may lie in the pipe unread, if this process was busy: one more turn of the loop decides."""
        child.overdue = asyncio.get_running_loop().call_later(0.05, self._end_late, child)

    def _end_late(self, child: _Child) -> None:
        child.late = True
        _kill(child.process)

    async def _place(self) -> None:
        """Keeps one child at work, the next one when it ends."""
        while not self._closing:
            child = await self._start()
            if child is None:
                return
            self._children.append(child)
            self._feed()
            await self._read(child)
            self._children.remove(child)
            if child.overdue is not None:
                child.overdue.cancel()
            _hang_up(child)
            code = await _ended(child.process)
            if child.jobs:
                guilty = child.jobs.popleft()
                slow = child.late or code == -signal.SIGPROF
                bad = (
                    RejectedImage("decoder_deadline", "too slow")
                    if slow
                    else RejectedImage("decoder_died", _cause(code))
                )
                if not guilty.answer.done():
                    guilty.answer.set_result(bad)
                self._waiting.extendleft(reversed(child.jobs))
                self._feed()

    def _left(self, place: asyncio.Task[None]) -> None:
        """A place that fails is no picture's fault: everybody who waits hears of it."""
        if place.cancelled() or (error := place.exception()) is None:
            return
        self._broken = self._broken or error
        for job in [*self._waiting, *(job for child in self._children for job in child.jobs)]:
            if not job.answer.done():
                job.answer.set_exception(error)
        self._waiting.clear()

    async def _start(self) -> _Child | None:
        """A child that has greeted; None where all is being closed. RuntimeError where it cannot."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=_environment(),
            limit=2**20,
        )
        self._processes = [p for p in self._processes if p.returncode is None] + [process]
        child = _Child(process, deque())
        try:
            async with asyncio.timeout(HELLO_S):
                await _answer(child)
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                _kill(child.process)
            code = await _ended(process)
            if self._closing:
                return None
            raise RuntimeError(
                f"a decoder ended before its first picture ({_cause(code)})"
            ) from None
        return child

    async def _read(self, child: _Child) -> None:
        """Hands out a child's answers until it ends."""
        try:
            while True:
                head, data = await _answer(child)
                job = child.jobs.popleft()
                self._watch(child)
                if not job.answer.done():
                    job.answer.set_result(_result(head, data))
                if child.sent >= self._recycle and not child.jobs:
                    return
                self._feed()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a child and close its pipes, which asyncio may do only after the event loop has ended."""
    code = await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # there is no public way
    await asyncio.sleep(0)
    return code


async def _answer(child: _Child) -> tuple[dict[str, Any], bytes]:
    assert child.process.stdout is not None
    text, data = LENGTHS.unpack(await child.process.stdout.readexactly(LENGTHS.size))
    whole = await child.process.stdout.readexactly(text + data)
    return json.loads(whole[:text]), whole[text:]


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _result(head: dict[str, Any], data: bytes) -> DecodedImage | RejectedImage:
    return RejectedImage(**head) if "reason" in head else DecodedImage(data=data, **head)


def _hang_up(child: _Child) -> None:
    """Closes a child's stdin, which ends it when it has answered."""
    assert child.process.stdin is not None
    with contextlib.suppress(ConnectionError):
        child.process.stdin.close()


def _kill(process: asyncio.subprocess.Process) -> None:
    if (
        process.returncode is None
    ):  # Popen.kill polls first, which takes the exit status from asyncio's watcher
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
