"""Convert weights to and from open_clip's names, bit for bit, and write its folder."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import logging
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from clipmill.manifests import disk
from clipmill.manifests.preprocess import CHANNELS
from clipmill.manifests.preprocess import to_open_clip as to_open_clip_preprocess
from clipmill.train.model.architecture import (
    OPTIONAL_VISION_KEYS,
    ModelConfig,
    OpenClipConfig,
    model_of_settings,
    without_starts,
)
from clipmill.train.model.clip import CLIP
from clipmill.train.model.open_clip_model import (
    AnyModel,
    build_model,
    from_their_names,
    own_tokenizer,
    to_their_names,
    without_wrappers,
)

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"
TOKENIZER_FILE = "tokenizer_config.json"
# What save_pretrained writes of a tokenizer: transformers, tokenization_utils_base.py and the
# vocabularies of its models.
TOKENIZER_FILES = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "tokenizer.model", "bpe.codes",
}  # fmt: skip
logger = logging.getLogger(__name__)
OTHER_MODEL = "; is it another model than the one configured?"
INDEX = ".index.json"  # of weights in several files
ADAPTED = re.compile(r"(^|[._])(lora|loha|lokr|hada|ia3)_")  # in the names of its weights
AN_ADAPTER = (
    "an adapter, as PEFT writes it, which is no model without its base; write the merged one, "
    "model.merge_and_unload().save_pretrained(FOLDER), and name that"
)
OPENAI_ENTRIES = ("input_resolution", "context_length", "vocab_size")  # beside OpenAI's weights

# Our parameter -> open_clip's, inside a block and outside the blocks.
_BLOCK_NAMES = {
    "ln_1": "ln_1",
    "qkv.weight": "attn.in_proj_weight",
    "qkv.bias": "attn.in_proj_bias",
    "out": "attn.out_proj",
    "ln_2": "ln_2",
    "fc1": "mlp.c_fc",
    "fc2": "mlp.c_proj",
}
_OUTER_NAMES = {"visual.patch.weight": "visual.conv1.weight", "text.proj": "text_projection"}


def open_clip_name(name: str) -> str:
    """open_clip's name of one of our parameters."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    tower, _, rest = name.partition(".blocks.")
    if rest:
        number, _, inner = rest.partition(".")
        key = inner if inner in _BLOCK_NAMES else inner.rpartition(".")[0]
        prefix = "visual.transformer" if tower == "visual" else "transformer"
        return f"{prefix}.resblocks.{number}.{_BLOCK_NAMES[key]}{inner[len(key) :]}"
    return name.removeprefix("text.")


def _names(name: str) -> tuple[str]:
    return (open_clip_name(name),)


def head_count(config: ModelConfig, name: str) -> int:
    """Attention heads of the tower that a parameter of ours belongs to."""
    return config.vision_heads if name.startswith("visual.") else config.text_heads


def stored_shape(name: str, shape: Sequence[int], config: ModelConfig) -> list[int]:
    """The shape that one of our parameters has elsewhere: patches are embedded by a convolution."""
    if name == "visual.patch.weight":
        return [config.vision_width, CHANNELS, config.patch_size, config.patch_size]
    return list(shape)


def stored_parts(
    state: Mapping[str, Tensor],
    config: ModelConfig,
    names_of: Callable[[str], Sequence[str]],
    shape_of: Callable[[str, Sequence[int], ModelConfig], list[int]],
) -> Iterator[tuple[str, torch.Size, list[Tensor]]]:
    """Our name and shape of every parameter, and the tensors that others store it as.

    names_of, shape_of: their names and shape. ValueError names a tensor that is missing, unknown or
    of another shape, and the setting that would fit.
    """
    with torch.device("meta"):  # no memory is allocated
        ours = CLIP(config).state_dict()
    sources = {source: name for name in ours for source in names_of(name)}
    _check_names(sources, state)
    for name, parameter in ours.items():
        wanted, parts = shape_of(name, parameter.shape, config), []
        for source in names_of(name):
            value = state[source]
            is_scalar = parameter.numel() == value.numel() == 1
            if list(value.shape) != wanted and not is_scalar:
                fits = list(value.shape)[1:] == wanted[1:]
                raise ValueError(
                    f"{source} has shape {list(value.shape)}; the model needs {wanted}"
                    + (_remedy(name, value.shape, config) if fits else OTHER_MODEL)
                )
            parts.append(value)
        yield name, parameter.shape, parts


