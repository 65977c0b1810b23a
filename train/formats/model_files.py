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
    open_clip:CONFIG.json/FILE, FILE
                               a file of weights and a configuration of open_clip's form; that of
                               FILE alone lies beside it: epoch_32.json, or open_clip_config.json
A run may start from a file of open_clip's weights, such as a checkpoint of its training, too: the
run says what model it is.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from clipmill.manifests import disk, hub
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.preprocess import Preprocess
from clipmill.train.formats import hf, open_clip_files
from clipmill.train.model.architecture import (
    OPEN_CLIP,
    WEIGHTS_SUFFIXES,
    ModelConfig,
    OpenClipConfig,
    model_of_settings,
    read_settings,
    without_starts,
)
from clipmill.train.model.open_clip_model import AnyModel, build_model, without_wrappers

LOCAL_DIR = "local-dir:"
ADAPTER = "adapter_config.json"
# Of params.txt of open_clip's training -> `preprocess_cfg` and `model_cfg`.
FORCED = {
    "image_mean": "mean", "image_std": "std", "image_interpolation": "interpolation",
    "image_resize_mode": "resize_mode", "force_quick_gelu": "quick_gelu", "pretrained": "",
    "force_image_size": "vision_cfg.image_size", "force_context_length": "text_cfg.context_length",
}  # fmt: skip
STATE_FILE = "state.json"  # beside the weights of a checkpoint of our own
# Files of optimizers, schedules and random numbers, as of DeepSpeed and accelerate.
NO_WEIGHTS = re.compile(r"optim|schedul|random|rng|scaler|training_args|zero_pp_rank")
HUB_NAME = re.compile(r"(hf-hub:)?[\w.-]+/[\w.-]+")
MODEL_ENDINGS = (".json", ".safetensors", ".bin", ".pt")
EXAMPLE = "open_clip:ViT-B-32/laion2b_s34b_b79k"
# Format -> how a model is written to a folder.
FORMATS: dict[str, Callable[[AnyModel, str], object]] = {
    "open_clip": open_clip_files.save_export,
    "huggingface": hf.save_hf,
}
logger = logging.getLogger(__name__)


def load_model(source: str) -> AnyModel:
    """The model of a source, in host memory and in fp32.

    ValueError for a source that does not exist, a run that has not finished, and a model that
    cannot be computed here.
    """
    try:
        return _read_model(source)
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        # A configuration with values of other kinds, which the code of its model has met
        if "alloc" in str(error):  # there is too little memory
            raise
        raise ValueError(
            f"{source} is no model that can be read: {type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]:.300}; get its files again"
        ) from error


def _read_model(source: str) -> AnyModel:
    folder = source.removeprefix(LOCAL_DIR)
    if own := _configured_file(source):
        return _load_file(*own)
    if source.startswith(OPEN_CLIP):
        return _from_open_clip_list(source)
    if is_file(source):
        stem = folder.rpartition(".")[0]
        if folder.rpartition("/")[2].startswith("adapter_"):
            raise ValueError(f"{folder} is {open_clip_files.AN_ADAPTER}")
        raise ValueError(
            f"{folder} is a file of weights, which does not say of what model; write "
            f"{_with_name(folder)}, with a name of open_clip's, or put its configuration "
            f"beside it: {stem}.json"
        )
    run = RunLayout(folder)
    if disk.exists(disk.join(folder, ADAPTER)):
        raise ValueError(f"{folder} has {open_clip_files.AN_ADAPTER}")
    if disk.exists(disk.join(folder, open_clip_files.CONFIG_FILE)):
        parent, _, name = folder.rpartition("/")
        if name == "export" and (changed := _changed_export(RunLayout(parent or "."))):
            logger.warning("%s; it is used as it is", changed)
        return open_clip_files.load_export(folder)
    if disk.exists(run.run_json):
        if changed := _changed_export(run):
            raise ValueError(
                f"{changed}; get the run again, or name {run.export} to use what is there"
            )
        return open_clip_files.load_export(run.export)
    if disk.exists(disk.join(folder, hf.CONFIG_FILE)):
        return hf.load_hf(folder)
    if not disk.exists(run.log) and (files := _files_of_weights(run.checkpoints)):
        raise ValueError(
            f"{folder} is a folder of open_clip's training; name a file of weights: "
            f"{_with_name(files[-1])}"
        )
    if disk.exists(run.log) or disk.exists(run.checkpoints):
        raise ValueError(f"{folder} is a run that has not finished; start it again to finish it")
    there = disk.list_names(folder)
    if any(name.endswith(".distcp") for name in there):
        raise ValueError(
            f"{folder} is a checkpoint of torch in parts; write it as one file: python -m "
            f"torch.distributed.checkpoint.format_utils dcp_to_torch {folder} FILE.pt"
        )
    if folders := [disk.join(folder, name) for name in _folders_with_model(folder, there)]:
        raise ValueError(f"{folder} has no model, but {', '.join(folders[:3])} has one; name that")
    if files := _files_of_weights(folder):
        raise ValueError(
            f"{folder} has weights and does not say of what model; name a file of them with a name "
            f"of open_clip's: {_with_name(files[-1])}"
        )
    reason = "has no model" if disk.exists(folder) else "does not exist"
    name = source.removeprefix("hf-hub:")
    if HUB_NAME.fullmatch(source) and not disk.exists(name.partition("/")[0]):
        reason += f" here (of a model of the hub: hf download {name} --local-dir FOLDER)"
    raise ValueError(
        f"{folder} {reason}: give a finished run, a folder with {open_clip_files.CONFIG_FILE} or"
        f" {hf.CONFIG_FILE}, or a name such as {EXAMPLE}"
    )


