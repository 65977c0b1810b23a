"""Checkpoints under open_clip's names, both ways and bit for bit, and the folder that it loads."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from manifests import disk
from train.model import CLIP, IMAGE_MEAN, IMAGE_STD, ModelConfig

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


def open_clip_name(name: str) -> str:
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
    return {name: (open_clip_name(name), value.shape) for name, value in ours.items()}


def _heads(config: ModelConfig, name: str) -> int:
    return config.vision_heads if name.startswith("visual.") else config.text_heads


def _their_shape(name: str, shape: Sequence[int], config: ModelConfig) -> list[int]:
    if name == "visual.patch.weight":
        return [config.vision_width, config.num_channels, config.patch_size, config.patch_size]
    return list(shape)


def to_open_clip(model: CLIP) -> dict[str, Tensor]:
    """The model's parameters as open_clip's state dict: contiguous copies in main memory."""
    return renamed(model.state_dict(), model.config)


def renamed(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """What is kept for each of our parameters (itself, or a moment of it) under open_clip's names
    and in its order.
    """
    theirs = {}
    for name, value in state.items():
        value = value.detach().cpu()
        if ".qkv." in name:  # [H, 3, D] -> [3, H, D]
            value = (
                value.view(_heads(config, name), 3, -1, *value.shape[1:])
                .transpose(0, 1)
                .reshape(value.shape)
            )
        value = value.reshape(_their_shape(name, value.shape, config))
        theirs[open_clip_name(name)] = value.clone(memory_format=torch.contiguous_format)
    return theirs


def from_open_clip(state: Mapping[str, Any], config: ModelConfig) -> dict[str, Tensor]:
    """open_clip's state dict, or a checkpoint of its training that holds one, as ours: the inverse
    of `renamed`.

    A text tower under `text.`, names under `module.` and a logit scale of shape [1] are read too.
    ValueError names what is missing, left over or of another shape, with the setting that would fit
    it.
    """
    theirs = plain_names(state)
    ours = {}
    for name, (their_name, shape) in _names(config).items():
        if their_name not in theirs:
            raise ValueError(
                f"the checkpoint has no {their_name!r}; "
                "is it another model than the one configured?"
            )
        value = theirs.pop(their_name)
        wanted = _their_shape(name, shape, config)
        if list(value.shape) != wanted and not (shape.numel() == value.numel() == 1):
            raise ValueError(
                f"{their_name} has shape {list(value.shape)}; {wanted} is what the model takes"
                + _mend(name, value.shape, config)
            )
        if ".qkv." in name:  # [3, H, D] -> [H, 3, D]
            value = value.view(3, _heads(config, name), -1, *value.shape[1:]).transpose(0, 1)
        ours[name] = value.reshape(shape).clone()
    if theirs:
        raise ValueError(
            "the checkpoint has parameters that the model does not: "
            f"{', '.join(sorted(theirs)[:3])}"
        )
    return ours


def plain_names(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """open_clip's own parameter names, whatever wrapped the model or its text tower; no buffers."""
    state = state["state_dict"] if isinstance(state.get("state_dict"), Mapping) else state
    theirs = {}
    for name, value in state.items():
        for prefix in ("module.", "_orig_mod.", "text."):
            name = name.removeprefix(prefix)
        if name != "attn_mask":
            theirs[name] = value
    return theirs


def _mend(name: str, shape: Sequence[int], config: ModelConfig) -> str:
    """How the settings would have to be for a table of this shape."""
    if name == "text.token_embedding.weight":
        return (
            f": its vocabulary has {shape[0]} tokens; "
            f"set vocab_size to {shape[0]} and use its tokenizer"
        )
    if name == "text.positional_embedding":
        return f": it was trained on {shape[0]} tokens; set context_length to {shape[0]}"
    if name == "visual.positional_embedding":
        patches, first = config.patches, config.class_token_length
        return (
            f": it saw {shape[0] - first} patches, not {patches}; "
            "set image_size or patch_size to its own"
        )
    return ""


# --- files ----------------------------------------------------------------------------------------


def read_state(path: str) -> dict[str, Any]:
    """The tensors of a .safetensors file, or of one that torch saved (.bin, .pt, .pth), of which
    nothing is executed.

    ValueError for a file that holds anything but tensors and plain values.
    """
    data = disk.read_bytes(path)
    try:
        if path.endswith(".safetensors"):
            state: dict[str, Any] = safetensors.torch.load(data)
        else:
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"{path} holds no plain tensors: {' '.join(str(error).split())[:200]}"
        ) from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, not parameters by name")
    return state


