from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.trainer.inference import synthetic_inputs
from train.model.architecture import MODELS

TEST = MODELS["test"]


def test_every_text_has_all_its_tokens_and_no_two_requests_are_equal():
    requests = synthetic_inputs(TEST, 3, 9, count=3)
    for request in requests:
        assert request.pixels_BHWC.shape == (3, 32, 32, 3)
        assert request.token_BT.shape == (3, 9)
        assert request.decoded(TEST) is request.pixels_BHWC
        # The highest token, where a model pools, is the last one and is there once.
        assert request.token_BT.argmax(dim=1).tolist() == [8, 8, 8]
        assert request.token_BT.min() >= 1
    assert not torch.equal(requests[0].pixels_BHWC, requests[1].pixels_BHWC)
    assert not torch.equal(requests[0].token_BT, requests[2].token_BT)


def test_jpegs_become_pixels_of_the_models_size():
    wide = dataclasses.replace(TEST, image_width=48)
    (request,) = synthetic_inputs(wide, 2, 1, count=1, jpeg=True)
    assert request.pixels_BHWC is None
    assert [data[:2] for data in request.jpegs] == [b"\xff\xd8", b"\xff\xd8"]
    pixels_BHWC = request.decoded(wide)
    assert pixels_BHWC.shape == (2, 32, 48, 3)
    assert pixels_BHWC.dtype == torch.uint8
    assert pixels_BHWC.float().std() > 20  # not one colour


@pytest.mark.parametrize(
    ("batch", "length", "message"),
    [
        (0, 8, "batch is 0; it must be at least 1"),
        (1, 0, "text length is 0; the model takes 1 to 16 tokens"),
        (1, 17, "text length is 17; the model takes 1 to 16 tokens"),
    ],
)
def test_what_the_model_cannot_take_is_refused(batch, length, message):
    with pytest.raises(ValueError, match=message):
        synthetic_inputs(TEST, batch, length, count=1)
