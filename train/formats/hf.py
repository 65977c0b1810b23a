"""Checkpoints under the names of Hugging Face's CLIPModel, both ways and bit for bit, and the
folder that it loads.

There queries, keys and values are three matrices, and projections are stored transposed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from manifests import disk
from train.formats.hf_tokenizer import CLIP_VOCABULARY, save_tokenizer
from train.formats.open_clip_files import read_state
from train.model import CLIP, IMAGE_MEAN, IMAGE_STD, LOGIT_SCALE, ModelConfig

CONFIG_FILE, PREPROCESS_FILE = "config.json", "preprocessor_config.json"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")

logger = logging.getLogger(__name__)

_TOP = {
    "logit_scale": "logit_scale",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.patch.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "visual.proj": "visual_projection.weight",
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final.weight": "text_model.final_layer_norm.weight",
    "text.ln_final.bias": "text_model.final_layer_norm.bias",
    "text.proj": "text_projection.weight",
}
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "out": "self_attn.out_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
_USUAL = {  # what a config.json leaves out
    "text_config": {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "vocab_size": 49408,
        "eos_token_id": 49407,
    },
    "vision_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
}


def _their_names(name: str) -> tuple[str, ...]:
    """Hugging Face's name of one of our parameters; three for queries, keys and values together."""
    if name in _TOP:
        return (_TOP[name],)
    tower, _, rest = name.partition(".blocks.")
    number, _, inner = rest.partition(".")
    layer = f"{'vision' if tower == 'visual' else 'text'}_model.encoder.layers.{number}"
    part, _, kind = inner.rpartition(".")
    if part == "qkv":
        return tuple(f"{layer}.self_attn.{letter}_proj.{kind}" for letter in "qkv")
    return (f"{layer}.{_BLOCK[part]}.{kind}",)


def _shapes(config: ModelConfig) -> Iterator[tuple[str, torch.Size]]:
    with torch.device("meta"):
        ours = CLIP(config).state_dict()
    yield from ((name, value.shape) for name, value in ours.items())


def _heads(config: ModelConfig, name: str) -> int:
    return config.vision_heads if name.startswith("visual.") else config.text_heads