def _check_names(sources: Mapping[str, str], state: Mapping[str, Tensor]) -> None:
    """ValueError where `state` has not the names of `sources`, whose values are ours."""
    lost = [source for source in sources if source not in state]
    others = sorted(state.keys() - sources)
    listed = f"parameters that the model lacks: {', '.join(others[:3])}"
    for tower, what in (("visual.", "image"), ("text.", "caption")):
        of_tower = {source for source, name in sources.items() if name.startswith(tower)}
        if not others and of_tower <= {*lost}:
            raise ValueError(
                f"the checkpoint has no {what} tower; name the file of the whole model, both "
                "towers and logit_scale"
            )
    if lost:
        more = f" and {len(lost) - 1:,} more of {len(sources):,}" if len(lost) > 1 else ""
        has = f", but {listed}" if others else ""
        raise ValueError(f"the checkpoint has no {lost[0]!r}{more}{has}{OTHER_MODEL}")
    if others:
        raise ValueError(f"the checkpoint has {listed}{OTHER_MODEL}")


def to_open_clip(model: AnyModel) -> dict[str, Tensor]:
    """The model's parameters as open_clip's state dict: contiguous copies in host memory."""
    return to_open_clip_names(model.state_dict(), model.config)


def to_open_clip_names(
    state: Mapping[str, Tensor], config: ModelConfig | OpenClipConfig
) -> dict[str, Tensor]:
    """A state dict under open_clip's names, with heads in its order.

    The values are our parameters, or optimizer moments of their shapes. They are copied to host
    memory.
    """
    if isinstance(config, OpenClipConfig):
        return to_their_names(state)
    open_clip_state = {}
    for name, parameter in state.items():
        value = parameter.detach().cpu()
        if ".qkv." in name:  # [H, 3, D] -> [3, H, D]
            value = (
                value.view(head_count(config, name), 3, -1, *value.shape[1:])
                .transpose(0, 1)
                .reshape(value.shape)
            )
        value = value.reshape(stored_shape(name, value.shape, config))
        copy = value.clone(memory_format=torch.contiguous_format)
        open_clip_state[open_clip_name(name)] = copy
    return open_clip_state