def _changed_export(run: RunLayout) -> str | None:
    """What is said of an exported file with other bytes than its finished run wrote; None where
    there is none.
    """
    if not disk.exists(run.run_json):
        return None
    with open_clip_files.in_file(run.run_json):
        export = dict(disk.read_json(run.run_json).get("export", {}))
    for name, sha256 in export.items():
        path = disk.join(run.export, name)
        if disk.exists(path) and disk.sha256_of(path) != sha256:
            return f"{path} was damaged or changed: its sha256 is not the one in {run.run_json}"
    return None


def _folders_with_model(folder: str, names: list[str]) -> Iterator[str]:
    """The folders of a folder, or of those in its `snapshots`, that have a model."""
    for name in names:
        inner = disk.list_names(disk.join(folder, name))
        if {open_clip_files.CONFIG_FILE, hf.CONFIG_FILE}.intersection(inner):
            yield name
        elif name == "snapshots":  # of the cache of Hugging Face's hub
            yield from (f"{name}/{each}" for each in inner)


def _files_of_weights(folder: str) -> list[str]:
    """The files of weights of other programs in a folder, or else in the folders of it."""
    folders = [disk.join(folder, name) for name in disk.list_names(folder)]
    for inner in ([folder], folders):
        files = []
        for each in inner:
            names = disk.list_names(each)
            for name in names if STATE_FILE not in names else ():
                if name.endswith(WEIGHTS_SUFFIXES) and not NO_WEIGHTS.search(name):
                    files.append(disk.join(each, name))
        if files:
            return files
    return []


def _with_name(path: str) -> str:
    """A file of weights as a source, with the name of its model where open_clip's training wrote it
    into params.txt, or CLIP_benchmark's form NAME,FILE has it; else NAME."""
    name, comma, file = path.partition(",")
    if comma:
        return f"{OPEN_CLIP}{name}/{file}"
    params = f"{path.rpartition('/checkpoints/')[0]}/params.txt"
    text = disk.read_bytes(params).decode(errors="replace") if disk.exists(params) else ""
    found = re.search(r"^model: (\S+)$", text, re.MULTILINE)
    return f"{OPEN_CLIP}{found[1].replace('/', '-') if found else 'NAME'}/{path}"


def is_file(source: str) -> bool:
    """Whether a source is a file of weights by its ending; a run may have such a name too."""
    path = source.removeprefix(LOCAL_DIR)
    if source.startswith(OPEN_CLIP) or not path.endswith(WEIGHTS_SUFFIXES):
        return False
    return not disk.is_folder(path)


def _configured_file(source: str) -> tuple[str, str] | None:
    """(configuration, weights) of a source that is a file with a configuration of its own."""
    if source.startswith(OPEN_CLIP):
        name, slash, path = source.removeprefix(OPEN_CLIP).partition(".json/")
        return (f"{name}.json", path) if slash else None
    if not is_file(source):
        return None
    path = source.removeprefix(LOCAL_DIR)
    beside = disk.join(path.rpartition("/")[0] or ".", open_clip_files.CONFIG_FILE)
    known = (f"{path.rpartition('.')[0]}.json", beside)
    return next(((name, path) for name in known if disk.exists(name)), None)


