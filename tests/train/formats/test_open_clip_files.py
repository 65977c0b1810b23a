import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from clipmill.train.formats.open_clip_files import (
    from_open_clip,
    load_export,
    open_clip_config,
    read_state,
    save_export,
    to_open_clip,
)
from clipmill.train.model.architecture import MODELS, model_config_of
from clipmill.train.model.clip import CLIP

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


def test_what_does_not_fit_is_named_with_the_setting_that_would():
    state = to_open_clip(CLIP(SMALL))
    with pytest.raises(ValueError, match=r"has no 'visual.proj'"):
        from_open_clip({k: v for k, v in state.items() if k != "visual.proj"}, SMALL)
    with pytest.raises(ValueError, match=r"model lacks: visual.extra"):
        from_open_clip({**state, "visual.extra": torch.zeros(1)}, SMALL)
    for name, shape, message in (
        ("token_embedding.weight", (7, 32), "its vocabulary has 7 tokens; set vocab_size to 7"),
        ("positional_embedding", (77, 32), "it was trained on 77 tokens; set context_length to 77"),
        (
            "visual.positional_embedding",
            (50, 32),
            "trained on 49 patches, and this model has 4; set image_size or patch_size",
        ),
        (
            "visual.conv1.weight",
            (32, 3, 32, 8),
            r"has shape \[32, 3, 32, 8\]; the model needs \[32, 3, 16, 16\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            from_open_clip({**state, name: torch.zeros(shape)}, SMALL)


def test_wrapped_names_and_whole_checkpoints_are_read():
    state = to_open_clip(CLIP(SMALL, seed=3))
    wanted = from_open_clip(state, SMALL)
    text = (
        "token_embedding",
        "positional_embedding",
        "transformer.",
        "ln_final",
        "text_projection",
    )
    custom = {f"module.{'text.' if k.startswith(text) else ''}{k}": v for k, v in state.items()}
    for given in (
        {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}, "optimizer": {}},
        {
            **custom,
            "module.text.attn_mask": torch.zeros(16, 16),
            "module.logit_scale": state["logit_scale"][None],
        },
        {f"_orig_mod.{k}": v for k, v in state.items()},
    ):
        converted = from_open_clip(given, SMALL)
        assert all(torch.equal(converted[name], value) for name, value in wanted.items())


# --- files ----------------------------------------------------------------------------------------


class Runs:
    """Unpickled, it calls a function."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("kind", ["system", "eval", "exec", "popen", "legacy"])
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path, kind):
    marker, path = tmp_path / "marker", str(tmp_path / "weights.bin")
    touch = f"open({str(marker)!r}, 'w').close()"
    bad = {
        "system": Runs(os.system, f"touch {marker}"),
        "eval": Runs(eval, touch),
        "exec": Runs(exec, touch),
        "popen": Runs(subprocess.call, ["touch", str(marker)]),
        "legacy": Runs(getattr, Runs(__import__, "os"), f"system.{marker}"),
    }[kind]
    state = {**to_open_clip(CLIP(SMALL)), "visual.extra": bad}
    torch.save(state, path, _use_new_zipfile_serialization=kind != "legacy")
    with pytest.raises(ValueError, match="is not a file of plain tensors"):
        read_state(path)
    assert not marker.exists()
    (tmp_path / "open_clip_config.json").write_text(json.dumps(open_clip_config(SMALL)))
    with pytest.raises(ValueError, match="is not a file of plain tensors"):
        load_export(str(tmp_path))
    assert not marker.exists()


def test_nothing_but_tensors_is_ever_unpickled():
    for path in (Path(__file__).parents[3] / "train").rglob("*.py"):
        for call in re.findall(
            r"(?<!safetensors\.)torch\.load\((?:[^()]|\([^()]*\))*\)", path.read_text()
        ):
            assert "weights_only=True" in call, path
        assert not re.search(r"pickle\.loads?\(", path.read_text()), path


def test_weights_that_torch_saved_are_read(tmp_path):
    model = CLIP(SMALL, seed=3)
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in to_open_clip(model).items()}, "epoch": 3},
        tmp_path / "open_clip_pytorch_model.bin",
    )
    (tmp_path / "open_clip_config.json").write_text(json.dumps(open_clip_config(SMALL)))
    loaded = load_export(str(tmp_path))
    assert all(
        torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items()
    )
    torch.save(torch.zeros(3), tmp_path / "other.pt")
    with pytest.raises(ValueError, match="holds a Tensor; it must hold parameters by name"):
        read_state(str(tmp_path / "other.pt"))
    (tmp_path / "broken.safetensors").write_bytes(b"12345678")
    with pytest.raises(ValueError, match="is not a file of plain tensors"):
        read_state(str(tmp_path / "broken.safetensors"))


# --- the folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_open_clip_s_settings_and_ours_say_the_same(name):
    from open_clip.factory import get_model_config

    written = open_clip_config(MODELS[name])["model_cfg"]
    assert model_config_of(written) == MODELS[name]
    for tower in ("vision", "text"):
        side = written[f"{tower}_cfg"]
        assert int(side["width"] * side["mlp_ratio"]) == getattr(MODELS[name], f"{tower}_mlp")
    # open_clip lacks these
    if name not in ("micro", "test", "ViT-g-14-quickgelu", "ViT-e-14-quickgelu"):
        assert model_config_of(get_model_config(name)) == MODELS[name]


@pytest.mark.parametrize("changes", [{}, {"logit_bias": True}, {"drop_patch_rate": 0.25}])
def test_open_clip_loads_what_is_exported(tmp_path, changes):
    import open_clip

    config = dataclasses.replace(MODELS["test"], context_length=12, **changes)
    model = CLIP(config, seed=5).eval()
    folder = str(tmp_path / "export")
    save_export(model, folder)
    loaded, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    loaded.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    tokens = tokenizer(
        ["a photo of a cat", "two dogs on a very long walk through the wide and quiet woods"]
    )
    assert tokens.shape == (2, 12)
    image = torch.randn(2, 3, *config.height_width)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_image(image), loaded.encode_image(image, normalize=True), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            model.encode_text(tokens), loaded.encode_text(tokens, normalize=True), atol=1e-5, rtol=0
        )
    assert preprocess.transforms[-1].mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert (loaded.logit_bias is not None) == config.logit_bias
    again = load_export(folder)
    assert again.config == config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_models_with_other_pooling_or_channels_are_refused():
    written = open_clip_config(SMALL)["model_cfg"]
    for changes, message in (
        ({"pool_type": "avg"}, "pool_type is 'avg'; only tok"),
        ({"image_size": [32, 64]}, "only squares are supported"),
        ({"num_channels": 1}, "open_clip's setting 'num_channels' is of a model"),
    ):
        with pytest.raises(ValueError, match=message):
            model_config_of({**written, "vision_cfg": {**written["vision_cfg"], **changes}})


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no open_clip model"):
        load_export(str(tmp_path))
    save_export(CLIP(SMALL), str(tmp_path))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"hello": 1}))
    with pytest.raises(ValueError, match="has no model_cfg"):
        load_export(str(tmp_path))
