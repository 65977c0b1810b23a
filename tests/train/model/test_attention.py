import dataclasses
from itertools import pairwise

import pytest
import torch

from clipmill.train.model import clip
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP, attend, caption_lengths, pack_captions
from tests.support.captions import captions

CONFIG = dataclasses.replace(MODELS["test"], vocab_size=50, text_layers=3)


def features_and_gradients(tokens, dtype):
    model = CLIP(CONFIG, seed=2).to(dtype)
    features = model.encode_text(tokens)
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    (features * weight).sum().backward()
    return features, {name: p.grad for name, p in model.text.named_parameters()}


def test_a_packed_batch_holds_each_caption_up_to_its_end():
    tokens = captions([4, 3, 6])
    packed = pack_captions(tokens)
    assert packed.offset_B1.tolist() == [0, 4, 7, 13]
    assert packed.offset_B1.dtype == torch.int32
    assert packed.position_N.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert packed.token_N.tolist() == [*tokens[0, :4], *tokens[1, :3], *tokens[2, :6]]
    assert packed.longest == 6
    assert caption_lengths(tokens).tolist() == [4, 3, 6]
    assert all(
        torch.equal(a, b)
        for a, b in zip(pack_captions(tokens, torch.tensor([4, 3, 6]))[:4], packed[:4], strict=True)
    )
    assert packed.to("meta").token_N.device.type == "meta"


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_captions_without_their_padding_give_the_same_features_and_gradients(dtype, bound):
    tokens = captions()
    wanted, their = features_and_gradients(tokens, dtype)
    features, ours = features_and_gradients(pack_captions(tokens), dtype)
    assert (features - wanted).abs().max() <= bound
    for name, grad in their.items():
        assert (ours[name] - grad).norm() <= 5 * bound * grad.norm().clamp(min=1e-3), name


def loop(q, k, v, start_q, start_k, longest_q, longest_k, causal):
    """What a kernel for packed sequences computes, one sequence after another."""
    assert start_q.dtype == start_k.dtype == torch.int32
    assert longest_q == int(start_q.diff().max())
    assert longest_k == int(start_k.diff().max())
    outputs = []
    for (a, b), (c, d) in zip(pairwise(start_q), pairwise(start_k), strict=True):
        one = (q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), v[c:d].transpose(0, 1))
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(*one, is_causal=causal).transpose(0, 1)
        )
    return torch.cat(outputs)


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
@pytest.mark.parametrize("dense", [False, True])
def test_the_kernels_for_packed_sequences_are_called_as_they_ask(monkeypatch, kernel, dense):
    monkeypatch.setattr(clip, "HALVES", (torch.float64,))
    monkeypatch.setattr(clip, "_kernel", lambda wanted, q, packed: wanted)
    monkeypatch.setattr(clip, f"_{kernel}", lambda: loop)
    other_kernel = "_varlen" if kernel == "flash" else "_flash"
    monkeypatch.setattr(clip, other_kernel, lambda: None)
    tokens, image = captions(), torch.randn(7, 3, 32, 32, dtype=torch.float64)
    wanted, other = (CLIP(CONFIG, seed=2, attention=k).double() for k in ("sdpa", kernel))
    features = other.encode_text(tokens if dense else pack_captions(tokens))
    torch.testing.assert_close(features, wanted.encode_text(tokens), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        other.encode_image(image), wanted.encode_image(image), rtol=1e-12, atol=1e-12
    )


def test_torch_s_varlen_has_a_switch_for_causality(monkeypatch):
    seen = []
    module = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(
        module, "varlen_attn", lambda *a, window_size=(-1, -1): seen.append(window_size) or a[0]
    )
    attend_varlen = clip._find_varlen()
    for causal in (True, False):
        attend_varlen(torch.zeros(1), causal=causal)
    monkeypatch.setattr(
        module, "varlen_attn", lambda *a, is_causal=False: seen.append(is_causal) or a[0]
    )
    clip._find_varlen()(torch.zeros(1), causal=True)
    assert seen == [(-1, 0), (-1, -1), True]


@pytest.mark.parametrize("limited", [False, True])
def test_one_query_written_out_is_attention(limited):
    q, k, v = torch.randn(3, 1, 2, 8), torch.randn(3, 5, 2, 8), torch.randn(3, 5, 2, 8)
    end_B = torch.tensor([0, 4, 2]) if limited else None
    shares = [x.transpose(1, 2) for x in (q, k, v)]
    explicit = clip._explicit_attention(*shares, False, end_B).transpose(1, 2)
    torch.testing.assert_close(explicit, attend(q, k, v, causal=False, end_B=end_B))


def test_a_kernel_that_cannot_run_is_refused_with_the_reason(monkeypatch):
    q = torch.zeros(1, 2, 2, 8)
    for kernel in ("varlen", "flash"):
        with pytest.raises(ValueError, match="needs a GPU and bf16 or fp16, not float32 on cpu"):
            attend(q, q, q, kernel, causal=True)
    monkeypatch.setattr(clip, "_flash", lambda: None)
    with pytest.raises(ValueError, match="flash-attn is not installed"):
        CLIP(CONFIG, attention="flash")
    monkeypatch.setattr(clip, "_varlen", lambda: None)
    with pytest.raises(ValueError, match=r"'varlen', which torch .* lacks"):
        CLIP(CONFIG, attention="varlen")
