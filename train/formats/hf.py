"""Convert weights to and from Hugging Face's CLIPModel, bit for bit, and write its folder.

CLIPModel has one matrix each for queries, keys and values, and stores projections transposed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from clipmill.manifests import disk
from clipmill.manifests.clip_tokenizer import simple_tokenizer
from clipmill.manifests.preprocess import CHANNELS, Preprocess, of_hugging_face, to_hugging_face
from clipmill.train.formats.open_clip_files import (
    INDEX,
    TOKENIZER_FILES,
    from_open_clip,
    head_count,
    in_file,
    open_clip_config,
    read_state,
    stored_parts,
    stored_shape,
    to_open_clip_names,
)
from clipmill.train.model.architecture import ModelConfig, OpenClipConfig
from clipmill.train.model.clip import CLIP, LOGIT_SCALE
from clipmill.train.model.open_clip_model import AnyModel, build_model, hf_tokenizer, text_tokenizer

# --------------------------------------------------------------------------------------------------
# CLIP's tokenizer as the files that Hugging Face's CLIPTokenizer reads, written from open_clip's
# vocabulary.


T = TypeVar("T")
CLIP_VOCABULARY = 49_408  # tokens, with start and end as the last two
START, END = "<|startoftext|>", "<|endoftext|>"
NEARLY = 0.01  # of CLIP's tokens: a vocabulary that differs in fewer is meant to be the same


def save_tokenizer(folder: str, context_length: int) -> bool:
    """Write vocab.json, merges.txt and tokenizer_config.json. False where open_clip is not
    installed.
    """
    try:
        tokenizer = simple_tokenizer()()
    except ImportError:
        return False
    vocabulary = _vocabulary(tokenizer)
    merges = ["#version: 0.2", *(" ".join(pair) for pair in tokenizer.bpe_ranks)]
    disk.write_bytes(disk.join(folder, "merges.txt"), ("\n".join(merges) + "\n").encode())
    disk.write_json(disk.join(folder, "vocab.json"), vocabulary)
    disk.write_json(disk.join(folder, "tokenizer_config.json"), _settings(context_length))
    return True


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    """CLIP's tokens by Hugging Face's names."""
    names = list(tokenizer.encoder)
    vocabulary = {name: tokenizer.encoder[name] for name in names[:-2]}
    return vocabulary | {START: CLIP_VOCABULARY - 2, END: CLIP_VOCABULARY - 1}


def _has_own_tokenizer(folder: str, vocab_size: int) -> bool:
    """Whether a folder has a tokenizer that is not CLIP's: another class or vocabulary."""
    names = set(disk.list_names(folder))
    if not names & TOKENIZER_FILES:
        told = "%s has no tokenizer: captions get CLIP's %d tokens, of a vocabulary of %d"
        logger.warning(told, folder, CLIP_VOCABULARY, vocab_size)
        return False

    def read(name: str, values: Callable[[Mapping[str, Any]], T]) -> T:
        path = disk.join(folder, name)
        with in_file(path):
            return values(dict(disk.read_json(path) if name in names else {}))

    kind, more = read("tokenizer_config.json", lambda settings: (
        str(settings.get("tokenizer_class") or "CLIPTokenizer"),
        {each["content"] for each in settings.get("added_tokens_decoder", {}).values()},
    ))  # fmt: skip
    vocab, added = read("vocab.json", dict), read("added_tokens.json", set)
    whole, others = read("tokenizer.json", lambda document: (
        document.get("model", {}).get("vocab"),
        {each["content"] for each in document.get("added_tokens", ())},
    ))  # fmt: skip
    added |= more | others
    vocabularies = [each for each in (vocab, whole) if each]
    try:
        clip = _vocabulary(simple_tokenizer()())
    except ImportError:
        return vocab_size != CLIP_VOCABULARY
    is_clip = all(vocabulary == clip for vocabulary in vocabularies) and bool(vocabularies)
    for vocabulary in vocabularies:
        numbers = vocabulary if isinstance(vocabulary, dict) else {}  # others have a list
        different = sum(clip.get(word) != number for word, number in numbers.items())
        if 0 < different <= NEARLY * len(clip):
            told = "%s: its vocabulary differs from CLIP's in %d of %d tokens: is a file damaged?"
            logger.warning(told, folder, different, len(clip))
    return not (is_clip and added <= set(clip) and kind.startswith("CLIPTokenizer"))