# --- the folder -----------------------------------------------------------------------------------


_EXTRA = (  # of a picture tower: our name, the name in vision_cfg, the value that is not written
    ("drop_patch_rate", "patch_dropout", 0.0),
    ("class_token_length", "class_token_length", 1),
    ("num_channels", "num_channels", 3),
)


def open_clip_config(config: ModelConfig) -> dict[str, Any]:
    """`open_clip_config.json`: the model, and how its pictures are prepared.

    Several class tokens and other numbers of channels are written too; open_clip then refuses the
    folder by their name. What is left out only while training is not written, but for the patches.
    """
    model: dict[str, Any] = {
        "embed_dim": config.embed_dim,
        "quick_gelu": config.quick_gelu,
        "vision_cfg": {
            "image_size": config.image_size
            if config.image_width is None
            else list(config.height_width),
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
    if config.global_average_pool:
        model["vision_cfg"]["pool_type"] = "avg"
    for ours, theirs, usual in _EXTRA:
        if getattr(config, ours) != usual:
            model["vision_cfg"][theirs] = getattr(config, ours)
    return {
        "model_cfg": model,
        "preprocess_cfg": {"mean": list(config.image_mean), "std": list(config.image_std)},
    }


def _ratio(mlp: int, width: int) -> float:
    """A number whose product with `width`, cut to a whole number as open_clip does, is `mlp`."""
    return mlp / width if int(width * (mlp / width)) == mlp else (mlp + 0.5) / width


def model_config_of(
    settings: Mapping[str, Any], preprocess: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A ModelConfig from open_clip's `model_cfg` and `preprocess_cfg`. ValueError for what these
    towers cannot be.
    """
    vision, text = dict(settings["vision_cfg"]), dict(settings["text_cfg"])
    rest = {k: v for k, v in settings.items() if k not in ("vision_cfg", "text_cfg")}
    vision_width, text_width = vision.pop("width", 768), text.pop("width", 512)
    side, preprocess = vision.pop("image_size", 224), preprocess or {}
    height, wide = (side, side) if isinstance(side, int) else side
    pool = vision.pop("pool_type", "tok")
    if pool not in ("tok", "avg"):
        raise ValueError(
            f"open_clip's pool_type {pool!r} makes this another model than the ones trained here"
        )
    config = ModelConfig(
        embed_dim=rest.pop("embed_dim"),
        image_size=height,
        image_width=None if wide == height else wide,
        image_mean=tuple(preprocess.get("mean", IMAGE_MEAN)),
        image_std=tuple(preprocess.get("std", IMAGE_STD)),
        global_average_pool=pool == "avg",
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
        **{ours: vision.pop(theirs, usual) for ours, theirs, usual in _EXTRA},
    )
    # How it is stored and where it started: not what it computes
    for name in ("custom_text", "init_logit_scale"):
        rest.pop(name, None)
    others = sorted({**rest, **vision, **text})
    if others:
        raise ValueError(
            f"open_clip's setting {others[0]!r} makes this another model than the ones trained here"
        )
    return config


def save_export(model: CLIP, folder: str, state: Mapping[str, Tensor] | None = None) -> None:
    """Write the folder that `open_clip.create_model_and_transforms("local-dir:FOLDER")` loads; its
    JSON comes last.

    `state` holds the parameters by our names where the model's own are not whole.
    """
    theirs = to_open_clip(model) if state is None else renamed(state, model.config)
    disk.write_bytes(
        disk.join(folder, WEIGHTS_FILE), safetensors.torch.save(theirs, {"format": "pt"})
    )
    disk.write_json(disk.join(folder, CONFIG_FILE), open_clip_config(model.config))


def load_export(folder: str) -> CLIP:
    """The model of an open_clip folder (ours or one from elsewhere), in main memory and 32 bits."""
    files = [name for end in (".safetensors", ".bin") for name in disk.list_names(folder, end)]
    if not files or not disk.exists(disk.join(folder, CONFIG_FILE)):
        raise ValueError(f"{folder} holds no open_clip model ({CONFIG_FILE} and {WEIGHTS_FILE})")
    settings = disk.read_json(disk.join(folder, CONFIG_FILE))
    if "model_cfg" not in settings:
        raise ValueError(f"{disk.join(folder, CONFIG_FILE)} has no model_cfg")
    config = model_config_of(settings["model_cfg"], settings.get("preprocess_cfg"))
    file = WEIGHTS_FILE if WEIGHTS_FILE in files else files[0]
    model = CLIP(config)
    model.load_state_dict(from_open_clip(read_state(disk.join(folder, file)), config))
    return model
