"""Images on their way to a GPU: reused buffers, a stream for the copies, and events.

A batch of up to AHEAD_BYTES is copied whole, a larger one a micro-batch at a time; each such piece
is called a part here. The first part of a batch has two buffers, for batches in turn: that of the
next batch is copied while the present one is computed, and that of the present one stays for the
second pass of micro-batches. All other parts share two buffers: while one is computed, the next one
is copied.

The copy stream overwrites a buffer after the event that follows the last read of it, and the
computing stream reads it after the event that follows the copy. The host waits for neither. The
allocator alone would not bound the memory: the host runs ahead of the device, and a part that has
been given up cannot be used again before the device has read it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """The streams of a device, and what makes their events."""

    def current(self) -> Any:
        """The stream that computes."""

    def event(self) -> Any:
        """A new event."""

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """The stream of the copies, which is the current one in the block."""


class CudaStreams:
    """The streams of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._copies = device, torch.cuda.Stream(device)

    def current(self) -> torch.cuda.Stream:
        """The stream that computes."""
        return torch.cuda.current_stream(self._device)

    def event(self) -> torch.cuda.Event:
        """A new event."""
        return torch.cuda.Event()

    @contextlib.contextmanager
    def copying(self) -> Iterator[torch.cuda.Stream]:
        """The stream of the copies, which is the current one in the block."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._copies):
            yield self._copies


class _Buffer:
    """Device memory for one part, which is used again and again."""

    def __init__(self, copied: Any, read: Any) -> None:
        self.memory: Tensor | None = None
        self.content: tuple[int, int] | None = None  # number of the batch, and of the part
        self.copied, self.read = copied, read  # events after the copy, and after the last read
        self.lock = threading.Lock()  # from the look at `content` to the event


class DeviceImages:
    """The buffers of a device. One thread makes batches ready and another one reads them.

    Parts that are copied ahead stay in their buffers if a batch is read before the batch after the
    next is made. Otherwise they are copied again when they are read.
    """

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self._device, self._streams, self._batches = device, streams, 0
        self._first, self._rest = self._pair(), self._pair()

    def _pair(self) -> tuple[_Buffer, _Buffer]:
        event = self._streams.event
        return _Buffer(event(), event()), _Buffer(event(), event())

    def batch(self, image_BHWC: Tensor, parts: Sequence[slice]) -> BatchImages:
        """The images of the next batch, in pinned memory. The copy of the first part begins."""
        batch = BatchImages(self, self._batches, image_BHWC, parts)
        self._batches += 1
        buffer = self._first[batch.number % 2]
        with buffer.lock:
            self._copy(batch, 0, buffer)
        return batch

    def begin(self, batch: BatchImages) -> None:
        """Begin to copy the parts of a batch that follow its first."""
        for buffer in self._rest:
            self._copy_next(batch, buffer)

    def read(
        self, batch: BatchImages, part: int, rows: slice, prepare: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """`prepare` of rows of a part. They are counted from the beginning of the part."""
        for buffer in (self._first[batch.number % 2], *self._rest):
            with buffer.lock:
                if buffer.content != (batch.number, part):
                    continue
                prepared = self._read(buffer, rows, prepare)
            if part > 0:
                self._copy_next(batch, buffer)
            return prepared
        buffer = self._rest[0]
        with buffer.lock:
            self._copy(batch, part, buffer)
            return self._read(buffer, rows, prepare)

    def _read(self, buffer: _Buffer, rows: slice, prepare: Callable[[Tensor], Tensor]) -> Tensor:
        stream, memory = self._streams.current(), buffer.memory
        assert memory is not None
        stream.wait_event(buffer.copied)
        prepared = prepare(memory[rows])
        buffer.read.record(stream)
        if memory.is_cuda:
            memory.record_stream(stream)  # for the allocator, when the buffers are given up
        return prepared

    def _copy_next(self, batch: BatchImages, buffer: _Buffer) -> None:
        """Copy the part that is needed next into a buffer whose content is not needed any more."""
        if not batch.upcoming:
            return
        part = batch.upcoming.popleft()
        if all(each.content != (batch.number, part) for each in self._rest):
            with buffer.lock:
                self._copy(batch, part, buffer)

    def _copy(self, batch: BatchImages, part: int, buffer: _Buffer) -> None:
        """Copy a part once the last read of the buffer is over. The caller holds its lock."""
        source = batch.image_BHWC[batch.parts[part]]
        with self._streams.copying() as stream:
            if buffer.memory is None or len(buffer.memory) < len(source):
                most = max(rows.stop - rows.start for rows in batch.parts)
                shape = (most, *source.shape[1:])
                buffer.memory = torch.empty(shape, dtype=source.dtype, device=self._device)
            stream.wait_event(buffer.read)  # nothing, as long as it was not recorded
            buffer.memory[: len(source)].copy_(source, non_blocking=True)
            buffer.copied.record(stream)
            buffer.content = (batch.number, part)


class BatchImages:
    """The images of one batch in host memory, and the device's buffers of them."""

    def __init__(
        self,
        device_images: DeviceImages | None,
        number: int,
        image_BHWC: Tensor,
        parts: Sequence[slice],
    ) -> None:
        """`device_images` is None where the images lie where they are computed."""
        self.number, self.image_BHWC, self.parts = number, image_BHWC, tuple(parts)
        self._device_images = device_images
        self._part_of = {part.start: number for number, part in enumerate(self.parts)}
        # Parts in the order in which they are needed, without the first. It stays in its buffer.
        self.upcoming: deque[int] = deque()

    def begin(self, passes: int) -> None:
        """Begin to copy the parts that follow the first. The thread that reads calls it.

        All parts will be read `passes` times, in their order.
        """
        self.upcoming = deque(list(range(1, len(self.parts))) * passes)
        if self._device_images is not None:
            self._device_images.begin(self)

    def read(self, rows: slice, prepare: Callable[[Tensor], Tensor]) -> Tensor:
        """`prepare` of rows of one part, on the device.

        `prepare` makes a new tensor: the memory that it reads is overwritten later.
        """
        if self._device_images is None:
            return prepare(self.image_BHWC[rows])
        part = self._part_of.get(rows.start, 0)
        first = self.parts[part].start
        inside = slice(rows.start - first, rows.stop - first)
        return self._device_images.read(self, part, inside, prepare)
