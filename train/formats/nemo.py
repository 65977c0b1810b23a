"""NVIDIA's YAML for CLIP -> a model and changes to a run's settings, with remarks on what it
contradicts.

The keys are those of NVIDIA's documentation: `model` with `vision` and `text`, inside it or beside
it, `trainer.precision` and OmegaConf's references (`${model.output_dim}`,
`${.encoder_seq_length}`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifests import disk
from manifests.disk import did_you_mean
from train.config import configure, model_config
from train.model import MODELS, ModelConfig

# Their key -> ours. None: derived from others, and checked against them.
_TOWER = {
    "num_layers": "layers",
    "hidden_size": "width",
    "ffn_hidden_size": "mlp",
    "num_attention_heads": "heads",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
_VISION = {
    **{theirs: f"vision_{ours}" for theirs, ours in _TOWER.items()},
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
_TEXT = {
    **{theirs: f"text_{ours}" for theirs, ours in _TOWER.items()},
    "encoder_seq_length": "context_length",
    "max_position_embeddings": None,
    "output_dim": None,
}
_RUN = {
    "local_loss": "local_loss",
    "gather_with_grad": "gather_with_grad",
    "global_batch_size": "batch_size",
    "tensor_model_parallel_size": "tp",
}
# Of a run, with values of their own
_OTHER = ("megatron_amp_O2", "activations_checkpoint_granularity")
_PRECISION = {
    "32": "fp32",
    "32-true": "fp32",
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
}
_REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")
_NAMED = re.compile(r"(?<![A-Za-z])(B|L|H|g|G|e)[-_/ ]?(14|16|32)(?!\d)")


def read(path: str) -> tuple[ModelConfig, dict[str, Any], list[str]]:
    """The model, changes for `configure` (among them those that make this model), and remarks.

    ValueError for an unknown key, with the nearest; for a reference to nothing; and for a name that
    contradicts the sizes. What is not given is a ViT-B/32's.
    """
    import yaml

    try:
        written = yaml.safe_load(disk.read_bytes(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(written, dict):
        raise ValueError(f"{path} holds no settings")
    try:
        return _read(written, Path(path).stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(written: dict[str, Any], stem: str) -> tuple[ModelConfig, dict[str, Any], list[str]]:
    root = _resolved(written)
    _known(root, ("name", "model", "vision", "text", "trainer"), "")
    model = dict(root.get("model") or {})
    towers = {}
    for tower, keys in (("vision", _VISION), ("text", _TEXT)):
        inside = model.pop(tower, None)
        if inside and root.get(tower):
            raise ValueError(f"{tower} is written twice, inside model and beside it")
        towers[tower] = dict(inside or root.get(tower) or {})
        _known(towers[tower], keys, f"{tower}.")
    _known(model, ("output_dim", *_RUN, *_OTHER), "model.")
    trainer = root.get("trainer") or {}
    _known(trainer, ("precision",), "trainer.")
    changes: dict[str, Any] = {
        ours: model[theirs] for theirs, ours in _RUN.items() if theirs in model
    }
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
                f"model.megatron_amp_O2 goes with bf16, and trainer.precision is {precision!r}"
            )
        changes["precision"] = "bf16_o2"
    if (granularity := model.get("activations_checkpoint_granularity")) is not None:
        changes["recompute"] = granularity
    sizes, remarks = _sizes(model, towers)
    base = "ViT-B-32"
    changes["model"] = base
    changes |= {f"model.{k}": v for k, v in sizes.items() if v != getattr(MODELS[base], k)}
    config = model_config(configure({k: v for k, v in changes.items() if k.startswith("model")}))
    named = _check_name((str(root.get("name", "")), stem), config)
    return config, changes, [*remarks, *_notes(towers, config, named)]


def _sizes(
    model: Mapping[str, Any], towers: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Our settings as written, without what is null."""
    vision, text, remarks = towers["vision"], towers["text"], []
    sizes = {"embed_dim": model["output_dim"]} if "output_dim" in model else {}
    for tower, keys in (("vision", _VISION), ("text", _TEXT)):
        values = towers[tower]
        dim = values.get("output_dim")
        if dim is not None and sizes.setdefault("embed_dim", dim) != dim:
            raise ValueError(
                f"{tower}.output_dim is {dim}, "
                f"and the other output_dim {sizes['embed_dim']}: both are one"
            )
        sizes |= {
            ours: values[k]
            for k, ours in keys.items()
            if ours is not None and values.get(k) is not None
        }
        if "hidden_size" in values and values.get("ffn_hidden_size") is None:
            sizes[f"{tower}_mlp"] = 4 * values["hidden_size"]
    if sizes.get("image_width") is not None and sizes["image_width"] == sizes.get(
        "image_size", 224
    ):
        del sizes["image_width"]
    length, table = text.get("encoder_seq_length"), text.get("max_position_embeddings")
    if table is not None and length is not None and table < length:
        raise ValueError(
            f"text.max_position_embeddings {table} is less than text.encoder_seq_length {length}"
        )
    if table is not None and length is not None and table > length:
        remarks.append(
            f"text.max_position_embeddings {table}: "
            f"only the first {length} positions would ever be used"
        )
    if table is not None and length is None:
        sizes["context_length"] = table
    for name in ("image_mean", "image_std"):
        if name in vision and vision[name] is None:
            remarks.append(f"vision.{name} is null: OpenAI's is taken, as NVIDIA's loader does")
    return sizes, remarks


