"""A folder with the two towers of a model as ONNX, written whole or not at all.

image.onnx, text.onnx   the graphs; each has the description in its metadata
*.onnx.data             the weights of a graph above 1.5 GiB
onnx_config.json        model, preprocessing, tokenizer, identity, and the sha256 of the files

The graphs are run by onnxruntime and compared with PyTorch before the folder gets its name.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import logging
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifests import disk
from train.formats.hf_tokenizer import CLIP_VOCABULARY
from train.formats.model_files import OPEN_CLIP, weights_sha256
from train.formats.onnx_graphs import (
    IMAGE_FILE,
    TEXT_FILE,
    ImageTower,
    OnnxOptions,
    TextTower,
    require_packages,
    write_graphs,
)
from train.model import CLIP, MODELS, ModelConfig

CONFIG_FILE = "onnx_config.json"
FORMAT = 1
# Of a component of a unit vector, to PyTorch in fp32.
TOLERANCES = {"fp32": 1e-5, "fp16": 1e-3}
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredGraphs:
    """A folder that `save_onnx` has written, and what its graphs take."""

    folder: Path
    options: OnnxOptions
    weights_sha256: str  # of the model that they are made from


def read_graphs(folder: str) -> StoredGraphs:
    """The folder, whose files are those that were written.

    ValueError where it is no such folder, or a file of it is missing or has changed.
    """
    root = disk.local_path(folder)
    path = root / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CONFIG_FILE}; give a local folder of train/export.py --onnx"
        )
    value = disk.read_json(path)
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"format is {value['format']!r}; this program reads {FORMAT}")
        options = OnnxOptions(
            dtype=value["dtype"],
            text_length=value["text"]["text_length"],
            pixels=value["image"]["pixels"],
        )
        files = {name: (each["bytes"], each["sha256"]) for name, each in value["files"].items()}
        weights = str(value["weights_sha256"])
        disk.check_types(int | None, options.text_length, "text_length")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged: {missing}") from error
    for name in sorted({IMAGE_FILE, TEXT_FILE} | files.keys()):
        file = root / os.path.basename(name)
        if name not in files or not file.is_file():
            raise ValueError(f"{folder} has no {name}; export the model again")
        if (file.stat().st_size, disk.file_sha256(file)) != files[name]:
            raise ValueError(f"{file} is not as it was written; export the model again")
    return StoredGraphs(folder=root, options=options, weights_sha256=weights)


# --- what is written beside them ------------------------------------------------------------------


def description(model: CLIP, source: str, options: OnnxOptions) -> dict[str, Any]:
    """Model, preprocessing, tokenizer and identity, as in the files and in onnx_config.json."""
    config = model.config
    height, width = config.height_width
    is_clip = config.vocab_size == CLIP_VOCABULARY
    return {
        "format": FORMAT,
        "source": source_name(source),
        "model": model_name(config),
        "config": dataclasses.asdict(config),
        "weights_sha256": weights_sha256(model.state_dict()),
        "dtype": options.dtype,
        "image": {
            "input": "uint8 RGB (batch, height, width, 3)"
            if options.pixels == "uint8"
            else "fp32 (batch, channels, height, width)",
            "pixels": options.pixels,
            "height": height,
            "width": width,
            "channels": config.num_channels,
            "resize": "bicubic to the shorter side, then the centre",
            "mean": list(config.image_mean),
            "std": list(config.image_std),
        },
        "text": {
            "input": "int64 (batch, text_length), zeros after the end of text",
            "tokenizer": "clip" if is_clip else None,
            "vocabulary": config.vocab_size,
            "context_length": config.context_length,
            "text_length": options.text_length,
            "end_of_text": "the highest token of a text",
        },
        "logit_scale": float(model.logit_scale.detach().exp()),
        "logit_bias": None if model.logit_bias is None else float(model.logit_bias.detach()),
    }


def source_name(source: str) -> str:
    """A source without the folders that it lies in: a file that is passed on names no machine."""
    prefix = ""
    if source.startswith(OPEN_CLIP):
        prefix, _, source = source.partition("/")
        prefix += "/"
    return prefix + os.path.basename(source.rstrip("/"))


def model_name(config: ModelConfig) -> str | None:
    """The name in MODELS of the same towers; None where there is none."""
    plain = {"logit_bias": False}
    for field in dataclasses.fields(ModelConfig):
        if field.name.startswith(("drop_", "image_mean", "image_std")) or field.name.endswith(
            "_dropout"
        ):
            plain[field.name] = field.default  # type: ignore[assignment]
    if config.num_channels == 3:
        config = dataclasses.replace(config, **plain)  # type: ignore[arg-type]
    return next((name for name, known in MODELS.items() if known == config), None)


# --- the folder -----------------------------------------------------------------------------------


def save_onnx(
    model: CLIP, folder: str, options: OnnxOptions, source: str = ""
) -> dict[str, float] | None:
    """Write a new folder whole or not at all; the largest differences of its graphs to PyTorch.

    None where onnxruntime is missing, which runs them. ValueError for a folder that is not empty,
    weights that are not finite, and a model that the type cannot hold.
    """
    require_packages()
    options.check(model.config)
    _refuse_existing(folder)
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} holds NaN or infinity; the model is broken")
    plain = description(model, source, options)
    metadata = {}
    for key, value in plain.items():
        metadata[f"clipmill.{key}"] = value if isinstance(value, str) else json.dumps(value)
    with _staging(folder) as staging:
        write_graphs(model, staging, options, metadata)
        differences = _checked(model, staging, options)
        files = {}
        for path in sorted(staging.iterdir()):
            files[path.name] = {"bytes": path.stat().st_size, "sha256": disk.file_sha256(path)}
        disk.write_json(str(staging / CONFIG_FILE), {**plain, "files": files})
        _publish(staging, folder)
    return differences


def _refuse_existing(folder: str) -> None:
    if folder.endswith(".onnx"):
        raise ValueError(
            f"{folder} would be a folder with {IMAGE_FILE} and {TEXT_FILE};"
            " give it a name that does not end in .onnx"
        )
    if disk.list_names(folder) or (not disk.is_url(folder) and disk.local_path(folder).is_file()):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder")


def _staging(folder: str) -> AbstractContextManager[Path]:
    """A folder to write to: beside the local one that it becomes."""
    if disk.is_url(folder):
        return disk.scratch_folder("clipmill-onnx-")
    target = disk.local_path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    return disk.scratch_folder(f".{target.name}.partial.", target.parent)


def _publish(staging: Path, folder: str) -> None:
    """Give the finished files their place. ValueError where another export was faster."""
    names = [path.name for path in staging.iterdir()]
    if disk.is_url(folder):
        for name in sorted(names, key=lambda name: name == CONFIG_FILE):
            disk.publish(staging / name, disk.join(folder, name))
        return
    for name in names:
        with open(staging / name, "rb") as f:
            os.fsync(f.fileno())
    target = disk.local_path(folder)
    try:
        os.rename(staging, target)  # over a folder only where it is empty
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise ValueError(f"{folder} was made by another command in the meantime") from None
    disk.sync_folder(target.parent)


# --- the proof ------------------------------------------------------------------------------------


def example_inputs(
    config: ModelConfig, batch: int, length: int, pixels: str, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Random images as `pixels` says, and texts of which the first has all its tokens."""
    generator = torch.Generator().manual_seed(seed)
    height, width = config.height_width
    if pixels == "uint8":
        shape = (batch, height, width, 3)
        image = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    else:
        shape = (batch, config.num_channels, height, width)
        image = torch.randn(shape, generator=generator)
    end = config.vocab_size - 1
    token_BT = torch.randint(1, max(2, end - 1), (batch, length), generator=generator)
    for row in range(batch):
        last = max(0, length - 1 - row)
        token_BT[row, last] = end
        token_BT[row, last + 1 :] = 0
    return image, token_BT


