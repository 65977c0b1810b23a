"""Batches on their way to the device: order, threads, copies and reads."""

import contextlib
import dataclasses
import threading

import pytest
import torch

from clipmill.train.config import configure
from clipmill.train.data.loader import RunBatch
from clipmill.train.step import accumulate, feed
from clipmill.train.step.feed import DeviceImages, Feed
from tests.support.streams import FakeStreams, Race

CPU = torch.device("cpu")


def config(**changes):
    settings = {"model": "test", "samples_seen": 64, "batch_size": 8, "lanes": 4, "warmup": 0}
    return configure({**settings, "threads": 1, **changes})


def batch(step=0, rows=8):
    length_B = torch.arange(3, 3 + rows)
    tokens_BT = torch.where(torch.arange(16) < length_B[:, None], torch.arange(1, 17), 0)
    known = {field.name: 0 for field in dataclasses.fields(RunBatch)}
    image_BHWC = torch.arange(rows, dtype=torch.uint8)[:, None, None, None].expand(rows, 4, 4, 3)
    given = {"step": step, "image_BHWC": image_BHWC, "tokens_BT": tokens_BT, "length_B": length_B}
    return RunBatch(**{**known, **given})


@pytest.mark.parametrize(
    ("micro_batch", "pieces"), [(None, [(0, 8)]), (3, [(0, 2), (2, 5), (5, 8)])]
)
def test_every_micro_batch_has_its_images_and_captions(micro_batch, pieces):
    whole = batch()
    ready = Feed(config(micro_batch=micro_batch), CPU).ready(whole)
    assert list(ready.captions) == pieces
    assert len(ready) == 8
    ready.begin()  # nothing to wait for on a CPU
    for first, end in pieces:
        image_BHWC, tokens_BT = ready.inputs(slice(first, end), torch.clone)
        assert torch.equal(image_BHWC, whole.image_BHWC[first:end])
        assert torch.equal(tokens_BT, whole.tokens_BT[first:end, :10])  # cut to the longest
    with pytest.raises(KeyError):
        ready.inputs(slice(0, 1), torch.clone)


@pytest.mark.parametrize("threads", [0, 1])
def test_batches_keep_their_order_and_one_is_made_ready_ahead(threads):
    taken, main = [], threading.get_ident()

    def source():
        for step in range(4):
            taken.append((step, threading.get_ident() == main))
            yield batch(step)

    steps = []
    for ready in Feed(config(threads=threads), CPU).batches(source()):
        steps.append(ready.batch.step)
    assert steps == [0, 1, 2, 3]
    assert taken == [(step, threads == 0) for step in range(4)]


def test_closing_ends_the_thread_and_the_source_and_an_error_arrives():
    closed, before = [], threading.active_count()

    def endless():
        try:
            while True:
                yield batch()
        finally:
            closed.append(True)

    batches = Feed(config(), CPU).batches(endless())
    next(batches)
    batches.close()
    assert closed == [True]
    assert threading.active_count() == before

    def failing():
        yield batch()
        raise ValueError("shard 00001.tar cannot be read")

    batches = Feed(config(), CPU).batches(failing())
    next(batches)
    with pytest.raises(ValueError, match=r"00001\.tar cannot be read"):
        next(batches)


@pytest.mark.parametrize("ahead", [0, 2**20])
@pytest.mark.parametrize("captions", ["padded", "packed"])
@pytest.mark.parametrize("ignores", ["", "compute", "copies"])
def test_captions_and_images_are_read_after_their_copies(monkeypatch, ahead, captions, ignores):
    monkeypatch.setattr(feed, "AHEAD_BYTES", ahead)
    streams, whole = FakeStreams(ignores=ignores), [batch(step) for step in range(4)]
    made = Feed(config(micro_batch=3, captions=captions), CPU, streams)
    pieces = [slice(0, 2), slice(2, 5), slice(5, 8)]

    def steps():
        upcoming = made.ready(whole[0])
        for step in range(3):
            ready, upcoming = upcoming, made.ready(whole[step + 1])
            ready.begin()
            for rows in 2 * pieces:
                image_BHWC, arranged = ready.inputs(rows, torch.clone)
                assert torch.equal(image_BHWC, whole[step].image_BHWC[rows])
                for tensor in feed._tensors([arranged]):
                    tensor + 1

    with streams, pytest.raises(Race) if ignores else contextlib.nullcontext():
        steps()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("ahead", [0, 2**20])
def test_on_a_gpu_what_arrives_is_what_was_sent(monkeypatch, ahead):
    monkeypatch.setattr(feed, "AHEAD_BYTES", ahead)
    whole = batch()
    pinned = dataclasses.replace(whole, image_BHWC=whole.image_BHWC.contiguous().pin_memory())
    device = torch.device("cuda")
    ready = Feed(config(micro_batch=4, captions="packed"), device).ready(pinned)
    ready.begin()
    for first in (0, 4):
        image_BHWC, packed = ready.inputs(slice(first, first + 4), torch.clone)
        assert image_BHWC.is_cuda
        assert torch.equal(image_BHWC.cpu(), whole.image_BHWC[first : first + 4])
        lengths = whole.length_B[first : first + 4]
        assert packed.offset_B1.cpu().diff().tolist() == lengths.tolist()


# --------------------------------------------------------------------------------------------------


ROWS = 12
# Of batches in host memory: written before any stream reads them.
IMAGES = torch.arange(6 * ROWS, dtype=torch.uint8)[:, None].repeat(1, 6).split(ROWS)


def plus_one(x):
    return x.float() + 1


class Steps:
    """Batches that are made one ahead and read twice, as the feed and a step do."""

    def __init__(self, streams, micro_batch, *, whole):
        self.streams, self.images = streams, DeviceImages(CPU, streams)
        self.pieces = accumulate.micro_batches(ROWS, micro_batch)
        self.parts = [slice(0, ROWS)] if whole else self.pieces
        self.copies = 0
        copy = self.images._copy

        def counted(*arguments):
            self.copies += 1
            copy(*arguments)

        self.images._copy = counted

    def batch(self, number):
        return self.images.batch(IMAGES[number], self.parts)

    def read(self, batch, number, passes=2):
        """All micro-batches so often: what is read is what was sent."""
        for _ in range(passes):
            for rows in self.pieces:
                prepared = batch.read(rows, plus_one)
                assert torch.equal(prepared, IMAGES[number][rows].float() + 1)

    def run(self, count=5, passes=2):
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
