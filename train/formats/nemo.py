"""Read NVIDIA's YAML for CLIP as a model and as changes to the settings of a run.

The keys are those of NVIDIA's documentation: `model`; `vision` and `text`, inside `model` or beside
it; `trainer.precision`. References of OmegaConf are resolved (`${model.output_dim}`,
`${.encoder_seq_length}`). Remarks name contradictions inside the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.disk import did_you_mean
from train.config import configure, model_config
from train.model.architecture import MODELS, ModelConfig

# NVIDIA's key -> our setting. None: the value follows from others and is checked against them.
_TOWER_KEYS = {
    "num_layers": "layers",
    "hidden_size": "width",
    "ffn_hidden_size": "mlp",
    "num_attention_heads": "heads",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
_VISION_KEYS = {
    **{theirs: f"vision_{ours}" for theirs, ours in _TOWER_KEYS.items()},
    "patch_dim": "patch_size",
    "img_h": "image_size",
    "img_w": "image_width",
    "image_mean": "image_mean",
    "image_std": "image_std",
    "num_channels": "num_channels",
    "drop_patch_rate": "drop_patch_rate",
    "drop_path_rate": "drop_path_rate",
    "global_average_pool": "global_average_pool",
    "class_token_length": "class_token_length",
    "output_dim": None,
    "encoder_seq_length": None,
}
_TEXT_KEYS = {
    **{theirs: f"text_{ours}" for theirs, ours in _TOWER_KEYS.items()},
    "encoder_seq_length": "context_length",
    "max_position_embeddings": None,
    "output_dim": None,
}
_RUN_KEYS = {
    "local_loss": "local_loss",
    "gather_with_grad": "gather_with_grad",
    "global_batch_size": "batch_size",
    "tensor_model_parallel_size": "tp",
}
# Keys of a run whose values are converted, not copied.
_CONVERTED_KEYS = ("megatron_amp_O2", "activations_checkpoint_granularity")
_PRECISION = {
    "32": "fp32",
    "32-true": "fp32",
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
}
BASE_MODEL = "ViT-B-32"  # its sizes stand for those that the file does not give
EXCHANGED = "NVIDIA's table has the patches of B/32 and B/16 exchanged"
_REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")
_MODEL_NAME = re.compile(r"(?<![A-Za-z])(B|L|H|g|G|e)[-_/ ]?(14|16|32)(?!\d)")


def read(path: str) -> tuple[ModelConfig, dict[str, Any], list[str]]:
    """The model, the changes for `configure` that make this model and this run, and remarks.

    A size that the file does not give is that of a ViT-B/32. ValueError for an unknown key, with
    the nearest known one; for a reference to a key that does not exist; and for a model name that
    contradicts the sizes.
    """
    import yaml

    try:
        root = yaml.safe_load(disk.read_bytes(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(root, dict):
        raise ValueError(f"{path} has no keys; it must be a mapping of keys to values")
    try:
        return _read(_resolve_references(root), Path(path).stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(root: dict[str, Any], stem: str) -> tuple[ModelConfig, dict[str, Any], list[str]]:
    _refuse_unknown_keys(root, ("name", "model", "vision", "text", "trainer"), "")
    model = dict(root.get("model") or {})
    towers = {}
    for tower, keys in (("vision", _VISION_KEYS), ("text", _TEXT_KEYS)):
        inside = model.pop(tower, None)
        if inside and root.get(tower):
            raise ValueError(f"{tower} is written twice: inside model and beside it; remove one")
        towers[tower] = dict(inside or root.get(tower) or {})
        _refuse_unknown_keys(towers[tower], keys, f"{tower}.")
    _refuse_unknown_keys(model, ("output_dim", *_RUN_KEYS, *_CONVERTED_KEYS), "model.")
    trainer = root.get("trainer") or {}
    _refuse_unknown_keys(trainer, ("precision",), "trainer.")
    changes = _run_settings(model, trainer)
    settings, remarks = _model_settings(model, towers)
    changes["model"] = BASE_MODEL
    for name, value in settings.items():
        if value != getattr(MODELS[BASE_MODEL], name):
            changes[f"model.{name}"] = value
    model_changes = {key: value for key, value in changes.items() if key.startswith("model")}
    config = model_config(configure(model_changes))
    has_name = _check_name((str(root.get("name", "")), stem), config)
    return config, changes, [*remarks, *_contradictions(towers, config, has_name)]


def _run_settings(model: Mapping[str, Any], trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The changes to the settings of a run. ValueError for a precision that is not supported."""
    changes: dict[str, Any] = {}
    for theirs, ours in _RUN_KEYS.items():
        if theirs in model:
            changes[ours] = model[theirs]
    if "precision" in trainer:
        precision = str(trainer["precision"])
        if precision not in _PRECISION:
            raise ValueError(
                f"trainer.precision is {precision!r}{did_you_mean(precision, _PRECISION)}"
            )
        changes["precision"] = _PRECISION[precision]
    if model.get("megatron_amp_O2"):
        if changes.get("precision", "bf16") != "bf16":
            raise ValueError(
                f"model.megatron_amp_O2 needs bf16, but trainer.precision is {precision!r}"
            )
        changes["precision"] = "bf16_o2"
    granularity = model.get("activations_checkpoint_granularity")
    if granularity is not None:
        changes["recompute"] = granularity
    return changes


