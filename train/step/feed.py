"""What the model reads of a batch, made ready in a thread of its own.

While the training thread computes a step, this thread takes the next batch from the loader, packs
or groups its captions and begins the copies to the device. On a GPU the copies run on a stream of
their own, so that neither the host nor the step before waits for them (`device_images.py` has those
of the images).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from train.config import TrainConfig
from train.data import Batch
from train.model import (
    AHEAD_BYTES,
    GroupedCaptions,
    PackedCaptions,
    group_by_length,
    pack_captions,
    to_device,
)
from train.step import accumulate
from train.step.device_images import BatchImages, CudaStreams, DeviceImages, Streams

GROUPS = 4  # buckets of caption lengths, where captions are grouped
Captions = Tensor | PackedCaptions | GroupedCaptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadyBatch:
    """A batch of this rank, and the model's arguments for each of its micro-batches."""

    batch: Batch
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

    def batches(self, batches: Generator[Batch]) -> Generator[ReadyBatch]:
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

    def ready(self, batch: Batch) -> ReadyBatch:
        """The arguments of the model for a batch; copies to a GPU have begun."""
        if self._streams is None:
            return self._ready(batch)
        with self._streams.copying() as stream:
            ready = self._ready(batch)
            copied = self._streams.event()
            copied.record(stream)
        return dataclasses.replace(ready, streams=self._streams, copied=copied)

    def _ready(self, batch: Batch) -> ReadyBatch:
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
    if config.captions == "groups":
        return group_by_length(tokens_BT, GROUPS, length_B)
    return tokens_BT


def _tensors(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