def from_open_clip(
    state: Mapping[str, Any], config: ModelConfig | OpenClipConfig
) -> dict[str, Tensor]:
    """open_clip's state dict, or a training checkpoint that has one, under our names.

    The inverse of `to_open_clip_names`. Names of a text tower under `text.`, names under `module.`
    and a logit scale of shape [1] are read too. ValueError names a parameter that is missing,
    unknown or of another shape, and the setting that would fit.
    """
    if isinstance(config, OpenClipConfig):
        return from_their_names(state, config)
    plain, converted = plain_names(state), {}
    for name, shape, (value,) in stored_parts(plain, config, _names, stored_shape):
        if ".qkv." in name:  # [3, H, D] -> [H, 3, D]
            value = value.view(3, head_count(config, name), -1, *value.shape[1:]).transpose(0, 1)
        converted[name] = value.reshape(shape).clone()
    return converted


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters without the prefixes of wrappers and of a separate text tower; no buffers."""
    plain = {}
    for full_name, value in without_wrappers(state).items():
        name = full_name.removeprefix("text.")
        if name != "attn_mask":
            plain[name] = value
    return plain


def with_positions(
    state: Mapping[str, Tensor], config: ModelConfig, source: str
) -> dict[str, Tensor]:
    """Plain names with their tables of positions at the model's sizes, resized by open_clip as it
    does when it loads weights; those that it cannot resize stay.
    """
    resized, grid = dict(state), config.image_size // config.patch_size
    text = torch.empty(config.context_length, config.text_width, device="meta")
    visual = torch.empty(config.patches + 1, config.vision_width, device="meta")
    theirs = SimpleNamespace(visual=SimpleNamespace(grid_size=grid), positional_embedding=text)
    for name, table in (("visual.positional_embedding", visual), ("positional_embedding", text),
                        ("text.positional_embedding", text)):  # fmt: skip
        stored = state.get(name, table)
        is_image = table is visual
        is_square = not is_image or math.isqrt(max(len(stored) - 1, 0)) ** 2 == len(stored) - 1
        if stored.shape == table.shape or stored.shape[1:] != table.shape[1:] or not is_square:
            continue
        try:
            from open_clip.model import resize_pos_embed, resize_text_pos_embed
        except ImportError:
            break
        resized[name] = stored.float()
        (resize_pos_embed if is_image else resize_text_pos_embed)(resized, theirs)
        what = "patches" if is_image else "tokens"
        told = "%s: its table of %d positions of %s is resized to %d, as open_clip does"
        logger.warning(told, source, len(stored), what, len(table))
    return resized


def _remedy(name: str, shape: Sequence[int], config: ModelConfig) -> str:
    """The settings that would fit a table of this shape, as the end of a message."""
    if name == "text.token_embedding.weight":
        return (
            f": its vocabulary has {shape[0]} tokens; "
            f"set vocab_size to {shape[0]} and use its tokenizer"
        )
    if name == "text.positional_embedding":
        return f": it was trained on {shape[0]} tokens; set context_length to {shape[0]}"
    if name == "visual.positional_embedding":
        patches = shape[0] - 1
        return (
            f": it was trained on {patches} patches, and this model has {config.patches}; "
            "set image_size or patch_size to its values"
        )
    return ""


# --- files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_file(path: str) -> Iterator[None]:
    """What is wrong with the content of a file, as a ValueError that names it: also where code that
    expects values of other kinds meets it.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as e:
        is_value = isinstance(e, ValueError)
        if path in str(e) or ("alloc" in str(e) and not is_value):  # there is too little memory
            raise
        reason = " ".join(str(e).split())
        if not is_value:
            kind = type(e).__name__
            reason = f"no model can be made of it ({kind}: {reason:.300}); get it again"
        raise ValueError(f"{path}: {reason}") from e