def _model_settings(
    model: Mapping[str, Any], towers: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Our settings of the model that the file gives (null is not a value), and remarks."""
    vision, text, remarks = towers["vision"], towers["text"], []
    settings = {"embed_dim": model["output_dim"]} if "output_dim" in model else {}
    for tower, keys in (("vision", _VISION_KEYS), ("text", _TEXT_KEYS)):
        values = towers[tower]
        embed_dim = values.get("output_dim")
        if embed_dim is not None and settings.setdefault("embed_dim", embed_dim) != embed_dim:
            raise ValueError(
                f"{tower}.output_dim is {embed_dim}, but another output_dim is "
                f"{settings['embed_dim']}; both towers need the same one"
            )
        for theirs, ours in keys.items():
            if ours is not None and values.get(theirs) is not None:
                settings[ours] = values[theirs]
        if "hidden_size" in values and values.get("ffn_hidden_size") is None:
            settings[f"{tower}_mlp"] = 4 * values["hidden_size"]
    width = settings.get("image_width")
    if width is not None and width == settings.get("image_size", 224):
        del settings["image_width"]  # the image is square
    length, positions = text.get("encoder_seq_length"), text.get("max_position_embeddings")
    if positions is not None and length is None:
        settings["context_length"] = positions
    elif positions is not None and positions < length:
        raise ValueError(
            f"text.max_position_embeddings {positions} is less than "
            f"text.encoder_seq_length {length}; set it to {length}"
        )
    elif positions is not None and positions > length:
        remarks.append(
            f"text.max_position_embeddings {positions}: only the first {length} positions are used"
        )
    for name in ("image_mean", "image_std"):
        if name in vision and vision[name] is None:
            remarks.append(f"vision.{name} is null: OpenAI's is used, as in NVIDIA's loader")
    return settings, remarks


def _contradictions(
    towers: Mapping[str, Mapping[str, Any]], config: ModelConfig, has_name: bool
) -> list[str]:
    """Remarks on values that are not used, and on values that differ from published models."""
    remarks = []
    length, patch_size = towers["vision"].get("encoder_seq_length"), config.patch_size
    if length is not None and length != config.patches:
        height, width = config.height_width
        remarks.append(
            f"vision.encoder_seq_length {length} is not used: images of {height} x {width} "
            f"with patches of {patch_size} x {patch_size} have {config.patches} patches"
        )
    same_size = []
    for name, known in MODELS.items():
        is_plain = name.startswith("ViT") and not known.quick_gelu
        if is_plain and _vision_size(known) == _vision_size(config):
            same_size.append(name)
    if BASE_MODEL in same_size and patch_size in (16, 32) and not has_name:
        remarks.append(
            f"vision.patch_dim {patch_size} makes this a ViT-B/{patch_size}; {EXCHANGED}"
        )
    for name in same_size[:1]:
        if MODELS[name].vision_heads != config.vision_heads:
            remarks.append(
                f"vision.num_attention_heads is {config.vision_heads}; "
                f"published {name} checkpoints have {MODELS[name].vision_heads}, "
                "so their weights would compute another function in this model"
            )
    if config.class_token_length > 1:
        remarks.append(
            f"class_token_length {config.class_token_length}: open_clip and Hugging Face have 1 "
            "and cannot load this model"
        )
    if config.global_average_pool:
        remarks.append(
            "global_average_pool: the mean is over the patches, without the class tokens, "
            "as in open_clip"
        )
    return remarks


def _vision_size(config: ModelConfig) -> tuple[int, int, int]:
    """Width, layers and MLP width of the vision tower."""
    return config.vision_width, config.vision_layers, config.vision_mlp


def _check_name(names: tuple[str, ...], config: ModelConfig) -> bool:
    """Whether one of the names is that of a model. ValueError if that has another patch size."""
    has_name = False
    for name in names:
        match = _MODEL_NAME.search(name)
        if match is None:
            continue
        has_name = True
        size, patch_size = match.groups()
        if int(patch_size) != config.patch_size:
            reason = f" ({EXCHANGED})" if size == "B" else ""
            raise ValueError(
                f"the name {name!r} means {size}/{patch_size}, but vision.patch_dim is "
                f"{config.patch_size}{reason}; write patch_dim: {patch_size}, or another name"
            )
    return has_name


def _refuse_unknown_keys(values: Mapping[str, Any], known: Any, prefix: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {prefix + str(key)!r}{did_you_mean(str(key), known)}")


def _resolve_references(root: dict[str, Any]) -> dict[str, Any]:
    """The file with every `${…}` replaced by the value that it names.

    A path is read from the root of the file. Leading dots make it relative to the reference: one
    dot is the mapping that holds it, each further dot the mapping around that. ValueError for a
    path that does not exist and for references in a circle.
    """

    def value_at(path: list[str], seen: tuple[str, ...]) -> Any:
        value: Any = root
        for part in path:
            if not isinstance(value, dict) or part not in value:
                raise ValueError(f"${{{'.'.join(path)}}} does not exist")
            value = value[part]
        return resolve(value, path, seen)

    def resolve(value: Any, location: list[str], seen: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {
                key: resolve(inner, [*location, str(key)], seen) for key, inner in value.items()
            }
        match = _REFERENCE.match(value) if isinstance(value, str) else None
        if match is None:
            return value
        target = match[1]
        dots = len(target) - len(target.lstrip("."))
        start = location[: len(location) - dots] if dots else []
        path = [*start, *target.lstrip(".").split(".")]
        if ".".join(path) in seen:
            raise ValueError(f"{value} refers to itself")
        return value_at(path, (*seen, ".".join(path)))

    resolved: dict[str, Any] = resolve(root, [], ())
    return resolved
