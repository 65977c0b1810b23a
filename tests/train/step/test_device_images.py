"""The order of copies and reads, with streams that are only recorded: no GPU is needed."""

from __future__ import annotations

import pytest
import torch

from tests.support.streams import FakeStreams
from train.step import accumulate
from train.step.feed import BatchImages, DeviceImages

CPU, ROWS = torch.device("cpu"), 12
# Of batches in host memory: written before any stream reads them.
IMAGES = torch.arange(6 * ROWS, dtype=torch.uint8)[:, None].repeat(1, 6).split(ROWS)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x.float() + 1


class Steps:
    """Batches that are made one ahead and read twice, as the feed and a step do."""

    def __init__(self, streams: FakeStreams, micro_batch: int | None, *, whole: bool) -> None:
        self.streams, self.images = streams, DeviceImages(CPU, streams)
        self.pieces = accumulate.micro_batches(ROWS, micro_batch)
        self.parts = [slice(0, ROWS)] if whole else self.pieces
        self.copies = 0
        copy = self.images._copy

        def counted(*arguments: object) -> None:
            self.copies += 1
            copy(*arguments)  # type: ignore[arg-type]

        self.images._copy = counted  # type: ignore[method-assign, assignment]

    def batch(self, number: int) -> BatchImages:
        return self.images.batch(IMAGES[number], self.parts)

    def read(self, batch: BatchImages, number: int, passes: int = 2) -> None:
        """All micro-batches so often: what is read is what was sent."""
        for _ in range(passes):
            for rows in self.pieces:
                prepared = batch.read(rows, plus_one)
                assert torch.equal(prepared, IMAGES[number][rows].float() + 1)

    def run(self, count: int = 5, passes: int = 2) -> None:
        with self.streams:
            upcoming = self.batch(0)
            for number in range(count):
                batch, upcoming = upcoming, self.batch(number + 1)
                batch.begin(passes)
                self.read(batch, number, passes)


CASES = [(None, True), (3, True), (6, False), (5, False), (3, False), (2, False), (1, False)]


@pytest.mark.parametrize(("micro_batch", "whole"), CASES)
def test_no_buffer_is_read_before_its_copy_or_overwritten_before_its_last_read(micro_batch, whole):
    streams = FakeStreams()
    steps = Steps(streams, micro_batch, whole=whole)
    steps.run()
    assert streams.compute.waits > 0
    assert streams.copies.waits == steps.copies
    # Of the batch that is ahead the first part; of the others every part at most once a pass, the
    # first only once, and nothing twice that two buffers hold.
    parts = len(steps.parts)
    others = parts - 1 if parts <= 3 else 2 * (parts - 1)
    assert steps.copies == 5 * (1 + others) + 1


def test_memory_is_that_of_two_batches_or_of_four_micro_batches():
    for micro_batch, whole, rows in ((None, True, 2 * ROWS), (3, True, 2 * ROWS), (2, False, 8)):
        steps = Steps(FakeStreams(), micro_batch, whole=whole)
        steps.run()
        buffers = [*steps.images._first, *steps.images._rest]
        assert sum(len(each.memory) for each in buffers if each.memory is not None) == rows


@pytest.mark.parametrize(("micro_batch", "whole"), CASES)
def test_a_batch_that_was_overwritten_is_copied_again(micro_batch, whole):
    """A step that was not finite is computed again after the next one; by then a third was made."""
    steps = Steps(FakeStreams(), micro_batch, whole=whole)
    with steps.streams:
        batches = [steps.batch(number) for number in range(3)]
        batches[1].begin(2)
        steps.read(batches[1], 1)
        steps.read(batches[0], 0)
        batches[2].begin(2)
        steps.read(batches[2], 2)


def test_a_larger_batch_gets_larger_buffers():
    streams = FakeStreams()
    images = DeviceImages(CPU, streams)
    batches = [torch.full((rows, 2), rows) for rows in (4, 4, 6, 6)]
    with streams:
        for image_BHWC in batches:
            rows = len(image_BHWC)
            batch = images.batch(image_BHWC, [slice(0, rows)])
            batch.begin(1)
            assert batch.read(slice(0, rows), plus_one).sum() == 2 * rows * (rows + 1)