@torch.no_grad()
def differences_to_torch(model: CLIP, folder: Path, options: OnnxOptions) -> dict[str, float]:
    """The largest difference of each tower's components to the model in fp32, on the CPU.

    Batches of 1 and 4; where the text length is free, two lengths.
    """
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    sessions = []
    for name in (IMAGE_FILE, TEXT_FILE):
        path = str(folder / name)
        sessions.append(onnxruntime.InferenceSession(path, session_options, providers=providers))
    reference = ImageTower(model, options.pixels).eval(), TextTower(model).eval()
    config = model.config
    longest = options.text_length or config.context_length
    shapes = {(1, longest), (4, longest)}
    if options.text_length is None:
        shapes.add((4, max(1, longest // 2)))
    largest = {"image": 0.0, "text": 0.0}
    for batch, length in sorted(shapes):
        image, tokens = example_inputs(config, batch, length, options.pixels)
        for index, (tower, name, value) in enumerate(
            (("image", "image", image), ("text", "tokens", tokens))
        ):
            expected = reference[index](value)
            expected = expected if isinstance(expected, Tensor) else expected[0]
            ours = sessions[index].run(None, {name: value.numpy()})[0]
            difference = np.abs(ours - expected.float().numpy()).max()
            # A NaN anywhere is as far off as can be.
            difference = float(difference) if np.isfinite(difference) else float("inf")
            largest[tower] = max(largest[tower], difference)
    return largest


def _checked(model: CLIP, folder: Path, options: OnnxOptions) -> dict[str, float] | None:
    """The differences, which are within the tolerance; ValueError where they are not."""
    if importlib.util.find_spec("onnxruntime") is None:
        logger.warning("onnxruntime is not installed: the graphs were not compared with PyTorch")
        return None
    differences = differences_to_torch(model.eval(), folder, options)
    for tower, difference in differences.items():
        if not difference <= TOLERANCES[options.dtype]:
            remedy = "; export it in fp32" if options.dtype != "fp32" else ""
            raise ValueError(
                f"the {tower} tower differs from PyTorch by {difference:.2g} in {options.dtype},"
                f" and {TOLERANCES[options.dtype]:g} is the limit{remedy}"
            )
    return differences
