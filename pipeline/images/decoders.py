"""Bytes of images to checked, upright, resized images, in child processes.

`Decoders` runs `check_and_resize` in children started as `python -m pipeline.images.child`. They
exchange length-prefixed frames with this process. A crash, an endless loop or too much memory in a
C decoder costs only that image.
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
from typing import TYPE_CHECKING, Any

from PIL import Image, features

from clipmill import ROOT
from clipmill.pipeline.images.header import Limits, RejectedImage
from clipmill.pipeline.images.transform import Box, DecodedImage, contained, limits_of

if TYPE_CHECKING:
    from types import TracebackType

    from clipmill.manifests.schema import Fetch

# Address space per child: 33 MP cost 400 MB, numpy and Pillow 300 MB.
MEMORY_BYTES = 1536 * 2**20
OPEN_FILES = 32
RECYCLE = 10_000  # images per child, because libraries leak; a new child costs 0.2 s of CPU
# CPU time per image, so that a busy machine changes no outcome: 33 MP cost up to 1.5 s.
DEADLINE_S = 2.5
PATIENCE = 4  # times the deadline in wall-clock time, for a child that sleeps
START_S = 60.0  # for a child to import its libraries, on a busy machine
IN_FLIGHT = 4  # images that a child has at once, so that it never waits for the next one
CHILD = ("-m", "clipmill.pipeline.images.child")
# Environment variables of a child: no others, so that it holds no secrets.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
# The C library keeps what an image has freed for the next one. Else the kernel hands out and clears
# 580 pages an image of 400 x 533, which is two fifths of its CPU time.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20)}

# --- the child ------------------------------------------------------------------------------------
# A frame, in both directions: two big-endian 32-bit lengths, then JSON, then bytes. The first frame
# of a child is empty: it is ready.

LENGTHS = struct.Struct(">II")
IMAGE_FIELDS = (
    "extension", "width", "height", "original_width", "original_height", "exif", "hashes",
)  # fmt: skip


def _frame(text: bytes, data: bytes) -> bytes:
    return b"".join((LENGTHS.pack(len(text), len(data)), text, data))


def _instruction(limits: Limits, boxes: Sequence[Box], hashed: bool) -> bytes:
    """What a child does with an image, as JSON: limits, boxes, and whether it hashes."""
    settings = {name: getattr(limits, name) for name in Limits.__slots__}
    return json.dumps([settings, list(boxes), hashed]).encode()


def serve(memory_bytes: int, deadline_s: float) -> None:
    """Answer frames on stdin until it is closed.

    Runs in a child, with limits on memory, open files and CPU time per image.
    """
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    Image.init()  # imports every plugin: later, few files may be opened
    if features.check("avif"):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a child per core already
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(_frame(b"{}", b""))
    answers.flush()
    known, limits, boxes, hashed = b"", None, (), False
    while len(lengths := source.read(LENGTHS.size)) == LENGTHS.size:
        head, size = LENGTHS.unpack(lengths)
        instruction = source.read(head)
        if instruction != known or limits is None:  # most images of a run have the same one
            settings, boxes, hashed = json.loads(instruction)
            known, limits = instruction, Limits(**settings)
        body = source.read(size)
        # SIGPROF ends the process, even in C code and without a parent.
        signal.setitimer(signal.ITIMER_PROF, deadline_s)
        try:
            image = contained(body, limits, boxes, hashed)
            fields = {name: getattr(image, name) for name in IMAGE_FIELDS}
            data = image.data
        except RejectedImage as rejected:
            fields, data = {"reason": rejected.reason, "detail": rejected.detail}, b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(_frame(json.dumps(fields).encode(), data))
        answers.flush()


# --- the parent -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    frame: bytes
    answer: asyncio.Future[DecodedImage | RejectedImage]


@dataclass(slots=True, eq=False)
class _Child:
    process: asyncio.subprocess.Process
    requests: deque[_Request]  # sent and not answered; the child works on the first
    sent: int = 0
    timer: asyncio.TimerHandle | None = None
    is_late: bool = False  # it was killed because its image took too long


class Decoders:
    """Child processes that decode images.

    `async with Decoders() as decoders: await decoders.decode(body, settings)`. A child that dies,
    or is killed at the deadline, costs the image it was working on; its other images are sent to
    another child.
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
        self._waiting: deque[_Request] = deque()
        self._children: list[_Child] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self._slots: list[asyncio.Task[None]] = []
        self._closing = False
        self._broken: BaseException | None = None
        self._settings: Fetch | None = None  # of the last image, and the instruction for it
        self._plain_instruction = b""

    async def __aenter__(self) -> Decoders:
        for _ in range(self._count):
            slot = asyncio.create_task(self._keep_child())
            slot.add_done_callback(self._slot_ended)
            self._slots.append(slot)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        for child in self._children:
            _close_stdin(child)
        _, hanging = await asyncio.wait(self._slots, timeout=1.0)
        for child in self._children:
            _kill(child.process)
        if hanging:
            await asyncio.wait(hanging, timeout=1.0)
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for process in self._processes:  # those that a cancelled slot was starting
            _kill(process)
            await _ended(process)
        for request in self._waiting:
            request.answer.cancel()

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that have started."""
        return [child.process.pid for child in self._children]

    async def decode(
        self, body: bytes, settings: Fetch, boxes: Sequence[Box] = (), *, hashed: bool = False
    ) -> DecodedImage | RejectedImage:
        """What `check_and_resize` returns or raises, from a child; RejectedImage is returned.

        hashed: with the perceptual hashes of the image.

        RuntimeError where no child can be started.
        """
        if self._broken is not None:
            raise self._broken
        if self._settings is not settings:
            self._settings = settings
            self._plain_instruction = _instruction(limits_of(settings), (), False)
        instruction = self._plain_instruction
        if boxes or hashed:
            instruction = _instruction(limits_of(settings), boxes, hashed)
        request = _Request(_frame(instruction, body), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._send_waiting()
        return await request.answer

    def _send_waiting(self) -> None:
        """Send waiting requests to the children that have the fewest."""
        while self._waiting:
            free_children = [c for c in self._children if self._has_room(c)]
            if not free_children:
                return
            request = self._waiting.popleft()
            if request.answer.done():  # its caller was cancelled
                continue
            child = min(free_children, key=lambda c: len(c.requests))
            assert child.process.stdin is not None
            child.process.stdin.write(request.frame)
            child.sent += 1
            child.requests.append(request)
            if len(child.requests) == 1:
                self._start_timer(child)

    def _has_room(self, child: _Child) -> bool:
        """Whether the child can take one more request; a dead one stays in the list for a while."""
        assert child.process.stdin is not None
        return (
            len(child.requests) < self._in_flight
            and child.sent < self._recycle
            and not child.process.stdin.is_closing()
        )

    def _start_timer(self, child: _Child) -> None:
        """Start the deadline of a child's first request."""
        if child.timer is not None:
            child.timer.cancel()
        child.timer = None
        if child.requests:
            child.timer = asyncio.get_running_loop().call_later(
                self._patience_s, self._deadline_passed, child
            )

    def _deadline_passed(self, child: _Child) -> None:
        """Kill the child 50 ms later: its answer may be unread in the pipe of a busy process."""
        child.timer = asyncio.get_running_loop().call_later(0.05, self._kill_late, child)

    def _kill_late(self, child: _Child) -> None:
        child.is_late = True
        _kill(child.process)

    async def _keep_child(self) -> None:
        """Keep one child running: start the next one when it ends."""
        while not self._closing:
            child = await self._start()
            if child is None:
                return
            self._children.append(child)
            self._send_waiting()
            await self._read(child)
            self._children.remove(child)
            if child.timer is not None:
                child.timer.cancel()
            _close_stdin(child)
            code = await _ended(child.process)
            if child.requests:
                current = child.requests.popleft()
                too_slow = child.is_late or code == -signal.SIGPROF
                rejected = (
                    RejectedImage("decoder_deadline", "too slow")
                    if too_slow
                    else RejectedImage("decoder_died", _cause(code))
                )
                if not current.answer.done():
                    current.answer.set_result(rejected)
                self._waiting.extendleft(reversed(child.requests))
                self._send_waiting()

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        """Pass the error of a slot to all requests: no image caused it."""
        if slot.cancelled() or (error := slot.exception()) is None:
            return
        self._broken = self._broken or error
        requests = list(self._waiting)
        for child in self._children:
            requests.extend(child.requests)
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(error)
        self._waiting.clear()

    async def _start(self) -> _Child | None:
        """A child that is ready; None while closing. RuntimeError where it does not start."""
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
            async with asyncio.timeout(START_S):
                await _answer(child)
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                _kill(child.process)
            code = await _ended(process)
            if self._closing:
                return None
            raise RuntimeError(f"a decoder ended before its first image ({_cause(code)})") from None
        return child

    async def _read(self, child: _Child) -> None:
        """Pass a child's answers to their requests until the child ends."""
        try:
            while True:
                head, data = await _answer(child)
                request = child.requests.popleft()
                self._start_timer(child)
                if not request.answer.done():
                    request.answer.set_result(_result(head, data))
                if child.sent >= self._recycle and not child.requests:
                    return
                self._send_waiting()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a child and close its pipes.

    asyncio itself may close them too late, after the event loop has ended.
    """
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
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        **environment,
        **MALLOC,
        "PYTHONPATH": ROOT,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _result(head: dict[str, Any], data: bytes) -> DecodedImage | RejectedImage:
    if "reason" in head:
        return RejectedImage(**head)
    return DecodedImage(data=data, **{**head, "hashes": tuple(head["hashes"])})


def _close_stdin(child: _Child) -> None:
    """Close a child's stdin; the child ends when it has answered."""
    assert child.process.stdin is not None
    with contextlib.suppress(ConnectionError):
        child.process.stdin.close()


def _kill(process: asyncio.subprocess.Process) -> None:
    # Not Popen.kill: it polls first, which takes the exit status from asyncio's watcher.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
