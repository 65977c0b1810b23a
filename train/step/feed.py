"""What the model reads of a batch, made ready in a thread of its own.

While the training thread computes a step, this thread takes the next batch from the loader, packs
or groups its captions and begins the copies to the device. On a GPU the copies run on a stream of
their own, so that neither the host nor the step before waits for them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
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

GROUPS = 4  # buckets of caption lengths, where captions are grouped
Captions = Tensor | PackedCaptions | GroupedCaptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadyBatch:
    """A batch of this rank, and the model's arguments for each of its micro-batches.

    Images are uint8 BHWC, on the device unless the batch is larger than AHEAD_BYTES.
    """

    batch: Batch
    device: torch.device
    images: dict[tuple[int, int], Tensor]  # by the first row of a micro-batch and the end
    captions: dict[tuple[int, int], Captions]
    copied: Any = None  # the CUDA event after the copies; None on a CPU

    def __len__(self) -> int:
        return len(self.batch.length_B)

    def begin(self) -> None:
        """Let the current stream wait for the copies. The host does not wait."""
        if self.copied is None:
            return
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self.copied)
        for tensor in _tensors([*self.images.values(), *self.captions.values()]):
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def inputs(self, rows: slice) -> tuple[Tensor, Captions]:
        """Images and captions of a micro-batch on the device."""
        key = (rows.start, rows.stop)
        return self.images[key].to(self.device, non_blocking=True), self.captions[key]


class Feed:
    """Makes the batches of a loader ready for the device of a run."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        assert config.micro_batch != "auto"
        self._config, self._device, self._micro_batch = config, device, config.micro_batch
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

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
        if self._stream is None:
            return self._ready(batch)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return self._ready(batch, torch.cuda.Event())

    def _ready(self, batch: Batch, copied: Any = None) -> ReadyBatch:
        tokens_BT = batch.tokens_BT[:, : int(batch.length_B.max())]
        ahead = batch.image_BHWC.numel() <= AHEAD_BYTES
        images: dict[tuple[int, int], Tensor] = {}
        captions: dict[tuple[int, int], Captions] = {}
        for rows in accumulate.micro_batches(len(tokens_BT), self._micro_batch):
            key = (rows.start, rows.stop)
            image_BHWC = batch.image_BHWC[rows]
            images[key] = image_BHWC.to(self._device, non_blocking=True) if ahead else image_BHWC
            arranged = arrange_captions(self._config, tokens_BT[rows], batch.length_B[rows])
            captions[key] = to_device(arranged, self._device)
        if copied is not None:
            copied.record()
        return ReadyBatch(
            batch=batch, device=self._device, images=images, captions=captions, copied=copied
        )


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