def read_state(path: str) -> dict[str, Tensor]:
    """The tensors by name of a .safetensors file, of one that torch saved (.bin, .pt, .pth), or of
    all files of an index of shards: below `state_dict` or another key, and without what is beside
    them.

    Nothing in the file is executed. ValueError for a file with anything but tensors and plain
    values, which names what it is.
    """
    if path.endswith(INDEX):
        return _read_shards(path)
    data = disk.read_bytes(path)
    try:
        if path.endswith(".safetensors"):
            stored = safetensors.torch.load(data)
        else:
            with warnings.catch_warnings(), torch.serialization.safe_globals(_plain_values()):
                warnings.simplefilter("ignore")  # of old pickles, which are refused below
                stored = _unpickled(data)
    except (pickle.UnpicklingError, RuntimeError, EOFError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a file of plain tensors: {_reason(data, error)}") from None
    if not isinstance(stored, Mapping):
        raise ValueError(f"{path} holds a {type(stored).__name__}; it must hold parameters by name")
    state = _parameters(stored, path)
    for name, value in state.items():
        if name.endswith("weight") and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise ValueError(
                f"{path}: {name} is {kind}, the weights are quantised; write the model in fp16 or "
                "fp32, as model.dequantize() makes it, and name that"
            )
    return state


def _unpickled(data: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "torch.distributed.tensor" not in str(error):
            raise
    importlib.import_module("torch.distributed.tensor")  # for those of FSDP2; two seconds
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _read_shards(path: str) -> dict[str, Tensor]:
    shards = sorted(set(disk.read_json(path)["weight_map"].values()))
    folder = path.rpartition("/")[0]
    present = disk.list_names(folder)
    if missing := [shard for shard in shards if shard not in present]:
        raise ValueError(f"{path} names {missing[0]}, one of {len(missing)} files that are missing")
    state: dict[str, Tensor] = {}
    for shard in shards:
        state |= read_state(disk.join(folder, shard))
    return state


def _plain_values() -> list[Any]:
    """What pickled numbers of NumPy and parsed arguments need, such as stand beside weights."""
    of_file = np.float64(0).__reduce__()[0]  # has another module in NumPy 1, by name
    kinds = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"]
    return [
        argparse.Namespace,
        of_file,
        (of_file, "numpy.core.multiarray.scalar"),
        np.dtype,
        *kinds,
    ]


def _reason(data: bytes, error: Exception) -> str:
    """Why a file cannot be read, in words and without the control characters of the message."""
    if data.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS; fetch the file itself"
    if not data:
        return "it is empty"
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    what = "a TorchScript archive, which is code" if "TorchScript" in message else ""
    if found := re.search(r"GLOBAL ([\w.]+)", message):
        what = f"a pickle with an object of Python, {found[1]}, whose loading could run any code"
    if what:
        return (
            f"it is {what}; a program that trusts it can write its weights alone, by "
            "torch.save(model.state_dict(), FILE)"
        )
    return " ".join(message.split())


def _parameters(stored: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    """The tensors by name in what torch saved: its own, or those below a key."""
    below = {key: value for key, value in stored.items() if _is_state(value)}
    if "state_dict" in below:  # beside others of its names, such as averages, it is one of several
        names = without_wrappers(below["state_dict"]).keys()
        below = {key: x for key, x in below.items() if names & without_wrappers(x).keys()}
    if _is_state(stored, OPENAI_ENTRIES) or not below:
        state = stored
    elif len(below) > 1:
        raise ValueError(
            f"{path} holds weights below each of {', '.join(below)}; write those that are meant to "
            "a file of their own"
        )
    else:
        state = next(iter(below.values()))
    for name, value in state.items():
        if not _is_state({name: value}, OPENAI_ENTRIES):
            if any(map(ADAPTED.search, _names_in(stored))):
                raise ValueError(f"{path} is {AN_ADAPTER}")
            raise ValueError(f"{path} holds {name!r}, a {type(value).__name__}, among its weights")
    return {
        name: _whole(value, name, path)
        for name, value in state.items()
        if name not in OPENAI_ENTRIES
    }


def _names_in(value: object) -> Iterator[str]:
    """The keys of a mapping and of those in it."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield str(key)
        yield from _names_in(inner)


def _whole(value: Tensor, name: str, path: str) -> Tensor:
    """A tensor that FSDP2 or tensor parallelism wrote, where a rank had all of it, as a plain one;
    others as they are. ValueError for a part of one.
    """
    if not hasattr(value, "to_local"):
        return value
    local: Tensor = value.to_local()
    if local.shape != value.shape:
        raise ValueError(
            f"{path}: {name} is a part, {list(local.shape)} of {list(value.shape)}, that one rank "
            "had; write value.full_tensor() of every parameter on all ranks, and name that file"
        )
    return local


def _is_state(value: object, beside: Sequence[str] = ()) -> bool:
    """Whether a value is a mapping of tensors by name, and of `beside`."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(each, Tensor) or name in beside for name, each in value.items())


# --- the folder -----------------------------------------------------------------------------------


def open_clip_config(config: ModelConfig | OpenClipConfig) -> dict[str, Any]:
    """`open_clip_config.json`: the model and the preprocessing of its images."""
    preprocess = to_open_clip_preprocess(config, config.height_width)
    if isinstance(config, OpenClipConfig):
        return {"model_cfg": dict(config.settings), "preprocess_cfg": preprocess}
    model: dict[str, Any] = {
        "embed_dim": config.embed_dim,
        "quick_gelu": config.quick_gelu,
        "vision_cfg": {
            "image_size": config.image_size,
            "patch_size": config.patch_size,
            "width": config.vision_width,
            "layers": config.vision_layers,
            "head_width": config.vision_width // config.vision_heads,
            "mlp_ratio": _mlp_ratio(config.vision_mlp, config.vision_width),
        },
        "text_cfg": {
            "context_length": config.context_length,
            "vocab_size": config.vocab_size,
            "width": config.text_width,
            "layers": config.text_layers,
            "heads": config.text_heads,
            "mlp_ratio": _mlp_ratio(config.text_mlp, config.text_width),
        },
    }
    if config.logit_bias:
        model["init_logit_bias"] = 0.0
    for ours, theirs, default in OPTIONAL_VISION_KEYS:
        if getattr(config, ours) != default:
            model["vision_cfg"][theirs] = getattr(config, ours)
    return {
        "model_cfg": model,
        "preprocess_cfg": preprocess,
    }


def _mlp_ratio(mlp: int, width: int) -> float:
    """A ratio for which open_clip's int(width * ratio) is `mlp`."""
    ratio = mlp / width
    return ratio if int(width * ratio) == mlp else (mlp + 0.5) / width


def save_export(
    model: AnyModel, folder: str, state: Mapping[str, Tensor] | None = None
) -> dict[str, str]:
    """Write the folder that `open_clip.create_model_and_transforms("local-dir:FOLDER")` loads.

    open_clip_config.json is written last. `state` has the whole parameters by our names where those
    of `model` are sharded. Returns the sha256 of each file.
    """
    document = open_clip_config(model.config)  # before anything is written
    weights = to_open_clip_names(model.state_dict() if state is None else state, model.config)
    data = safetensors.torch.save(weights, {"format": "pt"})
    disk.write_bytes(disk.join(folder, WEIGHTS_FILE), data)
    if tokenizer := own_tokenizer(model.config):
        # open_clip reads the tokenizer of a local folder from it.
        for name, content in tokenizer.files.items():
            disk.write_bytes(disk.join(folder, name), content)
    disk.write_json(disk.join(folder, CONFIG_FILE), document)
    config = disk.sha256_of(disk.join(folder, CONFIG_FILE))
    return {WEIGHTS_FILE: hashlib.sha256(data).hexdigest(), CONFIG_FILE: config}


def export_files(folder: str) -> list[str]:
    """The names of the file of weights, of the configuration, and of the shards of an index, that
    `load_export` reads; [] where one is missing.
    """
    names = disk.list_names(folder)
    kinds = (".safetensors", ".bin", ".pt", ".pth")
    files = [name for kind in (INDEX, *kinds) for name in names if name.endswith(kind)]
    # A folder may have Hugging Face's weights or an optimizer beside them.
    files.sort(key=lambda name: (not name.startswith("open_clip_"), "model" not in name))
    if not files or not disk.exists(disk.join(folder, CONFIG_FILE)):
        return []
    if WEIGHTS_FILE in files or not files[0].endswith(INDEX):
        return [WEIGHTS_FILE if WEIGHTS_FILE in files else files[0], CONFIG_FILE]
    shards = disk.read_json(disk.join(folder, files[0]))["weight_map"].values()
    return [files[0], CONFIG_FILE, *sorted({*shards}.intersection(names))]


def tokenizer_name(folder: str) -> str | None:
    """What the configuration of an open_clip folder names as the tokenizer; None for CLIP's."""
    settings = disk.read_json(disk.join(folder, CONFIG_FILE))
    name = settings.get("model_cfg", {}).get("text_cfg", {}).get("hf_tokenizer_name")
    return None if name is None else str(name)


def load_export(folder: str) -> AnyModel:
    """The model of an open_clip folder, whoever wrote it, in host memory and in fp32."""
    files = export_files(folder)
    if not files:
        raise ValueError(f"{folder} has no open_clip model ({CONFIG_FILE} and {WEIGHTS_FILE})")
    path, weights = disk.join(folder, CONFIG_FILE), disk.join(folder, files[0])
    settings = disk.read_json(path)
    if not isinstance(settings, dict) or "model_cfg" not in settings:
        raise ValueError(f"{path} has no model_cfg")
    has_files = disk.exists(disk.join(folder, TOKENIZER_FILE))
    with in_file(path):
        named = tokenizer_name(folder)
    if not has_files and named and "tokenizer.json" in disk.list_names(folder):
        raise ValueError(
            f"{folder} has tokenizer.json without {TOKENIZER_FILE}, which says how texts are "
            "padded; copy that beside it, as tokenizer.save_pretrained writes both"
        )
    with in_file(path):
        config = model_of_settings(
            without_starts(settings["model_cfg"]),
            settings.get("preprocess_cfg"),
            folder,
            folder=folder if has_files else None,
        )
        model = build_model(config)
    with in_file(weights):
        state = read_state(weights)
        if isinstance(config, ModelConfig):
            state = with_positions(plain_names(state), config, folder)
        model.load_state_dict(from_open_clip(state, config))
    return model
