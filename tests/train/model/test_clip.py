"""A model: sizes, blocks, towers, the reduced token table, its start, and what is locked."""

import dataclasses
import hashlib
import math

import pytest
import torch

from clipmill.manifests import disk
from clipmill.train.formats.open_clip_files import to_open_clip
from clipmill.train.model.architecture import MODELS, ModelConfig
from clipmill.train.model.clip import (
    CLIP,
    Block,
    LayerNorm,
    ReducedTokenTable,
    Vision,
    lock_tower,
    trim,
)
from clipmill.train.model.memory import block_parameters, parameter_count
from tests.support.captions import captions
from tests.support.late import open_clip


def test_impossible_models_are_refused():
    good = disk.to_plain(MODELS["test"])
    for change, message in (
        ({"image_size": 33}, "multiple of patch_size"),
        ({"text_heads": 3}, "multiple of text_heads"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelConfig(**{**good, **change})
    assert math.isclose(MODELS["test"].vision_mlp / MODELS["test"].vision_width, 4)


# Parameters of the towers, as published (open_clip's docs/model_profile.csv, to its last digit),
# and their heads.
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
    # More positions, and nothing else
    "ViT-L-14-336": (303_966_208 + (24**2 - 16**2) * 1024, 123_650_304),
}
HEADS = {
    "ViT-B-32": (12, 8),
    "ViT-B-16": (12, 8),
    "ViT-L-14": (16, 12),
    "ViT-L-14-336": (16, 12),
    "ViT-H-14": (16, 16),
    "ViT-g-14": (16, 16),
    "ViT-bigG-14": (16, 20),
    "ViT-e-14": (16, 20),
    "ViT-S-32": (6, 6),
    "ViT-S-16": (6, 6),
}


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


@pytest.mark.parametrize("name", ["test", "ViT-B-32", "ViT-L-14", "ViT-e-14"])
@pytest.mark.parametrize("logit_bias", [False, True])
def test_parameters_are_those_of_the_model(name, logit_bias):
    config = dataclasses.replace(MODELS[name], logit_bias=logit_bias)
    with torch.device("meta"):
        model = CLIP(config)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


def test_a_block_that_is_sharded_keeps_its_norms_and_output_biases_whole():
    split, rest = block_parameters(8, 32)
    with torch.device("meta"):
        block = torch.nn.TransformerEncoderLayer(8, 2, 32)
    assert split + rest == sum(p.numel() for p in block.parameters())
    assert rest == 2 * 2 * 8 + 2 * 8


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


@pytest.mark.parametrize("shape", [(2, 3, 32, 16), (2, 1, 32, 32), (2, 3, 64, 64)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"images of shape .*; the model takes \[3, 32, 32\]"):
        Vision(TINY)(torch.zeros(shape))


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


# --------------------------------------------------------------------------------------------------


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

    from clipmill.train.formats.open_clip_files import from_open_clip, open_clip_config

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


def test_golden_start():
    digest = hashlib.sha256()
    for name, parameter in sorted(CLIP(TINY, 3).named_parameters()):
        if name.endswith("_embedding"):
            digest.update(parameter.detach().numpy().tobytes())
    assert digest.hexdigest()[:16] == GOLDEN


GOLDEN = "4b932d887728bd72"

# --------------------------------------------------------------------------------------------------


CONFIG = dataclasses.replace(MODELS["test"], vision_layers=3, text_layers=2)


def trained_of_open_clip(image, text):
    """Which of open_clip's parameters are trained, where it locks its towers by its own code."""
    vision = {"image_size": 32, "layers": 3, "width": 64, "patch_size": 16}
    caption = {"context_length": 16, "vocab_size": 99, "width": 64, "heads": 2, "layers": 2}
    model = open_clip.model.CLIP(32, vision, caption)
    if image is not None:
        model.lock_image_tower(unlocked_groups=image)
    if text is not None:
        model.lock_text_tower(unlocked_layers=text)
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def trained_of_clipmill(image, text):
    """The same of our model, by open_clip's names."""
    model = CLIP(CONFIG)
    if image is not None:
        lock_tower(model.visual, CONFIG.vision_layers, image)
    if text is not None:
        lock_tower(model.text, CONFIG.text_layers, text)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(parameter.requires_grad))
    return {name: bool(value.all()) for name, value in to_open_clip(model).items()}


@pytest.mark.parametrize(
    ("image", "text"), [(None, None), (0, None), (None, 0), (1, 1), (2, 2), (3, 3), (4, 0), (0, 0)]
)
def test_the_locked_parameters_are_open_clips(image, text):
    assert trained_of_clipmill(image, text) == trained_of_open_clip(image, text)
