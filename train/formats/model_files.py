"""Read a model from wherever it is stored, start a run from its weights, and write it in another
format.

A source is one of
    RUN                        a finished run; its export is read
    FOLDER, local-dir:FOLDER   an open_clip folder (such as our exports) or a Hugging Face CLIP
                               folder
    open_clip:NAME/TAG         a model of open_clip's list with its pretrained weights, for example
                               open_clip:ViT-B-32/laion2b_s34b_b79k
    open_clip:NAME/FILE        the same with a file of weights, for example
                               open_clip:ViT-B-32//data/epoch_32.pt
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from manifests import disk
from manifests.run_layout import RunLayout
from train.formats import hf, open_clip_files
from train.model import CLIP, ModelConfig

OPEN_CLIP, LOCAL_DIR = "open_clip:", "local-dir:"
EXAMPLE = "open_clip:ViT-B-32/laion2b_s34b_b79k"
# Format -> how a model is written to a folder.
FORMATS: dict[str, Callable[[CLIP, str], None]] = {
    "open_clip": open_clip_files.save_export,
    "huggingface": hf.save_hf,
}
logger = logging.getLogger(__name__)


def load_model(source: str) -> CLIP:
    """The model of a source, in host memory and in fp32.

    ValueError for a source that does not exist, a run that has not finished, and a model that a
    `CLIP` cannot be.
    """
    if source.startswith(OPEN_CLIP):
        return _from_open_clip_list(source)
    folder = source.removeprefix(LOCAL_DIR)
    run = RunLayout(folder)
    if disk.exists(disk.join(folder, open_clip_files.CONFIG_FILE)):
        return open_clip_files.load_export(folder)
    if disk.exists(run.run_json):
        return open_clip_files.load_export(run.export)
    if disk.exists(disk.join(folder, hf.CONFIG_FILE)):
        return hf.load_hf(folder)
    if disk.exists(run.log) or disk.exists(run.checkpoints):
        raise ValueError(f"{folder} is a run that has not finished; start it again to finish it")
    reason = "has no model" if disk.exists(folder) else "does not exist"
    raise ValueError(
        f"{folder} {reason}: give a finished run, a folder with {open_clip_files.CONFIG_FILE} or"
        f" {hf.CONFIG_FILE}, or a name such as {EXAMPLE}"
    )


def save_model(model: CLIP, folder: str, format_name: str) -> None:
    """Write a model to a new folder in one of FORMATS, then read it back and compare every bit.

    ValueError for a folder that is not empty and for a model that the format cannot express.
    """
    if disk.list_names(folder) or (not disk.is_url(folder) and disk.local_path(folder).is_file()):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder")
    FORMATS[format_name](model, folder)
    expected, stored = model.state_dict(), load_model(folder).state_dict()
    different = [name for name in expected if not torch.equal(expected[name].cpu(), stored[name])]
    if different:
        raise OSError(f"{different[0]} differs after {folder} was read back; write it again")


# --- start from weights ---------------------------------------------------------------------------


def initial_weights(source: str, config: ModelConfig, setting: str = "init") -> dict[str, Tensor]:
    """Weights of a source by our parameter names, for a model of `config`.

    A logit bias (loss siglip) that the source does not have is left out. ValueError where the
    source is another architecture, with the settings that would fit it.
    """
    try:
        model = load_model(source)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error
    if different := _architecture_differences(model.config, config):
        changes = " ".join(f"model.{name}={_as_setting(value)}" for name, value, _ in different)
        listed = [f"{name} {theirs} (here {ours})" for name, theirs, ours in different[:4]]
        raise ValueError(
            f"{setting}: {source} is another model than the run's: {', '.join(listed)};"
            f" set model to its architecture, or --set {changes}"
        )
    if model.config.logit_bias and not config.logit_bias:
        raise ValueError(
            f"{setting}: {source} has a logit bias, "
            "which loss clip does not use; set loss to siglip"
        )
    return {name: value.detach() for name, value in model.state_dict().items()}


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _architecture_differences(theirs: ModelConfig, ours: ModelConfig) -> list[tuple[str, Any, Any]]:
    """(setting, theirs, ours) where the two compute different functions. Dropout rates and the bias
    may differ.
    """
    different = []
    for field in dataclasses.fields(ModelConfig):
        name = field.name
        if name == "logit_bias" or name.startswith("drop_") or name.endswith("_dropout"):
            continue
        one, other = getattr(theirs, name), getattr(ours, name)
        if name == "image_width":  # None stands for a square
            if theirs.image_width is None and ours.image_width is None:
                continue  # image_size says it
            one, other = theirs.height_width[1], ours.height_width[1]
        if one != other:
            different.append((name, one, other))
    return different


def _as_setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- open_clip's list -----------------------------------------------------------------------------


def _from_open_clip_list(source: str) -> CLIP:
    """A model that open_clip builds and loads by its own code; it may download weights."""
    architecture, _, tag = source.removeprefix(OPEN_CLIP).partition("/")
    if not tag:
        raise ValueError(f"{source} names no weights; write {OPEN_CLIP}NAME/TAG, like {EXAMPLE}")
    try:
        import open_clip
    except ImportError as error:
        raise ValueError(
            f"{source} needs open_clip ({error}); pip install open_clip_torch"
        ) from error
    settings = open_clip.get_model_config(architecture)
    if settings is None:
        known = open_clip.list_models()
        raise ValueError(
            f"open_clip has no model {architecture!r}{disk.did_you_mean(architecture, known)}"
        )
    preprocessing = _preprocessing(architecture, tag, settings)
    try:
        config = open_clip_files.model_config_of(settings, preprocessing)
    except (TypeError, KeyError) as error:  # a ResNet, for example, has a list of layers
        raise ValueError(f"open_clip's {architecture} has no two ViT-like towers") from error
    before = logging.root.manager.disable
    logging.disable(logging.INFO)  # open_clip writes every step to the root logger
    try:
        theirs = open_clip.create_model(architecture, pretrained=tag, device="cpu")
    # open_clip raises RuntimeError, OSError and the errors of its hub client
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"open_clip cannot load {source}: {message}") from error
    finally:
        logging.disable(before)
    model = CLIP(config)
    model.load_state_dict(open_clip_files.from_open_clip(theirs.state_dict(), config))
    return model


def _preprocessing(architecture: str, tag: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mean and std of a tag's images; {} for a file. ValueError for an unknown tag or another
    activation.
    """
    import open_clip

    if os.path.isfile(tag):
        return {}
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag not in tags:
        listed = ", ".join(tags) or "none"
        raise ValueError(
            f"open_clip's {architecture} has no weights {tag!r}{disk.did_you_mean(tag, tags)}, "
            f"and there is no such file; its tags: {listed}"
        )
    pretrained: dict[str, Any] = open_clip.get_pretrained_cfg(architecture, tag)
    # Weights that are run with another activation than they were trained with lose accuracy
    # silently.
    trained_quick = bool(pretrained.get("quick_gelu", False))
    if trained_quick != bool(settings.get("quick_gelu", False)):
        plain = architecture.removesuffix("-quickgelu")
        other = f"{plain}-quickgelu" if trained_quick else plain
        raise ValueError(
            f"{tag} was trained with another activation than {architecture} has; "
            f"write {OPEN_CLIP}{other}/{tag}"
        )
    return pretrained
