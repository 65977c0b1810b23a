"""Bytes of images to checked, upright, resized images, in child processes.

`Decoders` runs `check_and_resize` in children started as `python -m pipeline.images.child`. They
exchange length-prefixed frames with this process. A crash, an endless loop or too much memory in a
C decoder costs only that image.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
IN_FLIGHT = 2  # frames that a child has at once, so that it never waits for the next one
# Images of a frame: a process is woken less often. Their bytes are few beside those of one image.
FRAME_IMAGES, FRAME_BYTES = 3, 2**18
CHILD = ("-m", "clipmill.pipeline.images.child")
# Environment variables of a child: no others, so that it holds no secrets.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
# The C library keeps what an image has freed for the next one. Else the kernel hands out and clears
# 580 pages an image of 400 x 533, which is two fifths of its CPU time.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20)}

# --- the child ------------------------------------------------------------------------------------
# A frame, in both directions: big-endian 32-bit numbers and parts. The numbers are the bytes of all
# that follows, the count of the parts, and the length of each; the parts are JSON, then an image
# each. An answer has the images of its request in their order. The first frame of a child is empty:
# it is ready.

NUMBER = 4  # bytes
IMAGE_FIELDS = (
    "extension", "width", "height", "original_width", "original_height", "exif", "hashes",
)  # fmt: skip


def _frame(*parts: bytes) -> bytes:
    lengths = [len(part) for part in parts]
    numbers = NUMBER * (1 + len(parts)) + sum(lengths), len(parts), *lengths
    return b"".join((struct.pack(f">{len(numbers)}I", *numbers), *parts))


def _parts(frame: bytes) -> list[bytes]:
    """The parts of a frame that is whole but for its first number."""
    (count,) = struct.unpack_from(">I", frame)
    end, parts = NUMBER * (1 + count), []
    for length in struct.unpack_from(f">{count}I", frame, NUMBER):
        parts.append(frame[end : end + length])
        end += length
    return parts


def _instruction(limits: Limits, boxes: Sequence[Box], hashed: bool) -> bytes:
    """What a child does with an image, as JSON: limits, boxes, and whether it hashes."""
    settings = {name: getattr(limits, name) for name in Limits.__slots__}
    return json.dumps([settings, list(boxes), hashed]).encode()


def serve(memory_bytes: int, deadline_s: float) -> None:
    """Answer frames on stdin until it is closed.

    Runs in a child, with limits on memory, open files and CPU time per image.
    """
    source = os.fdopen(os.dup(0), "rb", FRAME_BYTES)  # one call of the kernel reads most frames
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    Image.init()  # imports every plugin: later, few files may be opened
    if features.check("avif"):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a child per core already
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(_frame())
    answers.flush()
    known, limits, boxes, hashed = b"", None, (), False
    while len(length := source.read(NUMBER)) == NUMBER:
        instruction, *bodies = _parts(source.read(int.from_bytes(length, "big")))
        if instruction != known or limits is None:  # most images of a run have the same one
            settings, boxes, hashed = json.loads(instruction)
            known, limits = instruction, Limits(**settings)
        heads: list[dict[str, object]] = []
        images: list[bytes] = []
        for body in bodies:
            # SIGPROF ends the process, even in C code and without a parent.
            signal.setitimer(signal.ITIMER_PROF, deadline_s)
            try:
                image = contained(body, limits, boxes, hashed)
                heads.append({name: getattr(image, name) for name in IMAGE_FIELDS})
                images.append(image.data)
            except RejectedImage as rejected:
                heads.append({"reason": rejected.reason, "detail": rejected.detail})
                images.append(b"")
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(_frame(json.dumps(heads).encode(), *images))
        answers.flush()


# --- the parent -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    instruction: bytes
    body: bytes
    answer: asyncio.Future[DecodedImage | RejectedImage]
    is_alone: bool = False  # in its frame: a child has ended over a frame of several


@dataclass(slots=True, eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    stdin: asyncio.WriteTransport
    stdout: asyncio.ReadTransport
    answers: asyncio.StreamReader  # what comes from stdout
    frames: deque[list[_Request]]  # sent and not answered; the child works on the first
    sent: int = 0  # images
    timer: asyncio.TimerHandle | None = None
    is_late: bool = False  # it was killed because a frame took too long


class Decoders:
    """Child processes that decode images.

    `async with Decoders() as decoders: await decoders.decode(body, settings)`. A child that dies,
    or is killed at the deadline, costs the image it was working on; its other images are sent to
    another child. Which one that was shows when the images of its frame are sent one by one.
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
        self._slots: list[asyncio.Task[None]] = []
        self._closing = self._will_send = False
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
            child.stdin.close()  # the child ends when it has answered
        _, hanging = await asyncio.wait(self._slots, timeout=1.0)
        for child in self._children:
            _kill(child.process)
        if hanging:
            await asyncio.wait(hanging, timeout=1.0)
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
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
        loop = asyncio.get_running_loop()
        request = _Request(instruction, body, loop.create_future())
        self._waiting.append(request)
        if not self._will_send:  # a little later: then others wait too, and share its frame
            self._will_send = True
            loop.call_soon(self._send_waiting)
        return await request.answer

    def _send_waiting(self) -> None:
        """Send waiting requests to the children that have the fewest."""
        self._will_send = False
        while free_children := [c for c in self._children if self._has_room(c)]:
            share = -(-len(self._waiting) // len(free_children))
            if not (requests := self._next_frame(min(share, FRAME_IMAGES))):
                return
            child = min(free_children, key=lambda c: len(c.frames))
            bodies = [request.body for request in requests]
            child.stdin.write(_frame(requests[0].instruction, *bodies))
            child.sent += len(requests)
            child.frames.append(requests)
            if len(child.frames) == 1:
                self._start_timer(child)

    def _next_frame(self, most: int) -> list[_Request]:
        """The first of the waiting requests, and up to `most` with those that may share a frame."""
        requests: list[_Request] = []
        size = 0
        while self._waiting and len(requests) < most:
            request = self._waiting[0]
            size += len(request.body)
            if requests and (
                request.is_alone
                or requests[0].is_alone
                or request.instruction != requests[0].instruction
                or size > FRAME_BYTES
            ):
                break
            self._waiting.popleft()
            if not request.answer.done():  # else its caller was cancelled
                requests.append(request)
        return requests

    def _has_room(self, child: _Child) -> bool:
        """Whether the child can take one more frame; a dead one stays in the list for a while."""
        return (
            len(child.frames) < self._in_flight
            and child.sent < self._recycle
            and not child.stdin.is_closing()
        )

    def _start_timer(self, child: _Child) -> None:
        """Start the deadline of a child's first frame."""
        if child.timer is not None:
            child.timer.cancel()
        child.timer = None
        if child.frames:
            child.timer = asyncio.get_running_loop().call_later(
                self._patience_s * len(child.frames[0]), self._deadline_passed, child
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
            async with self._started() as child:
                if not await self._is_ready(child):
                    return
                self._children.append(child)
                self._send_waiting()
                try:
                    await self._read(child)
                finally:
                    self._children.remove(child)
                    if child.timer is not None:
                        child.timer.cancel()
                self._return_frames(child, await _ended(child))

    def _return_frames(self, child: _Child, code: int) -> None:
        """Of a child that has ended, let others do the frames; the image that ended it is refused.

        code: of its exit.
        """
        if not child.frames:
            return
        current, *others = child.frames
        for requests in reversed(others):
            self._waiting.extendleft(reversed(requests))
        if len(current) > 1:
            for request in reversed(current):
                request.is_alone = True
                self._waiting.appendleft(request)
        elif not current[0].answer.done():
            too_slow = child.is_late or code == -signal.SIGPROF
            rejected = (
                RejectedImage("decoder_deadline", "too slow")
                if too_slow
                else RejectedImage("decoder_died", _cause(code))
            )
            current[0].answer.set_result(rejected)
        self._send_waiting()

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        """Pass the error of a slot to all requests: no image caused it."""
        if slot.cancelled() or (error := slot.exception()) is None:
            return
        self._broken = self._broken or error
        requests = list(self._waiting)
        for child in self._children:
            requests.extend(request for frame in child.frames for request in frame)
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(error)
        self._waiting.clear()

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[_Child]:
        """A child; at the end, also of a cancelled task, nothing of it is left."""
        # Not asyncio's: uvloop forks, and its child takes locks of Python and of libraries before
        # its exec. One that another thread held is never free there, and this process waits for it.
        # Sockets, as of uvloop: they hold three times as much as pipes.
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        process = subprocess.Popen(
            self._command,
            stdin=theirs[0].fileno(),
            stdout=theirs[1].fileno(),
            cwd=ROOT,
            env=_environment(),
        )
        for end in theirs:
            end.close()
        loop, answers = asyncio.get_running_loop(), asyncio.StreamReader(2**20)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(_exit_status, process)
            opened.callback(_kill, process)
            stdout, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(answers), ours[1]
            )
            opened.callback(stdout.close)
            stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, ours[0])
            opened.callback(stdin.close)
            yield _Child(process, stdin, stdout, answers, deque())

    async def _is_ready(self, child: _Child) -> bool:
        """Wait until it is; False while closing. RuntimeError where it does not start."""
        try:
            async with asyncio.timeout(START_S):
                await _answers(child)
            return True
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                _kill(child.process)
            code = await _ended(child)
            if self._closing:
                return False
            raise RuntimeError(f"a decoder ended before its first image ({_cause(code)})") from None

    async def _read(self, child: _Child) -> None:
        """Pass a child's answers to their requests until the child ends."""
        try:
            while True:
                answers = await _answers(child)
                requests = child.frames.popleft()
                self._start_timer(child)
                for request, answer in zip(requests, answers, strict=True):
                    if not request.answer.done():
                        request.answer.set_result(answer)
                if child.sent >= self._recycle and not child.frames:
                    return
                self._send_waiting()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def _ended(child: _Child) -> int:
    """Close a child's pipes and wait for its end."""
    child.stdin.close()
    child.stdout.close()
    return await _exit_status(child.process)


async def _exit_status(process: subprocess.Popen[bytes]) -> int:
    while (code := process.poll()) is None:
        await asyncio.sleep(0.005)
    return code


async def _answers(child: _Child) -> list[DecodedImage | RejectedImage]:
    """The answers to the images of a frame; none of the first one of a child."""
    length = int.from_bytes(await child.answers.readexactly(NUMBER), "big")
    heads, *images = _parts(await child.answers.readexactly(length)) or [b"[]"]
    return [_result(*answer) for answer in zip(json.loads(heads), images, strict=True)]


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


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        process.kill()


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
