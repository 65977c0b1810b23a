"""The towers: padding never counts, captions are alone, images of another shape are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.captions import captions
from train.model.architecture import MODELS
from train.model.clip import CLIP, Vision, trim

TINY = dataclasses.replace(MODELS["test"], vocab_size=50)


def test_padding_never_counts_and_gets_no_gradient():
    model = CLIP(TINY).double()
    tokens = captions([4, 9, 6])
    assert trim(tokens).shape == (3, 9)
    whole = model.text(tokens)
    torch.testing.assert_close(model.text(trim(tokens)), whole, rtol=1e-12, atol=1e-12)
    padded = tokens.clone()
    padded[0, 5:] = 7
    torch.testing.assert_close(model.text(padded), whole, rtol=1e-12, atol=1e-12)
    whole.square().sum().backward()
    assert model.text.positional_embedding.grad[9:].abs().max() == 0
    assert model.text.token_embedding.weight.grad[0].abs().max() == 0


def test_a_word_changes_only_its_own_caption():
    model = CLIP(TINY)
    tokens = captions([4, 9, 6])
    before = model.encode_text(tokens)
    tokens[1, 2] = 3 if tokens[1, 2] != 3 else 4
    after = model.encode_text(tokens)
    torch.testing.assert_close(after[[0, 2]], before[[0, 2]])
    assert (after[1] - before[1]).abs().max() > 1e-4


@pytest.mark.parametrize("shape", [(2, 3, 32, 16), (2, 1, 32, 32), (2, 3, 64, 64)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"images of shape .*; the model takes \[3, 32, 32\]"):
        Vision(TINY)(torch.zeros(shape))