def _notes(towers: Mapping[str, Mapping[str, Any]], config: ModelConfig, named: bool) -> list[str]:
    """What the file contradicts, or will surprise by."""
    remarks = []
    length, p = towers["vision"].get("encoder_seq_length"), config.patch_size
    if length is not None and length != config.patches:
        height, width = config.height_width
        remarks.append(
            f"vision.encoder_seq_length {length} is not used: "
            f"pictures of {height} x {width} in patches of {p} have {config.patches}"
        )
    like = [
        name
        for name, known in MODELS.items()
        if name.startswith("ViT") and not known.quick_gelu and _tower(known) == _tower(config)
    ]
    if "ViT-B-32" in like and p in (16, 32) and not named:
        exchanged = "NVIDIA's table has the patches of B/32 and B/16 exchanged"
        remarks.append(f"vision.patch_dim {p} makes this a ViT-B/{p}; {exchanged}")
    for name in like[:1]:
        if MODELS[name].vision_heads != config.vision_heads:
            remarks.append(
                f"vision.num_attention_heads is {config.vision_heads}; "
                f"published {name} checkpoints have {MODELS[name].vision_heads}, "
                "and their weights would compute something else here"
            )
    if config.class_token_length > 1:
        remarks.append(
            f"class_token_length {config.class_token_length}: open_clip and Hugging Face have 1; "
            "they cannot load this"
        )
    if config.global_average_pool:
        remarks.append(
            "global_average_pool: the mean is of the patches, "
            "without the class tokens, as in open_clip"
        )
    return remarks


def _tower(config: ModelConfig) -> tuple[int, int, int]:
    return config.vision_width, config.vision_layers, config.vision_mlp


def _check_name(names: tuple[str, ...], config: ModelConfig) -> bool:
    """Whether the file names a model. ValueError if that model has another patch size."""
    named = [(said, found) for said in names if (found := _NAMED.search(said))]
    for said, found in named:
        if int(found[2]) != config.patch_size:
            table = (
                " (NVIDIA's table has the patches of B/32 and B/16 exchanged)"
                if found[1] == "B"
                else ""
            )
            raise ValueError(
                f"it is named {said!r}, a {found[1]}/{found[2]}, but vision.patch_dim is "
                f"{config.patch_size}{table};"
                f" write patch_dim: {found[2]}, or another name"
            )
    return bool(named)


def _known(given: Mapping[str, Any], keys: Any, where: str) -> None:
    for key in given:
        if key not in keys:
            raise ValueError(f"unknown key {where + str(key)!r}{did_you_mean(str(key), keys)}")


def _resolved(root: dict[str, Any]) -> dict[str, Any]:
    """All `${…}` replaced by what they name: from the root, or from a leading dot on, from where
    they stand.
    """

    def look(path: list[str], seen: tuple[str, ...]) -> Any:
        value: Any = root
        for part in path:
            if not isinstance(value, dict) or part not in value:
                raise ValueError(f"${{{'.'.join(path)}}} names nothing")
            value = value[part]
        return resolve(value, path, seen)

    def resolve(value: Any, here: list[str], seen: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: resolve(inner, [*here, str(key)], seen) for key, inner in value.items()}
        match = _REFERENCE.match(value) if isinstance(value, str) else None
        if match is None:
            return value
        target = match[1]
        dots = len(target) - len(target.lstrip("."))
        start = here[: len(here) - dots] if dots else []
        path = [*start, *target.lstrip(".").split(".")]
        if ".".join(path) in seen:
            raise ValueError(f"{value} refers to itself")
        return look(path, (*seen, ".".join(path)))

    found: dict[str, Any] = resolve(root, [], ())
    return found
