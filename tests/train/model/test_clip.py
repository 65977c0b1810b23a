from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.captions import captions
from train.model.architecture import MODELS
from train.model.attention import trim
from train.model.clip import CLIP, Block, ReducedTokenTable

TINY = dataclasses.replace(MODELS["test"], vocab_size=50)
# Parameters of the towers, as published (open_clip's docs/model_profile.csv, to its last digit), and their heads.
PARAMETERS = {
    "ViT-B-32": (87_849_216, 63_428_096),
    "ViT-B-16": (86_192_640, 63_428_096),
    "ViT-L-14": (303_966_208, 123_650_304),
    "ViT-H-14": (632_076_800, 354_032_640),
    "ViT-g-14": (1_012_645_632, 354_032_640),
    "ViT-bigG-14": (1_844_907_264, 694_659_840),
    "ViT-e-14": (3_807_716_864, 773_369_600),
    "ViT-S-32": (22_641_792, 40_444_032),
    "ViT-S-16": (21_813_504, 40_444_032),
    "ViT-L-14-336": (
        303_966_208 + (24**2 - 16**2) * 1024,
        123_650_304,
    ),  # more positions, and nothing else
}
HEADS = {
    "ViT-B-32": (12, 8), "ViT-B-16": (12, 8), "ViT-L-14": (16, 12), "ViT-L-14-336": (16, 12), "ViT-H-14": (16, 16),
    "ViT-g-14": (16, 16), "ViT-bigG-14": (16, 20), "ViT-e-14": (16, 20), "ViT-S-32": (6, 6), "ViT-S-16": (6, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("ViT")])
def test_the_towers_have_the_published_number_of_parameters_and_heads(name):
    config, base = MODELS[name], name.removesuffix("-quickgelu")
    with torch.device("meta"):
        model = CLIP(config)
    vision = sum(p.numel() for p in model.visual.parameters())
    text = sum(p.numel() for p in model.text.parameters())
    assert (vision, text) == PARAMETERS[base]
    assert sum(p.numel() for p in model.parameters()) == vision + text + 1
    assert (config.vision_heads, config.text_heads) == HEADS[base]
    assert model.visual.blocks[0].qkv.head_width == config.vision_width // config.vision_heads
    assert config == dataclasses.replace(MODELS[base], quick_gelu=base != name)


def test_features_are_unit_vectors_of_the_right_shape():
    model = CLIP(TINY)
    image, text, scale, bias = model(torch.randn(3, 3, 32, 32), captions([4, 9, 16]))
    assert image.shape == text.shape == (3, TINY.embed_dim)
    torch.testing.assert_close(image.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(text.norm(dim=1), torch.ones(3))
    assert scale.item() == pytest.approx(1 / 0.07)
    assert bias is None


def test_the_sigmoid_loss_has_a_bias():
    _, _, scale, bias = CLIP(dataclasses.replace(TINY, logit_bias=True))(
        torch.randn(1, 3, 32, 32), captions([4])
    )
    assert scale.item() == pytest.approx(10)
    assert bias.item() == -10


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


def test_the_seed_alone_decides_the_start():
    state = torch.get_rng_state()
    one, same, other = CLIP(TINY, 3), CLIP(TINY, 3), CLIP(TINY, 4)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn from the global generator
    for (name, a), b, c in zip(
        one.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        if a.ndim > 1:
            assert not torch.equal(a, c), name


def test_the_start_is_open_clip_s():
    torch.manual_seed(0)
    from open_clip.model import CLIP as Theirs

    from train.formats.open_clip_files import from_open_clip, open_clip_config

    config = dataclasses.replace(
        TINY, vision_width=128, text_width=128, embed_dim=64, vocab_size=500
    )
    theirs = from_open_clip(Theirs(**open_clip_config(config)["model_cfg"]).state_dict(), config)
    for name, ours in CLIP(config).state_dict().items():
        if ours.numel() > 1000:
            assert ours.std().item() == pytest.approx(theirs[name].std().item(), rel=0.05), name
            assert ours.abs().max().item() == pytest.approx(
                theirs[name].abs().max().item(), rel=0.35
            ), name
        elif ours.numel() > 1 and theirs[name].std() == 0:
            assert torch.equal(ours, theirs[name]), name
        elif ours.numel() > 1:
            assert ours.std().item() == pytest.approx(theirs[name].std().item(), rel=0.3), name
    assert math.isclose(theirs["logit_scale"].item(), math.log(1 / 0.07), rel_tol=1e-6)


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
