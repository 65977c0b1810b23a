"""A reduced token table: the same features, the rest decays, and it can be put back."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.captions import captions
from train.model.architecture import MODELS
from train.model.clip import CLIP, ReducedTokenTable

TINY = dataclasses.replace(MODELS["test"], vocab_size=50)


def test_a_reduced_token_table_gives_the_same_features_and_decays_the_rest():
    model, whole = CLIP(TINY, 1), CLIP(TINY, 1)
    tokens = captions([5, 7])
    used = torch.unique(tokens)
    table = ReducedTokenTable(model.text, used)
    assert model.text.token_embedding.weight.shape == (len(used), 32)
    assert torch.equal(model.encode_text(tokens), whole.encode_text(tokens))
    unused = next(t for t in range(50) if t not in used)
    with pytest.raises(IndexError):
        model.encode_text(torch.tensor([[unused, 49]]))
    table.restore(model.text, 0.5)
    before = whole.text.token_embedding.weight
    torch.testing.assert_close(model.text.token_embedding.weight[unused], before[unused] / 2)
    assert torch.equal(model.text.token_embedding.weight[used], before[used])
    assert model.text.token_embedding.weight.requires_grad
    assert model.encode_text(torch.tensor([[unused, 49]])).shape == (1, 32)