def _their_shape(name: str, shape: torch.Size, config: ModelConfig) -> list[int]:
    if ".qkv." in name:
        return [shape[0] // 3, *shape[1:]]
    if name.endswith(".proj"):
        return [shape[1], shape[0]]
    if name == "visual.patch.weight":
        return [config.vision_width, config.num_channels, config.patch_size, config.patch_size]
    return list(shape)


def to_hf(model: CLIP) -> dict[str, Tensor]:
    """The model's parameters as CLIPModel's state dict: contiguous copies in main memory.

    ValueError for what CLIPModel cannot compute.
    """
    config = model.config
    hf_config(config)
    theirs: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        value, names = value.detach().cpu(), _their_names(name)
        if len(names) == 3:  # [H, 3, D] -> three of [H x D]
            parts = value.view(_heads(config, name), 3, -1, *value.shape[1:]).unbind(1)
            values = [part.reshape(-1, *value.shape[1:]) for part in parts]
        elif name.endswith(".proj"):
            values = [value.T]
        else:
            values = [value.reshape(_their_shape(name, value.shape, config))]
        theirs |= {
            key: x.clone(memory_format=torch.contiguous_format)
            for key, x in zip(names, values, strict=True)
        }
    return theirs


def from_hf(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """CLIPModel's state dict as ours. ValueError names what is missing, left over or of another
    shape.
    """
    theirs = {name: value for name, value in state.items() if not name.endswith(".position_ids")}
    ours = {}
    for name, shape in _shapes(config):
        parts, wanted = [], _their_shape(name, shape, config)
        for key in _their_names(name):
            if key not in theirs:
                raise ValueError(
                    f"the checkpoint has no {key!r}; "
                    f"is it another model than its {CONFIG_FILE} says?"
                )
            value = theirs.pop(key)
            if list(value.shape) != wanted:
                raise ValueError(
                    f"{key} has shape {list(value.shape)}; {wanted} is what the model takes"
                )
            parts.append(value)
        if len(parts) == 3:
            heads = [part.view(_heads(config, name), -1, *part.shape[1:]) for part in parts]
            ours[name] = torch.stack(heads, dim=1).reshape(shape)
        else:
            ours[name] = (parts[0].T if name.endswith(".proj") else parts[0].reshape(shape)).clone(
                memory_format=torch.contiguous_format
            )
    if theirs:
        raise ValueError(
            "the checkpoint has parameters that the model does not: "
            f"{', '.join(sorted(theirs)[:3])}"
        )
    return ours


# --- settings -------------------------------------------------------------------------------------


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """`config.json` of a CLIPModel. ValueError for what CLIPModel cannot be."""
    for there, what in (
        (config.logit_bias, "a logit bias (the SigLIP loss)"),
        (config.image_width not in (None, config.image_size), "pictures that are not square"),
        (config.class_token_length != 1, f"{config.class_token_length} class tokens"),
        (config.global_average_pool, "global average pooling"),
    ):
        if there:
            raise ValueError(
                f"Hugging Face's CLIPModel cannot have {what}; "
                "export it as an open_clip folder instead"
            )
    act = "quick_gelu" if config.quick_gelu else "gelu"
    end = config.vocab_size - 1
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": config.embed_dim,
        "logit_scale_init_value": LOGIT_SCALE,
        "text_config": {
            "model_type": "clip_text_model",
            **_tower(config, "text", act),
            "max_position_embeddings": config.context_length,
            "vocab_size": config.vocab_size,
            "bos_token_id": end - 1,
            "eos_token_id": end,
            "pad_token_id": 0,
        },
        "vision_config": {
            "model_type": "clip_vision_model",
            **_tower(config, "vision", act),
            "num_channels": config.num_channels,
            "image_size": config.image_size,
            "patch_size": config.patch_size,
        },
    }


def _tower(config: ModelConfig, tower: str, act: str) -> dict[str, Any]:
    return {
        "hidden_size": getattr(config, f"{tower}_width"),
        "intermediate_size": getattr(config, f"{tower}_mlp"),
        "num_hidden_layers": getattr(config, f"{tower}_layers"),
        "num_attention_heads": getattr(config, f"{tower}_heads"),
        "attention_dropout": getattr(config, f"{tower}_attention_dropout"),
        "hidden_act": act,
        "layer_norm_eps": 1e-5,
        "projection_dim": config.embed_dim,
    }


def model_config_of_hf(
    settings: Mapping[str, Any], preprocess: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A ModelConfig from a CLIPModel's `config.json` and `preprocessor_config.json`."""
    if settings.get("model_type") != "clip":
        raise ValueError(
            f"model_type is {settings.get('model_type')!r}; only CLIPModel's, 'clip', can be read"
        )
    text, vision = ({**usual, **(settings.get(tower) or {})} for tower, usual in _USUAL.items())
    acts = {tower.get("hidden_act", "quick_gelu") for tower in (text, vision)}
    if len(acts) != 1 or not acts <= {"gelu", "quick_gelu"}:
        raise ValueError(
            f"hidden_act is {' and '.join(sorted(acts))}; both towers must have gelu, or quick_gelu"
        )
    for tower in (text, vision):
        if tower.get("layer_norm_eps", 1e-5) != 1e-5:
            raise ValueError(f"layer_norm_eps is {tower['layer_norm_eps']}; these towers have 1e-5")
    end = text["vocab_size"] - 1
    # 2 is what old files say; CLIPModel then pools as is done here
    if text["eos_token_id"] not in (2, end):
        raise ValueError(
            f"eos_token_id is {text['eos_token_id']}; these towers pool at the highest token, {end}"
        )
    preprocess = preprocess or {}
    towers: dict[str, Any] = {}
    for name, tower in (("text", text), ("vision", vision)):
        towers |= {
            f"{name}_width": tower["hidden_size"],
            f"{name}_mlp": tower["intermediate_size"],
            f"{name}_layers": tower["num_hidden_layers"],
            f"{name}_heads": tower["num_attention_heads"],
            f"{name}_attention_dropout": float(tower.get("attention_dropout", 0.0)),
        }
    return ModelConfig(
        embed_dim=settings.get("projection_dim", 512),
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        num_channels=vision["num_channels"],
        context_length=text["max_position_embeddings"],
        vocab_size=text["vocab_size"],
        quick_gelu=acts == {"quick_gelu"},
        image_mean=tuple(preprocess.get("image_mean", IMAGE_MEAN)),
        image_std=tuple(preprocess.get("image_std", IMAGE_STD)),
        **towers,
    )


# --- the folder -----------------------------------------------------------------------------------


def save_hf(model: CLIP, folder: str) -> None:
    """Write the folder that `transformers.CLIPModel.from_pretrained(FOLDER)` loads; config.json
    comes last.
    """
    config, settings = model.config, hf_config(model.config)
    disk.write_bytes(
        disk.join(folder, WEIGHTS_FILES[0]), safetensors.torch.save(to_hf(model), {"format": "pt"})
    )
    disk.write_json(
        disk.join(folder, PREPROCESS_FILE),
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": config.image_size},
            "resample": 3,  # bicubic
            "do_center_crop": True,
            "crop_size": {"height": config.image_size, "width": config.image_size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "do_convert_rgb": True,
            "image_mean": list(config.image_mean),
            "image_std": list(config.image_std),
        },
    )
    if config.vocab_size == CLIP_VOCABULARY and not save_tokenizer(folder, config.context_length):
        logger.warning("open_clip is not installed: %s has no tokenizer files", folder)
    disk.write_json(disk.join(folder, CONFIG_FILE), settings)


def load_hf(folder: str) -> CLIP:
    """The model of a CLIPModel's folder (safetensors, or a .bin of which nothing is executed), in
    32 bits.
    """
    files = [name for name in WEIGHTS_FILES if disk.exists(disk.join(folder, name))]
    if not files or not disk.exists(disk.join(folder, CONFIG_FILE)):
        raise ValueError(
            f"{folder} holds no CLIPModel ({CONFIG_FILE} and one of {', '.join(WEIGHTS_FILES)})"
        )
    preprocess_path = disk.join(folder, PREPROCESS_FILE)
    preprocess = disk.read_json(preprocess_path) if disk.exists(preprocess_path) else None
    config = model_config_of_hf(disk.read_json(disk.join(folder, CONFIG_FILE)), preprocess)
    model = CLIP(config)
    model.load_state_dict(from_hf(read_state(disk.join(folder, files[0])), config))
    return model
