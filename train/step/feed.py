"""What the model reads of a batch, made ready in a thread of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from clipmill.train.config import TrainConfig
from clipmill.train.data.loader import RunBatch
from clipmill.train.model.clip import (
    PackedCaptions,
    pack_captions,
    to_device,
)
from clipmill.train.model.memory import AHEAD_BYTES
from clipmill.train.step import accumulate

# --------------------------------------------------------------------------------------------------
# Images on their way to a GPU: reused buffers, a stream for the copies, and events.
#
# A batch of up to AHEAD_BYTES is copied whole, a larger one a micro-batch at a time; each such
# piece is called a part here. The first part of a batch has two buffers, for batches in turn:
# that of the next batch is copied while the present one is computed, and that of the present one
# stays for the second pass of micro-batches. All other parts share two buffers: while one is
# computed, the next one is copied.
#
# The copy stream overwrites a buffer after the event that follows the last read of it, and the
# computing stream reads it after the event that follows the copy. The host waits for neither. The
# allocator alone would not bound the memory: the host runs ahead of the device, and a part that
# has been given up cannot be used again before the device has read it.


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


# --------------------------------------------------------------------------------------------------
# What the model reads of a batch, made ready in a thread of its own.
#
# While the training thread computes a step, this thread takes the next batch from the loader,
# packs its captions and begins the copies to the device. On a GPU the copies run on a
# stream of their own, so that neither the host nor the step before waits for them.


Captions = Tensor | PackedCaptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadyBatch:
    """A batch of this rank, and the model's arguments for each of its micro-batches."""

    batch: RunBatch
    images: BatchImages  # uint8 BHWC
    captions: dict[tuple[int, int], Captions]  # by the first row of a micro-batch and the end
    streams: Streams | None = None  # of the device; None where nothing is copied
    copied: Any = None  # the event after the copies of the captions

    def __len__(self) -> int:
        return len(self.batch.length_B)

    def begin(self, passes: int = accumulate.PASSES) -> None:
        """Let the current stream wait for the copies. The host does not wait.

        All micro-batches will be read `passes` times, in their order.
        """
        self.images.begin(passes)
        if self.streams is None:
            return
        stream = self.streams.current()
        stream.wait_event(self.copied)
        for tensor in _tensors(self.captions.values()):
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def inputs(self, rows: slice, prepare: Callable[[Tensor], Tensor]) -> tuple[Tensor, Captions]:
        """What `prepare` makes of the images of a micro-batch, and its captions, on the device.

        `prepare` makes a new tensor: the memory that it reads is overwritten later.
        """
        captions = self.captions[rows.start, rows.stop]
        return self.images.read(rows, prepare), captions


class Feed:
    """Makes the batches of a loader ready for the device of a run."""

    def __init__(
        self, config: TrainConfig, device: torch.device, streams: Streams | None = None
    ) -> None:
        """`streams` are those of the device, which are found here if it is a GPU."""
        assert config.micro_batch != "auto"
        self._config, self._device, self._micro_batch = config, device, config.micro_batch
        if streams is None and device.type == "cuda":
            streams = CudaStreams(device)
        self._streams = streams
        self._images = None if streams is None else DeviceImages(device, streams)

    def batches(self, batches: Generator[RunBatch]) -> Generator[ReadyBatch]:
        """The batches in their order; one is made ready ahead of the one that is handed out.

        With no threads (`threads` 0) the caller does the work. Close or drain it to end its thread
        and `batches`.
        """
        if self._config.threads == 0:
            try:
                yield from map(self.ready, batches)
            finally:
                batches.close()
            return

        def following() -> ReadyBatch | None:
            batch = next(batches, None)
            return None if batch is None else self.ready(batch)

        worker = ThreadPoolExecutor(1, thread_name_prefix="feed")
        try:
            upcoming = worker.submit(following)
            while (ready := upcoming.result()) is not None:
                upcoming = worker.submit(following)
                yield ready
        finally:
            worker.shutdown(cancel_futures=True)
            batches.close()

    def ready(self, batch: RunBatch) -> ReadyBatch:
        """The arguments of the model for a batch; copies to a GPU have begun."""
        if self._streams is None:
            return self._ready(batch)
        with self._streams.copying() as stream:
            ready = self._ready(batch)
            copied = self._streams.event()
            copied.record(stream)
        return dataclasses.replace(ready, streams=self._streams, copied=copied)

    def _ready(self, batch: RunBatch) -> ReadyBatch:
        tokens_BT = batch.tokens_BT[:, : int(batch.length_B.max())]
        pieces = accumulate.micro_batches(len(tokens_BT), self._micro_batch)
        captions: dict[tuple[int, int], Captions] = {}
        for rows in pieces:
            arranged = arrange_captions(self._config, tokens_BT[rows], batch.length_B[rows])
            captions[rows.start, rows.stop] = to_device(arranged, self._device)
        return ReadyBatch(
            batch=batch, images=self._batch_images(batch.image_BHWC, pieces), captions=captions
        )

    def _batch_images(self, image_BHWC: Tensor, pieces: list[slice]) -> BatchImages:
        if image_BHWC.numel() <= AHEAD_BYTES:
            pieces = [slice(0, len(image_BHWC))]
        if self._images is None or image_BHWC.is_cuda:
            return BatchImages(None, 0, image_BHWC, pieces)
        return self._images.batch(image_BHWC, pieces)


def arrange_captions(config: TrainConfig, tokens_BT: Tensor, length_B: Tensor) -> Captions:
    """Captions of a micro-batch in host memory as `config.captions` says."""
    if config.captions == "packed":
        return pack_captions(tokens_BT, length_B)
    return tokens_BT


def _tensors(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
