"""Checkpoints under open_clip's names, both ways and bit for bit, and the folder that open_clip loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from manifests import disk
from train.config import IMAGE_MEAN, IMAGE_STD, ModelConfig
from train.model import CLIP

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"

# Ours -> open_clip's, inside a block and outside.
_BLOCK = {
    "ln_1": "ln_1",
    "qkv.weight": "attn.in_proj_weight",
    "qkv.bias": "attn.in_proj_bias",
    "out": "attn.out_proj",
    "ln_2": "ln_2",
    "fc1": "mlp.c_fc",
    "fc2": "mlp.c_proj",
}
_TOP = {"visual.patch.weight": "visual.conv1.weight", "text.proj": "text_projection"}


def _their_name(name: str) -> str:
    """open_clip's name of one of our parameters."""
    if name in _TOP:
        return _TOP[name]
    tower, _, rest = name.partition(".blocks.")
    if rest:
        number, _, inner = rest.partition(".")
        key = inner if inner in _BLOCK else inner.rpartition(".")[0]
        prefix = "visual.transformer" if tower == "visual" else "transformer"
        return f"{prefix}.resblocks.{number}.{_BLOCK[key]}{inner[len(key) :]}"
    return name.removeprefix("text.")


def _names(config: ModelConfig) -> dict[str, tuple[str, torch.Size]]:
    """Our name -> open_clip's and our shape, of every parameter."""
    with torch.device("meta"):
        ours = CLIP(config).state_dict()
    return {name: (_their_name(name), value.shape) for name, value in ours.items()}


def _heads(config: ModelConfig, name: str) -> int:
    return config.vision_heads if name.startswith("visual.") else config.text_heads


def to_open_clip(model: CLIP) -> dict[str, Tensor]:
    """The model's parameters as open_clip's state dict: contiguous copies in main memory."""
    config = model.config
    theirs = {}
    for name, value in model.state_dict().items():
        value = value.detach().cpu()
        if ".qkv." in name:  # [H, 3, D] -> [3, H, D]
            value = value.view(_heads(config, name), 3, -1, *value.shape[1:]).transpose(0, 1).reshape(value.shape)
        elif name == "visual.patch.weight":
            value = value.view(-1, 3, config.patch_size, config.patch_size)
        theirs[_their_name(name)] = value.clone(memory_format=torch.contiguous_format)
    return theirs


def from_open_clip(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """open_clip's state dict as ours. A text tower under `text.` and a logit scale of shape [1] are read too.

    ValueError names what is missing, left over or of another shape.
    """
    theirs = {name.removeprefix("module.").removeprefix("text."): value for name, value in state.items()}
    theirs.pop("attn_mask", None)
    ours = {}
    for name, (their_name, shape) in _names(config).items():
        if their_name not in theirs:
            raise ValueError(f"the checkpoint has no {their_name!r}; is it another model than the one configured?")
        value = theirs.pop(their_name)
        if value.numel() != shape.numel():
            raise ValueError(f"{their_name} has shape {list(value.shape)}; {list(shape)} is what the model takes")
        if ".qkv." in name:  # [3, H, D] -> [H, 3, D]
            value = value.view(3, _heads(config, name), -1, *value.shape[1:]).transpose(0, 1)
        ours[name] = value.reshape(shape).clone()
    if theirs:
        raise ValueError(f"the checkpoint has parameters that the model does not: {', '.join(sorted(theirs)[:3])}")
    return ours


# --- the folder ----------------------------------------------------------------------------------------------------


def open_clip_config(config: ModelConfig) -> dict[str, Any]:
    """`open_clip_config.json`: the model, and how its pictures are prepared."""
    model: dict[str, Any] = {
        "embed_dim": config.embed_dim,
        "quick_gelu": config.quick_gelu,
        "vision_cfg": {
            "image_size": config.image_size,
            "patch_size": config.patch_size,
            "width": config.vision_width,
            "layers": config.vision_layers,
            "head_width": config.vision_width // config.vision_heads,
            "mlp_ratio": _ratio(config.vision_mlp, config.vision_width),
        },
        "text_cfg": {
            "context_length": config.context_length,
            "vocab_size": config.vocab_size,
            "width": config.text_width,
            "layers": config.text_layers,
            "heads": config.text_heads,
            "mlp_ratio": _ratio(config.text_mlp, config.text_width),
        },
    }
    if config.logit_bias:
        model["init_logit_bias"] = 0.0
    return {"model_cfg": model, "preprocess_cfg": {"mean": list(IMAGE_MEAN), "std": list(IMAGE_STD)}}


def _ratio(mlp: int, width: int) -> float:
    """A number whose product with `width`, cut to a whole number as open_clip does, is `mlp`."""
    return mlp / width if int(width * (mlp / width)) == mlp else (mlp + 0.5) / width


def model_config_of(settings: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from open_clip's `model_cfg`. ValueError for what these towers cannot be."""
    vision, text = dict(settings["vision_cfg"]), dict(settings["text_cfg"])
    rest = {k: v for k, v in settings.items() if k not in ("vision_cfg", "text_cfg")}
    vision_width, text_width = vision.pop("width", 768), text.pop("width", 512)
    config = ModelConfig(
        embed_dim=rest.pop("embed_dim"),
        image_size=vision.pop("image_size", 224),
        patch_size=vision.pop("patch_size", 16),
        vision_width=vision_width,
        vision_layers=vision.pop("layers", 12),
        vision_heads=vision_width // vision.pop("head_width", 64),
        vision_mlp=int(vision_width * vision.pop("mlp_ratio", 4.0)),
        text_width=text_width,
        text_layers=text.pop("layers", 12),
        text_heads=text.pop("heads", 8),
        text_mlp=int(text_width * text.pop("mlp_ratio", 4.0)),
        context_length=text.pop("context_length", 77),
        vocab_size=text.pop("vocab_size", 49408),
        quick_gelu=rest.pop("quick_gelu", False),
        logit_bias=rest.pop("init_logit_bias", None) is not None,
    )
    for name in ("custom_text", "init_logit_scale"):  # how it is stored and where it started: not what it computes
        rest.pop(name, None)
    others = sorted({**rest, **vision, **text})
    if others:
        raise ValueError(f"open_clip's setting {others[0]!r} makes this another model than the ones trained here")
    return config


def save_export(model: CLIP, folder: str) -> None:
    """Write the folder that `open_clip.create_model_and_transforms("local-dir:FOLDER")` loads; its JSON comes last."""
    disk.write_bytes(disk.join(folder, WEIGHTS_FILE), safetensors.torch.save(to_open_clip(model), {"format": "pt"}))
    disk.write_json(disk.join(folder, CONFIG_FILE), open_clip_config(model.config))


def load_export(folder: str) -> CLIP:
    """The model of an open_clip folder (ours or one in safetensors from elsewhere), in main memory and 32 bits."""
    files = disk.names(folder, ".safetensors")
    if not files or not disk.exists(disk.join(folder, CONFIG_FILE)):
        raise ValueError(f"{folder} holds no open_clip model ({CONFIG_FILE} and {WEIGHTS_FILE})")
    settings = disk.read_json(disk.join(folder, CONFIG_FILE))
    if "model_cfg" not in settings:
        raise ValueError(f"{disk.join(folder, CONFIG_FILE)} has no model_cfg")
    config = model_config_of(settings["model_cfg"])
    file = WEIGHTS_FILE if WEIGHTS_FILE in files else files[0]
    state = safetensors.torch.load(disk.read_bytes(disk.join(folder, file)))
    model = CLIP(config)
    model.load_state_dict(from_open_clip(state, config))
    return model