def _load_file(configuration: str, path: str) -> AnyModel:
    """The model of a configuration of open_clip's form with the weights of a file."""
    given, preprocess = read_settings(configuration, configuration)
    settings, preprocess = _of_training(path, without_starts(given), preprocess)
    folder = configuration.rpartition("/")[0] or "."
    has_files = disk.exists(disk.join(folder, open_clip_files.TOKENIZER_FILE))
    config = model_of_settings(
        settings, preprocess, configuration, folder=folder if has_files else None
    )
    weights, has_bias = _weights_of_file(path, config)
    if isinstance(config, ModelConfig):
        config = dataclasses.replace(config, logit_bias=has_bias)
    model = build_model(config)
    model.load_state_dict(weights)
    return model


def _beside(path: str) -> list[str]:
    """Files beside one of weights that say what its training changed: of open_clip's training, and
    of the folder that it was copied from.
    """
    folder = path.rpartition("/")[0] or "."
    names = [f"{folder.removesuffix('/checkpoints')}/params.txt"] if "/checkpoints/" in path else []
    return [name for name in (*names, disk.join(folder, open_clip_files.CONFIG_FILE))
            if disk.exists(name)]  # fmt: skip


def _of_training(
    path: str, settings: Mapping[str, Any], preprocess: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """`model_cfg` and `preprocess_cfg` of a file of weights, with what `_beside` says: the flags of
    its training that change what the model computes, and preprocessing that is not given.
    """
    model: dict[str, Any] = copy.deepcopy(dict(settings))
    for name in _beside(path):
        if name.endswith(".json"):
            document = disk.read_json(name)
            found = document.get("preprocess_cfg") or {}
            forced = {"quick_gelu": document.get("model_cfg", {}).get("quick_gelu", False)}
        else:
            text = disk.read_bytes(name).decode(errors="replace")
            flags = {
                key: json.loads(value) if value[0] in "[0123456789" else value
                for key, value in re.findall(r"^(\w+): (\S.*?)\s*$", text, re.MULTILINE)
                if key in FORCED and value not in ("None", "False")
            }
            found = {FORCED[key]: flags[key] for key in flags if key.startswith("image_")}
            forced = {FORCED[key]: flags[key] for key in flags if key.startswith("force_")}
            if flags.get("pretrained") == "openai" and not (model | forced).get("quick_gelu"):
                told = "%s: the run began from OpenAI's weights, which older versions of open_clip"
                told += " ran with QuickGELU whatever the name; then name a model NAME-quickgelu"
                logger.warning(told, name)
        if found or any(forced.values()):
            logger.warning("%s: what the model computes is as %s says", path, name)
        if forced.pop("quick_gelu", False):
            model["quick_gelu"] = True
        for key, value in forced.items():
            part, _, inner = key.partition(".")
            model[part][inner] = value
        preprocess = {**found, **preprocess}
    return model, preprocess


def source_files(source: str, *, alone: bool = True) -> dict[str, str]:
    """sha256 of each file that decides what a source computes, its tokenizer's too: of a run, those
    of its export. alone: without the configuration beside a file of weights, which a run that
    starts from it does not read.

    Empty for a name of open_clip's list. ValueError for a folder or file that does not exist.
    """
    own = _configured_file(source)
    if own and not (alone and is_file(source)):
        paths = {path: path for path in _beside(own[1]) if path not in own}
        paths |= {path.rpartition("/")[2]: path for path in own}
        return {name: disk.sha256_of(path) for name, path in paths.items()}
    if source.startswith(OPEN_CLIP):
        tag = source.partition("/")[2]
        local = bool(tag) and not disk.is_url(tag) and os.path.isfile(tag)
        return {name: disk.sha256_of(name) for name in (tag, *_beside(tag))} if local else {}
    folder = source.removeprefix(LOCAL_DIR)
    if not disk.exists(folder):
        raise ValueError(f"{folder} does not exist; name a run or a folder with a model")
    if is_file(source):
        return {folder.rpartition("/")[2]: disk.sha256_of(folder)}
    export = RunLayout(folder).export
    root = export if disk.exists(export) else folder
    names = open_clip_files.export_files(root)
    there = disk.list_names(root)
    if not names:  # Hugging Face's
        names = [name for name in there if name.endswith(MODEL_ENDINGS)]
    paths = {name: disk.join(root, name) for name in names if name != "run.json"}
    tokenizers = [root]
    if open_clip_files.CONFIG_FILE in names:
        named = open_clip_files.tokenizer_name(root)
        if named and not disk.is_url(named) and os.path.isdir(named):
            tokenizers.append(named)
    for each in tokenizers:
        for name in open_clip_files.TOKENIZER_FILES.intersection(disk.list_names(each)):
            paths[name if each == root else disk.join(each, name)] = disk.join(each, name)
    return {name: disk.sha256_of(path) for name, path in sorted(paths.items())}


def save_model(model: AnyModel, folder: str, format_name: str) -> None:
    """Write a model to a new folder in one of FORMATS, whole or not at all: what is read back has
    the same bits.

    ValueError for a folder that is not empty and for a model that the format cannot express.
    """
    with disk.new_folder(folder) as staging:
        FORMATS[format_name](model, str(staging))
        expected, stored = model.state_dict(), load_model(str(staging)).state_dict()
        for name, value in expected.items():
            if not torch.equal(value.cpu(), stored[name]):
                raise OSError(f"{name} differs after {folder} was read back; write it again")


# --- start from weights ---------------------------------------------------------------------------


def initial_weights(source: str, config: ModelConfig | OpenClipConfig) -> dict[str, Tensor]:
    """Weights of a source by our parameter names, for a model of `config`.

    A logit bias (loss siglip) that the source does not have is left out. ValueError where the
    source is another architecture, with the settings that would fit it.
    """
    try:
        if is_file(source):
            weights, has_bias = _weights_of_file(source.removeprefix(LOCAL_DIR), config)
        else:
            model = load_model(source)
            theirs, weights = model.config, model.state_dict()
            if isinstance(theirs, ModelConfig) and isinstance(config, ModelConfig):
                positions = {
                    name: getattr(config, name) for name in ("image_size", "context_length")
                }
                theirs = dataclasses.replace(theirs, **positions)
                weights = open_clip_files.with_positions(weights, config, source)
            _refuse_other_model(theirs, config, source)
            has_bias = model.config.logit_bias
            if isinstance(config, OpenClipConfig):
                state = open_clip_files.to_open_clip(model)
                weights = open_clip_files.from_open_clip(_fitting(state, config), config)
    except ValueError as error:
        raise ValueError(f"init: {error}") from error
    if has_bias and not config.logit_bias:
        raise ValueError(
            f"init: {source} has a logit bias, which loss clip does not use; set loss to siglip"
        )
    return {name: value.detach() for name, value in weights.items()}


def _weights_of_file(
    path: str, config: ModelConfig | OpenClipConfig
) -> tuple[dict[str, Tensor], bool]:
    """The weights in a file of open_clip's, for a model of `config`, and whether it has a logit
    bias.
    """
    if not disk.exists(path):
        raise ValueError(f"{path} does not exist")
    stored = open_clip_files.read_state(path)
    if any(open_clip_files.ADAPTED.search(name) for name in stored):
        raise ValueError(f"{path} is {open_clip_files.AN_ADAPTER}")
    state = open_clip_files.plain_names(stored)
    has_bias = "logit_bias" in state
    try:
        if isinstance(config, OpenClipConfig):
            return open_clip_files.from_open_clip(_fitting(stored, config), config), has_bias
        theirs = dataclasses.replace(config, logit_bias=has_bias)
        if any(name.startswith(("vision_model.", "text_model.")) for name in state):
            return hf.from_hf(state, theirs), has_bias
        state = open_clip_files.with_positions(state, theirs, path)
        return open_clip_files.from_open_clip(state, theirs), has_bias
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _refuse_other_model(
    theirs: ModelConfig | OpenClipConfig, ours: ModelConfig | OpenClipConfig, source: str
) -> None:
    """ValueError, with the settings that would fit it, where the source is another architecture."""
    if isinstance(theirs, OpenClipConfig) or isinstance(ours, OpenClipConfig):
        _refuse_other_module(theirs, ours, source)
    elif different := _architecture_differences(theirs, ours):
        changes = " ".join(f"model.{name}={_as_setting(value)}" for name, value, _ in different)
        listed = [f"{name} {one} (here {other})" for name, one, other in different[:4]]
        raise ValueError(
            f"{source} is another model than the run's: {', '.join(listed)};"
            f" set model to its architecture, or --set {changes}"
        )


def _refuse_other_module(
    theirs: ModelConfig | OpenClipConfig, ours: ModelConfig | OpenClipConfig, source: str
) -> None:
    """`_refuse_other_model` where open_clip's own module computes one of the two."""
    one, other = _function(theirs), _function(ours)
    parts = [f"{part}.{name}" for part in one for name in {**one[part], **other[part]}
             if one[part].get(name) != other[part].get(name)]  # fmt: skip
    if parts:
        raise ValueError(
            f"{source} is another model than the run's, which differs in {', '.join(parts[:3])}; "
            "set model to its architecture, and model.image_mean and the like to its preprocessing"
        )


def _function(config: ModelConfig | OpenClipConfig) -> dict[str, dict[str, Any]]:
    """What a model computes, in open_clip's settings with its defaults."""
    bare = dataclasses.replace(config, **dataclasses.asdict(Preprocess()))
    if isinstance(bare, OpenClipConfig):
        bare = model_of_settings(bare.settings, None, bare.name)
    settings = open_clip_files.open_clip_config(bare)["model_cfg"]
    changing = ("custom_text", "nonscalar_logit_scale", "init_logit_bias", "init_logit_scale")
    outer = {name: value for name, value in settings.items() if name not in changing}
    vision = {**outer.pop("vision_cfg"), "patch_dropout": None, "timm_model_pretrained": None}
    text = {**outer.pop("text_cfg"), "hf_model_pretrained": None}
    images = dataclasses.asdict(config.preprocess)
    del images["crop_floor"]
    return {"model_cfg": outer, "vision_cfg": vision, "text_cfg": text, "model": images}


def _fitting(state: Mapping[str, Tensor], config: OpenClipConfig) -> dict[str, Tensor]:
    """Weights without a logit bias that the model does not have."""
    parameters = without_wrappers(state)
    if not config.logit_bias:
        parameters.pop("logit_bias", None)
    return parameters


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _architecture_differences(theirs: ModelConfig, ours: ModelConfig) -> list[tuple[str, Any, Any]]:
    """(setting, theirs, ours) where the two compute different functions. Patch dropout and the bias
    may differ.
    """
    different = []
    for field in dataclasses.fields(ModelConfig):
        name = field.name
        if name in ("logit_bias", "drop_patch_rate", "crop_floor"):
            continue
        one, other = getattr(theirs, name), getattr(ours, name)
        if one != other:
            different.append((name, one, other))
    return different


def _as_setting(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- open_clip's list -----------------------------------------------------------------------------


def check_reach(source: str) -> None:
    """ValueError for a model of open_clip's list that cannot be computed here, or whose weights are
    not on this machine and cannot be downloaded. Other sources are not looked at.
    """
    if source.startswith(OPEN_CLIP) and not _configured_file(source):
        _open_clip_config(source)


def _open_clip_config(source: str) -> tuple[str, str, ModelConfig | OpenClipConfig]:
    """(architecture, tag or file, configuration) of a model that can be loaded here."""
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
    if os.path.isfile(tag):
        settings, preprocessing = _of_training(tag, settings, preprocessing)
    config = model_of_settings(settings, preprocessing, architecture)
    hub.check_open_clip(source, architecture, tag, tokenizer=False)
    return architecture, tag, config


def _from_open_clip_list(source: str) -> AnyModel:
    """A model that open_clip builds and loads by its own code; it may download weights."""
    architecture, tag, config = _open_clip_config(source)
    import open_clip

    model, why = build_model(config), None
    if os.path.isfile(tag):
        try:
            model.load_state_dict(_weights_of_file(tag, config)[0])
            return model
        except (ValueError, RuntimeError) as error:  # open_clip knows more forms than these
            why = error
    before = logging.root.manager.disable
    logging.disable(logging.INFO)  # open_clip writes every step to the root logger
    try:
        theirs = open_clip.create_model(architecture, pretrained=tag, device="cpu")
    # open_clip raises RuntimeError, OSError and the errors of its hub client
    except Exception as error:
        message = " ".join(str(why or error).split())
        raise ValueError(f"open_clip cannot load {source}: {message}") from error
    finally:
        logging.disable(before)
    model.load_state_dict(open_clip_files.from_open_clip(theirs.state_dict(), config))
    return model


def _preprocessing(
    architecture: str, tag: str, settings: Mapping[str, object]
) -> Mapping[str, Any]:
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
    pretrained: dict[str, object] = open_clip.get_pretrained_cfg(architecture, tag)
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
