from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F

from train.config import MODELS
from train.model import CLIP
from train.weights import (
    from_open_clip,
    load_export,
    model_config_of,
    open_clip_config,
    save_export,
    to_open_clip,
)

# True widths of heads, so that their order matters; else as small as can be.
_FEW = {"vision_layers": 2, "text_layers": 2, "vocab_size": 300, "context_length": 16}
_NARROW = {"image_size": 42, "vision_mlp": 160, "text_width": 128, "text_heads": 2, "text_mlp": 128, "embed_dim": 64}
PARITY = {
    "ViT-S-32": dataclasses.replace(MODELS["ViT-S-32"], **_FEW, image_size=96),
    "ViT-B-32-quickgelu": dataclasses.replace(MODELS["ViT-B-32-quickgelu"], **_FEW, **{**_NARROW, "image_size": 96}),
    "ViT-H-14": dataclasses.replace(MODELS["ViT-H-14"], **_FEW, **_NARROW),
    "ViT-g-14": dataclasses.replace(MODELS["ViT-g-14"], **_FEW, **_NARROW),
    "micro": dataclasses.replace(MODELS["micro"], **_FEW),
}
SMALL = dataclasses.replace(MODELS["test"], vocab_size=300)


def theirs(config, custom_text=False):
    from open_clip.model import CLIP as OpenClip
    from open_clip.model import CustomTextCLIP

    torch.manual_seed(0)
    model = (CustomTextCLIP if custom_text else OpenClip)(**open_clip_config(config)["model_cfg"])
    for parameter in model.parameters():
        if parameter.ndim < 2:  # biases start at 0, which would hide a wrong order
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def inputs(config):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(4, 3, config.image_size, config.image_size, generator=generator)
    tokens = torch.zeros((4, config.context_length), dtype=torch.int64)
    for row, length in enumerate((3, 9, 5, 12)):
        tokens[row, :length] = torch.randint(1, 299, (length,), generator=generator)
        tokens[row, length - 1] = 299
    return image, tokens


def loss(image, text, scale):
    logits, own = scale * image @ text.T, torch.arange(len(image))
    return F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)


@pytest.mark.parametrize("name", PARITY)
def test_logits_and_gradients_are_open_clip_s(name):
    config = PARITY[name]
    reference = theirs(config).double()
    model = CLIP(config).double()
    model.load_state_dict(from_open_clip(reference.state_dict(), config))
    image, tokens = inputs(config)
    a, b = reference.encode_image(image.double(), normalize=True), reference.encode_text(tokens, normalize=True)
    ours = model(image.double(), tokens)
    torch.testing.assert_close(
        ours[2] * ours[0] @ ours[1].T, reference.logit_scale.exp() * a @ b.T, rtol=1e-9, atol=1e-12
    )
    loss(a, b, reference.logit_scale.exp()).backward()
    loss(*ours[:3]).backward()
    wanted = from_open_clip({n: p.grad for n, p in reference.named_parameters()}, config)
    for n, parameter in model.named_parameters():
        assert (parameter.grad - wanted[n]).norm() <= 1e-9 * wanted[n].norm(), n


@pytest.mark.parametrize("custom_text", [False, True])
def test_a_checkpoint_goes_through_both_ways_bit_for_bit(custom_text):
    state = theirs(SMALL, custom_text).state_dict()
    model = CLIP(SMALL)
    model.load_state_dict(from_open_clip(state, SMALL))
    back = to_open_clip(model)
    names = {name.removeprefix("text."): value for name, value in state.items()}
    assert set(back) == set(names)
    for name, value in back.items():
        assert value.is_contiguous()
        assert torch.equal(value, names[name]), name


def test_what_does_not_fit_is_named():
    state = to_open_clip(CLIP(SMALL))
    with pytest.raises(ValueError, match=r"has no 'visual.proj'"):
        from_open_clip({k: v for k, v in state.items() if k != "visual.proj"}, SMALL)
    with pytest.raises(ValueError, match=r"does not: visual.extra"):
        from_open_clip({**state, "visual.extra": torch.zeros(1)}, SMALL)
    with pytest.raises(ValueError, match=r"token_embedding.weight has shape"):
        from_open_clip({**state, "token_embedding.weight": torch.zeros(7, 32)}, SMALL)


@pytest.mark.parametrize("name", MODELS)
def test_open_clip_s_settings_and_ours_say_the_same(name):
    from open_clip.factory import get_model_config

    written = open_clip_config(MODELS[name])["model_cfg"]
    assert model_config_of(written) == MODELS[name]
    for tower in ("vision", "text"):
        side = written[f"{tower}_cfg"]
        assert int(side["width"] * side["mlp_ratio"]) == getattr(MODELS[name], f"{tower}_mlp")
    if name not in ("micro", "test"):
        assert model_config_of(get_model_config(name)) == MODELS[name]


def test_other_models_are_refused():
    written = open_clip_config(SMALL)["model_cfg"]
    with pytest.raises(ValueError, match="'hf_model_name' makes this another model"):
        model_config_of({**written, "text_cfg": {**written["text_cfg"], "hf_model_name": "roberta-base"}})


@pytest.mark.parametrize("siglip", [False, True])
def test_open_clip_loads_what_is_exported(tmp_path, siglip):
    import open_clip

    config = dataclasses.replace(MODELS["test"], context_length=12, logit_bias=siglip)
    model = CLIP(config, seed=5).eval()
    folder = str(tmp_path / "export")
    save_export(model, folder)
    loaded, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    loaded.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    tokens = tokenizer(["a photo of a cat", "two dogs on a very long walk through the wide and quiet woods"])
    assert tokens.shape == (2, 12)
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_image(image), loaded.encode_image(image, normalize=True), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            model.encode_text(tokens), loaded.encode_text(tokens, normalize=True), atol=1e-5, rtol=0
        )
    assert preprocess.transforms[-1].mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert (loaded.logit_bias is not None) == siglip
    again = load_export(folder)
    assert again.config == config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no open_clip model"):
        load_export(str(tmp_path))
    save_export(CLIP(SMALL), str(tmp_path))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"hello": 1}))
    with pytest.raises(ValueError, match="has no model_cfg"):
        load_export(str(tmp_path))
