from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest
import torch

from tests.support.streams import FakeStreams, Race
from train.config import configure
from train.data.loader import Batch
from train.step import feed
from train.step.feed import Feed

CPU = torch.device("cpu")


def config(**changes):
    settings = {"model": "test", "samples_seen": 64, "batch_size": 8, "lanes": 4, "warmup": 0}
    return configure({**settings, "threads": 1, **changes})


def batch(step=0, rows=8):
    length_B = torch.arange(3, 3 + rows)
    tokens_BT = torch.where(torch.arange(16) < length_B[:, None], torch.arange(1, 17), 0)
    known = {field.name: 0 for field in dataclasses.fields(Batch)}
    image_BHWC = torch.arange(rows, dtype=torch.uint8)[:, None, None, None].expand(rows, 4, 4, 3)
    given = {"step": step, "image_BHWC": image_BHWC, "tokens_BT": tokens_BT, "length_B": length_B}
    return Batch(**{**known, **given})


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
