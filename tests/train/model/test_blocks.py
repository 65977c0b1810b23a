"""A block: its last token alone, and the type of the residual stream."""

from __future__ import annotations

import pytest
import torch

from train.model.clip import QKV, Block, LayerNorm


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_block_computes_one_token_exactly(causal):
    generator = torch.Generator().manual_seed(0)
    block = Block(32, 4, 64, causal=causal, quick_gelu=False).double()
    for parameter in block.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    x = torch.randn(5, 9, 32, generator=generator, dtype=torch.float64)
    index = torch.tensor([8, 0, 3, 5, 1]) if causal else None
    whole = block(x)
    picked = whole[torch.arange(5), index] if causal else whole[:, 0]
    torch.testing.assert_close(block(x, last=True, end_B=index), picked, rtol=1e-12, atol=1e-12)


def test_queries_of_some_tokens_are_those_of_all():
    layer = QKV(32, 4)
    layer.weight.data.normal_(0, 0.3)
    layer.bias.data.normal_()
    h = torch.randn(3, 5, 32)
    q, k, v = layer(h)
    some_q, same_k, same_v = layer(h, at=(slice(None), 2))
    assert q.shape == (3, 5, 4, 8)
    torch.testing.assert_close(some_q, q[:, 2])
    torch.testing.assert_close(same_k, k)
    torch.testing.assert_close(same_v, v)


def test_a_norm_keeps_the_type_under_autocast():
    norm = LayerNorm(8)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_norm_with_weights_in_16_bits_takes_a_residual_in_fp32_and_computes_in_fp32():
    norm, x = LayerNorm(8), torch.randn(2, 8)
    expected = norm(x)
    norm.bfloat16()  # ones and zeros: their rounding is exact
    with torch.autocast("cpu", torch.bfloat16):
        normalised = norm(x)
    assert normalised.dtype == torch.float32
    assert torch.equal(normalised, expected)
