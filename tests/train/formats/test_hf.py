"""Hugging Face's folders: weights, settings, tokenizer."""

import dataclasses
import json
import sys

import pytest
import torch
import transformers

from clipmill.train.formats import hf
from clipmill.train.formats.hf import (
    from_hf,
    hf_config,
    load_hf,
    model_config_of_hf,
    save_hf,
    save_tokenizer,
    to_hf,
)
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support.late import open_clip

SMALL = dataclasses.replace(
    MODELS["test"], vocab_size=60, embed_dim=24, vision_layers=1, text_layers=1, text_mlp=96
)
BASE_32 = {
    "model_type": "clip",
    "projection_dim": 512,
    "text_config": {"eos_token_id": 2},
    "vision_config": {},
}


def theirs():
    """Random numbers under the names and in the shapes of CLIPModel's parameters."""
    generator = torch.Generator().manual_seed(0)
    model = transformers.CLIPModel(transformers.CLIPConfig(**hf_config(SMALL)))
    return {
        name: torch.randn(value.shape, generator=generator)
        for name, value in model.named_parameters()
    }


def test_a_checkpoint_goes_through_both_ways_bit_for_bit():
    state = theirs()
    buffers = {
        f"{t}_model.embeddings.position_ids": torch.arange(5)[None] for t in ("text", "vision")
    }
    model = CLIP(SMALL)
    model.load_state_dict(from_hf({**state, **buffers}, SMALL))
    back = to_hf(model)
    assert set(back) == set(state)
    for name, value in back.items():
        assert value.is_contiguous()
        assert torch.equal(value, state[name]), name


def given():
    tokens = torch.randint(1, 58, (3, 16), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((4, 9, 16)):
        tokens[row, length - 1] = 59
        tokens[row, length:] = 0
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double(), tokens


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_transformers_loads_what_is_exported(tmp_path, quick_gelu):
    model = CLIP(dataclasses.replace(SMALL, quick_gelu=quick_gelu), seed=4).double()
    save_hf(model, str(tmp_path))
    loaded = transformers.CLIPModel.from_pretrained(str(tmp_path), torch_dtype=torch.float64).eval()
    image, tokens = given()
    out = loaded(pixel_values=image, input_ids=tokens)
    torch.testing.assert_close(model.encode_image(image), out.image_embeds, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model.encode_text(tokens), out.text_embeds, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_comes_back_with_its_settings(tmp_path, file):
    config = dataclasses.replace(SMALL, quick_gelu=True, image_mean=(0.5, 0.5, 0.5))
    model = CLIP(config, seed=4)
    save_hf(model, str(tmp_path))
    if file != "model.safetensors":
        (tmp_path / "model.safetensors").unlink()
        torch.save(to_hf(model), tmp_path / file)
    again = load_hf(str(tmp_path))
    assert again.config == config
    assert all(
        torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items()
    )


def test_settings_that_are_left_out_are_hugging_face_s_own():
    assert model_config_of_hf(BASE_32) == MODELS["ViT-B-32-quickgelu"]
    for name, config in MODELS.items():
        assert model_config_of_hf(hf_config(config)) == config, name
    text = hf_config(MODELS["ViT-L-14-quickgelu"])["text_config"]
    assert (text["hidden_act"], text["eos_token_id"], text["hidden_size"]) == (
        "quick_gelu",
        49407,
        768,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "siglip"}, "model_type is 'siglip'"),
        ({"text_config": {"hidden_act": "gelu"}}, "hidden_act is gelu and quick_gelu"),
        ({"vision_config": {"hidden_act": "silu"}}, "hidden_act is quick_gelu and silu"),
        ({"vision_config": {"layer_norm_eps": 1e-6}}, "layer_norm_eps is 1e-06"),
        ({"vision_config": {"num_channels": 1}}, "num_channels is 1; it must be 3"),
        ({"text_config": {"eos_token_id": 7}}, "these towers pool at the highest token, 49407"),
    ],
)
def test_other_models_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        model_config_of_hf({**BASE_32, **change})


def test_what_clip_model_cannot_be_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="a logit bias"):
        save_hf(CLIP(dataclasses.replace(SMALL, logit_bias=True)), str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_does_not_fit_is_named(tmp_path):
    state = theirs()
    bias = "vision_model.encoder.layers.0.self_attn.k_proj.bias"
    turned = {"text_projection.weight": state["text_projection.weight"].T}
    for given, message in (
        ({name: value for name, value in state.items() if name != bias}, f"has no '{bias}'"),
        ({**state, **turned}, r"has shape \[32, 24\]; the model needs \[24, 32\]"),
        ({**state, "more": torch.zeros(1)}, "model lacks: more"),
    ):
        with pytest.raises(ValueError, match=message):
            from_hf(given, SMALL)
    with pytest.raises(ValueError, match="has no CLIPModel"):
        load_hf(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(BASE_32))
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(ValueError, match="is not a file of plain tensors"):
        load_hf(str(tmp_path))


# --------------------------------------------------------------------------------------------------


CAPTIONS = ["a photo of a cat", "naïve café, 3 items!", "", "the   spaced OUT words"]


def test_transformers_tokenizes_as_open_clip_does(tmp_path):
    transformers = pytest.importorskip("transformers")
    save_tokenizer(str(tmp_path), 77)
    theirs = transformers.CLIPTokenizer.from_pretrained(str(tmp_path))
    for caption, row in zip(CAPTIONS, open_clip.get_tokenizer("ViT-B-32")(CAPTIONS), strict=True):
        assert theirs(caption)["input_ids"] == row[: row.argmax() + 1].tolist()


def test_without_open_clip_the_folder_has_no_tokenizer_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)
    assert not save_tokenizer(str(tmp_path), 77)
    assert not list(tmp_path.iterdir())
    hf.save_hf(CLIP(MODELS["test"]), str(tmp_path))
    assert "has no tokenizer files" in caplog.text
    assert not (tmp_path / "vocab.json").exists()