def _settings(context_length: int) -> dict[str, object]:
    return {
        "tokenizer_class": "CLIPTokenizer",
        "bos_token": START,
        "eos_token": END,
        "unk_token": END,
        "pad_token": END,
        "do_lower_case": True,
        "model_max_length": context_length,
    }


CONFIG_FILE, PREPROCESS_FILE = "config.json", "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"  # newer versions have the image processor in it
_WHOLE = ("model.safetensors", "pytorch_model.bin")
WEIGHTS_FILES = (*_WHOLE, *(name + INDEX for name in _WHOLE))

logger = logging.getLogger(__name__)

# Our parameter -> CLIPModel's, outside the blocks and inside one.
_OUTER_NAMES = {
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
_BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "out": "self_attn.out_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
_CONFIG_DEFAULTS = {  # of CLIPModel: config.json may leave these out
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


def _hf_names(name: str) -> tuple[str, ...]:
    """CLIPModel's name of one of our parameters; three names for queries, keys and values."""
    if name in _OUTER_NAMES:
        return (_OUTER_NAMES[name],)
    tower, _, rest = name.partition(".blocks.")
    number, _, inner = rest.partition(".")
    layer = f"{'vision' if tower == 'visual' else 'text'}_model.encoder.layers.{number}"
    part, _, kind = inner.rpartition(".")
    if part == "qkv":
        return tuple(f"{layer}.self_attn.{letter}_proj.{kind}" for letter in "qkv")
    return (f"{layer}.{_BLOCK_NAMES[part]}.{kind}",)


def _hf_shape(name: str, shape: Sequence[int], config: ModelConfig) -> list[int]:
    if ".qkv." in name:
        return [shape[0] // 3, *shape[1:]]
    if name.endswith(".proj"):
        return [shape[1], shape[0]]
    return stored_shape(name, shape, config)


def to_hf(model: CLIP) -> dict[str, Tensor]:
    """The model's parameters as CLIPModel's state dict: contiguous copies in host memory.

    ValueError for a model that CLIPModel cannot compute.
    """
    config = model.config
    hf_config(config)
    hf_state: dict[str, Tensor] = {}
    for name, parameter in model.state_dict().items():
        value, names = parameter.detach().cpu(), _hf_names(name)
        if len(names) == 3:  # [H, 3, D] -> three of [H x D]
            parts = value.view(head_count(config, name), 3, -1, *value.shape[1:]).unbind(1)
            values = [part.reshape(-1, *value.shape[1:]) for part in parts]
        elif name.endswith(".proj"):
            values = [value.T]
        else:
            values = [value.reshape(_hf_shape(name, value.shape, config))]
        for hf_name, part in zip(names, values, strict=True):
            hf_state[hf_name] = part.clone(memory_format=torch.contiguous_format)
    return hf_state


def from_hf(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """CLIPModel's state dict under our names.

    ValueError names a parameter that is missing, unknown or of another shape.
    """
    plain = {}
    for hf_name, value in state.items():
        if not hf_name.endswith(".position_ids"):  # a buffer of older versions
            plain[hf_name] = value
    converted = {}
    for name, shape, parts in stored_parts(plain, config, _hf_names, _hf_shape):
        if len(parts) == 3:
            heads = [part.view(head_count(config, name), -1, *part.shape[1:]) for part in parts]
            converted[name] = torch.stack(heads, dim=1).reshape(shape)
        else:
            value = parts[0].T if name.endswith(".proj") else parts[0].reshape(shape)
            converted[name] = value.clone(memory_format=torch.contiguous_format)
    return converted


# --- settings -------------------------------------------------------------------------------------


def hf_config(config: ModelConfig) -> dict[str, object]:
    """`config.json` of a CLIPModel. ValueError for a model that CLIPModel cannot compute."""
    if config.logit_bias:
        raise ValueError(
            "Hugging Face's CLIPModel cannot have a logit bias (the SigLIP loss); "
            "export it as an open_clip folder instead"
        )
    activation = "quick_gelu" if config.quick_gelu else "gelu"
    end_token = config.vocab_size - 1
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": config.embed_dim,
        "logit_scale_init_value": LOGIT_SCALE,
        "text_config": {
            "model_type": "clip_text_model",
            **_tower_config(config, "text", activation),
            "max_position_embeddings": config.context_length,
            "vocab_size": config.vocab_size,
            "bos_token_id": end_token - 1,
            "eos_token_id": end_token,
            "pad_token_id": 0,
        },
        "vision_config": {
            "model_type": "clip_vision_model",
            **_tower_config(config, "vision", activation),
            "num_channels": CHANNELS,
            "image_size": config.image_size,
            "patch_size": config.patch_size,
        },
    }


def _tower_config(config: ModelConfig, tower: str, activation: str) -> dict[str, object]:
    return {
        "hidden_size": getattr(config, f"{tower}_width"),
        "intermediate_size": getattr(config, f"{tower}_mlp"),
        "num_hidden_layers": getattr(config, f"{tower}_layers"),
        "num_attention_heads": getattr(config, f"{tower}_heads"),
        "attention_dropout": 0.0,
        "hidden_act": activation,
        "layer_norm_eps": 1e-5,
        "projection_dim": config.embed_dim,
    }


def _tower(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of a tower; what older versions wrote as NAME_dict replaces the others."""
    older = settings.get(f"{name}_dict")
    given = settings.get(name) or {} if older is None else older
    return {**_CONFIG_DEFAULTS[name], **given}


def model_config_of_hf(
    settings: Mapping[str, Any], preprocess: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A ModelConfig from a CLIPModel's `config.json` and `preprocessor_config.json`.

    ValueError for another kind of model and for settings that these towers do not have.
    """
    if settings.get("model_type") != "clip":
        raise ValueError(
            f"model_type is {settings.get('model_type')!r}; only 'clip', a CLIPModel, can be read; "
            "of others the folder of the same weights that open_clip reads, where there is one"
        )
    text, vision = (_tower(settings, name) for name in ("text_config", "vision_config"))
    activations = {tower.get("hidden_act", "quick_gelu") for tower in (text, vision)}
    if len(activations) != 1 or not activations <= {"gelu", "quick_gelu"}:
        raise ValueError(
            f"hidden_act is {' and '.join(sorted(activations))}; "
            "both towers must have gelu, or both quick_gelu"
        )
    for tower in (text, vision):
        if tower.get("layer_norm_eps", 1e-5) != 1e-5:
            raise ValueError(f"layer_norm_eps is {tower['layer_norm_eps']}; it must be 1e-5")
    if vision["num_channels"] != CHANNELS:
        raise ValueError(f"num_channels is {vision['num_channels']}; it must be {CHANNELS}")
    end_token = text["vocab_size"] - 1
    # Old files have 2; CLIPModel then pools at the highest token, as this model does.
    if text["eos_token_id"] not in (2, end_token):
        raise ValueError(
            f"eos_token_id is {text['eos_token_id']}; "
            f"these towers pool at the highest token, {end_token}"
        )
    towers: dict[str, Any] = {}
    for name, tower in (("text", text), ("vision", vision)):
        towers |= {
            f"{name}_width": tower["hidden_size"],
            f"{name}_mlp": tower["intermediate_size"],
            f"{name}_layers": tower["num_hidden_layers"],
            f"{name}_heads": tower["num_attention_heads"],
        }
    return ModelConfig(
        embed_dim=settings.get("projection_dim", 512),
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        context_length=text["max_position_embeddings"],
        vocab_size=text["vocab_size"],
        quick_gelu=activations == {"quick_gelu"},
        **of_hugging_face(preprocess or {}, vision["image_size"]),
        **towers,
    )


# --- the folder -----------------------------------------------------------------------------------


def save_hf(model: AnyModel, folder: str) -> None:
    """Write the folder that `transformers.CLIPModel.from_pretrained(FOLDER)` loads.

    config.json is written last. ValueError for a model that CLIPModel cannot compute.
    """
    if not isinstance(model, CLIP):
        raise ValueError(
            f"{model.config.name} is computed by open_clip's own module, and CLIPModel has other "
            "towers; write --format open_clip"
        )
    config, settings = model.config, hf_config(model.config)
    preprocess = to_hugging_face(config, config.image_size)
    disk.write_bytes(
        disk.join(folder, WEIGHTS_FILES[0]), safetensors.torch.save(to_hf(model), {"format": "pt"})
    )
    disk.write_json(disk.join(folder, PREPROCESS_FILE), preprocess)
    if config.vocab_size == CLIP_VOCABULARY and not save_tokenizer(folder, config.context_length):
        logger.warning("open_clip is not installed: %s has no tokenizer files", folder)
    disk.write_json(disk.join(folder, CONFIG_FILE), settings)


def load_hf(folder: str) -> AnyModel:
    """The model of a CLIPModel's folder, in fp32; by open_clip's module where it has a tokenizer of
    its own, or pools at another token than the highest.

    The weights are .safetensors or .bin, in shards too; nothing in a .bin is executed.
    """
    weights_files = [name for name in WEIGHTS_FILES if disk.exists(disk.join(folder, name))]
    if not weights_files or not disk.exists(disk.join(folder, CONFIG_FILE)):
        raise ValueError(
            f"{folder} has no CLIPModel ({CONFIG_FILE} and one of {', '.join(WEIGHTS_FILES)})"
        )
    path, weights_file = disk.join(folder, CONFIG_FILE), disk.join(folder, weights_files[0])
    with in_file(path):
        document = disk.read_json(path)
        text = _tower(document, "text_config")
        end, vocabulary = text["eos_token_id"], text["vocab_size"]
        document = {**document, "text_config_dict": {**text, "eos_token_id": 2}}
        model_config_of_hf(document)
    own = _has_own_tokenizer(folder, vocabulary)
    highest = {2, vocabulary - 1} if own else {2, vocabulary - 1, CLIP_VOCABULARY - 1}
    preprocess_file, preprocess = _preprocessing(folder)
    with in_file(preprocess_file):
        config = model_config_of_hf(document, preprocess)
    with in_file(weights_file):
        weights = from_hf(read_state(weights_file), config)
    if not own and end in highest:
        model: AnyModel = CLIP(config)
        model.load_state_dict(weights)
        return model
    settings = open_clip_config(dataclasses.replace(config, **dataclasses.asdict(Preprocess())))
    of_text = settings["model_cfg"]["text_cfg"]
    if own:
        of_text["hf_tokenizer_name"] = folder
    if end not in highest:
        of_text |= {"pool_type": "eos", "eos_id": end}
    theirs = OpenClipConfig(
        name=folder,
        settings=settings["model_cfg"],
        folder=folder if own else None,
        **dataclasses.asdict(config.preprocess),
    )
    if own:
        _refuse_padding(theirs, is_pooled=end in highest)
    model = build_model(theirs)
    model.load_state_dict(from_open_clip(to_open_clip_names(weights, config), theirs))
    return model


def _refuse_padding(config: OpenClipConfig, *, is_pooled: bool) -> None:
    """ValueError where a text would be pooled at its padding, which CLIPModel masks and open_clip's
    tower does not; and for padding before a text, whose positions are then those of its batch.

    is_pooled: at the highest token.
    """
    token_T, tokenizer = text_tokenizer(config)(["a"])[0], hf_tokenizer(config)
    pad = tokenizer.pad_token_id
    if tokenizer.padding_side != "right":
        raise ValueError(
            f"{config.name}: its tokenizer has padding_side {tokenizer.padding_side}, so that the "
            "place of a word depends on the other texts of a batch; set it to right, if the model "
            "was trained so"
        )
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    if is_pooled and int(token_T.max()) == pad and pad not in ends:
        raise ValueError(
            f"{config.name} pools at the highest token of a text, which is the padding, {pad}, of "
            "its tokenizer; set eos_token_id of text_config to the token that ends a text"
        )


def _preprocessing(folder: str) -> tuple[str, dict[str, Any]]:
    """`preprocessor_config.json`, or the part of `processor_config.json`, which newer versions of
    transformers read first, and its file; {} where there is neither.
    """
    plain, whole = (disk.join(folder, name) for name in (PREPROCESS_FILE, PROCESSOR_FILE))
    with in_file(whole):
        part = disk.read_json(whole).get("image_processor") if disk.exists(whole) else None
    if part:
        return whole, part
    if not disk.exists(plain):
        logger.warning("%s has no %s: images get CLIP's preprocessing", folder, PREPROCESS_FILE)
        return plain, {}
    return plain, disk.read_json(plain)
