"""The two towers of a model as ONNX graphs in a folder."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clipmill.manifests import disk
from clipmill.manifests.installation import install_command
from clipmill.manifests.preprocess import CHANNELS, Preprocess
from clipmill.train.formats.hf import CLIP_VOCABULARY
from clipmill.train.formats.model_files import weights_sha256
from clipmill.train.model.architecture import (
    MODELS,
    OPEN_CLIP,
    ModelConfig,
)
from clipmill.train.model.clip import CLIP, l2_normalise
from clipmill.train.model.open_clip_model import AnyModel

# --------------------------------------------------------------------------------------------------
# The two towers of a model as ONNX graphs.
#
# image.onnx   images -> unit vectors text.onnx    token numbers -> unit vectors, the factor on
# their products, and a bias if there is one
#
# The exporter is torch.onnx on torch.export: it follows the model's own code with the batch as a
# symbol and fails where an operation fixes it. The older one records one run for one batch.


IMAGE_FILE, TEXT_FILE = "image.onnx", "text.onnx"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
PIXELS = ("normalised", "uint8")
OPSET = 20  # the first with Gelu
# A protobuf holds less than 2 GiB; larger weights lie in a file beside it.
MOST_BYTES_INSIDE = 3 << 29
PACKAGES = ("onnx", "onnxscript")
EXAMPLE_BATCH = 3  # with another number than the lengths, so that no symbol is taken for another


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """What the graphs compute with and take. ValueError for an unknown value.

    dtype: of weights and arithmetic; the embeddings are fp32 in any case. text_length: tokens of
    every text; None takes any number up to the context. pixels: `normalised` takes fp32 images
    (B, C, H, W) as open_clip's transform makes them, `uint8` decoded RGB (B, H, W, 3).
    """

    dtype: str = "fp32"
    text_length: int | None = None
    pixels: str = "normalised"

    def __post_init__(self) -> None:
        for name, value, known in (("dtype", self.dtype, DTYPES), ("pixels", self.pixels, PIXELS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; ONNX is written with {' or '.join(known)}")

    def check(self, config: ModelConfig) -> None:
        """ValueError for a text length that the model does not have."""
        length = self.text_length
        if length is not None and not 1 <= length <= config.context_length:
            raise ValueError(
                f"text length is {length}; the model takes 1 to {config.context_length} tokens"
            )


# --- the towers -----------------------------------------------------------------------------------


class ImageTower(nn.Module):
    """Images as `pixels` says to unit vectors BE in fp32."""

    mean_C: Tensor
    std_C: Tensor

    def __init__(self, model: CLIP, pixels: str) -> None:
        super().__init__()
        self.visual, self.pixels = model.visual, pixels
        config = model.config
        # Buffers: normalise() caches its tensors, and those of an export cannot be used after it.
        for name, values in (
            ("mean_C", config.image_mean),
            ("std_C", config.image_std),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) fp32, or (B, H, W, 3) uint8, to BE."""
        if self.pixels == "uint8":
            # As train/transforms.py does.
            image = ((image.float() - self.mean_C * 255) / (self.std_C * 255)).permute(0, 3, 1, 2)
        return l2_normalise(self.visual(image.to(self.visual.proj.dtype)))


class TextTower(nn.Module):
    """Token numbers BT to unit vectors BE in fp32, the logit scale and, if there is one, the bias.

    The scale is the factor itself, not its logarithm.
    """

    scale: Tensor
    bias: Tensor | None

    def __init__(self, model: CLIP) -> None:
        super().__init__()
        self.text = model.text
        scale, bias = model.logit_scale.detach().float().exp(), model.logit_bias
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """(B, T) int64 to (BE, scale) or (BE, scale, bias)."""
        text_BE = l2_normalise(self.text(tokens))
        scalars = [self.scale.clone()]
        if self.bias is not None:
            scalars.append(self.bias.clone())
        return (text_BE, *scalars)


def towers(model: CLIP, options: OnnxOptions) -> tuple[ImageTower, TextTower]:
    """Both towers, ready to export, in the type of `options`."""
    if options.dtype != "fp32":
        scale, bias = model.logit_scale.detach(), model.logit_bias
        model = copy.deepcopy(model).to(DTYPES[options.dtype])
        model.logit_scale.data = scale  # its exponential in fp16 would be off by 5e-4
        if bias is not None and model.logit_bias is not None:
            model.logit_bias.data = bias.detach()
    return ImageTower(model, options.pixels).eval(), TextTower(model).eval()


# --- graphs ---------------------------------------------------------------------------------------


def missing_packages(*more: str) -> list[str]:
    """The packages of the exporter, and `more`, that are not installed."""
    return [name for name in (*PACKAGES, *more) if importlib.util.find_spec(name) is None]


def require_packages() -> None:
    """ValueError that names the extra where a package of the exporter is missing."""
    if missing := missing_packages():
        raise ValueError(
            f"ONNX is written with {' and '.join(missing)}, which this Python does not have:"
            f" {install_command('onnx')}"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter, which are about its own insides."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _program(tower: nn.Module, example: Tensor, name: str, dims: dict[int, Any]) -> Any:
    """A tower as an ONNX program. `dims` are the symbols of its input's axes."""
    outputs = ["image_embedding"]
    if isinstance(tower, TextTower):
        outputs = ["text_embedding", "logit_scale"]
        outputs += [] if tower.bias is None else ["logit_bias"]
    with _quiet(), torch.no_grad():
        exported = torch.export.export(tower, (example,), dynamic_shapes=({**dims},), strict=False)
        program = torch.onnx.export(
            exported,
            (),
            input_names=[name],
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    _tidy(program.model.graph, {axis: dim.__name__ for axis, dim in dims.items()})
    return program


def _tidy(graph: Any, names: Mapping[int, str]) -> None:
    """Name the free axes, and leave out what the exporter says of its own source lines: the bytes
    of a file depend on the model alone.
    """
    import onnx_ir

    (image_or_tokens,) = graph.inputs
    renamed = {str(image_or_tokens.shape[axis]): name for axis, name in names.items()}
    kept = {*graph.inputs, *graph.outputs}
    for value in kept:
        if value.shape is not None:
            dims = [renamed.get(str(dim), dim) for dim in value.shape]
            value.shape = onnx_ir.Shape(dims)
        value.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            if value not in kept and value.shape is not None and not value.shape.is_static():
                value.shape = None


def _save(program: Any, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a graph, check it by ONNX's own rules, and sync it."""
    import onnx

    program.model.metadata_props.clear()
    program.model.metadata_props.update(metadata)
    size = 0
    for value in program.model.graph.initializers.values():
        size += value.const_value.nbytes
    with _quiet():
        program.save(str(path), external_data=size > MOST_BYTES_INSIDE)
        onnx.checker.check_model(str(path))


def write_graphs(
    model: CLIP, folder: Path, options: OnnxOptions, metadata: Mapping[str, str]
) -> None:
    """image.onnx and text.onnx in a folder that is there."""
    config = model.config
    image_tower, text_tower = towers(model, options)
    batch = torch.export.Dim("batch")
    height, width = config.height_width
    if options.pixels == "uint8":
        image = torch.zeros(EXAMPLE_BATCH, height, width, 3, dtype=torch.uint8)
    else:
        image = torch.zeros(EXAMPLE_BATCH, CHANNELS, height, width)
    _save(_program(image_tower, image, "image", {0: batch}), folder / IMAGE_FILE, metadata)
    dims = {0: batch}
    length = options.text_length or config.context_length
    if options.text_length is None:
        dims[1] = torch.export.Dim("text_length", min=1, max=config.context_length)
    tokens = torch.zeros(EXAMPLE_BATCH, length, dtype=torch.long)
    _save(_program(text_tower, tokens, "tokens", dims), folder / TEXT_FILE, metadata)


# --------------------------------------------------------------------------------------------------
# A folder with the two towers of a model as ONNX, written whole or not at all.
#
# image.onnx, text.onnx   the graphs; each has the description in its metadata
# *.onnx.data             the weights of a graph above 1.5 GiB
# onnx_config.json        model, preprocessing, tokenizer, identity, and the sha256 of the files
#
# The graphs are run by onnxruntime and compared with PyTorch before the folder gets its name.


CONFIG_FILE = "onnx_config.json"
FORMAT = 1
# Of a component of a unit vector, to PyTorch in fp32.
TOLERANCES = {"fp32": 1e-5, "fp16": 1e-3}
logger = logging.getLogger(__name__)


# --- what is written beside them ------------------------------------------------------------------


def description(model: CLIP, source: str, options: OnnxOptions) -> dict[str, object]:
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
            "channels": CHANNELS,
            "resize": config.line(config.height_width),
            "preprocess": disk.to_plain(config.preprocess),
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
    plain = dataclasses.replace(
        config,
        logit_bias=False,
        drop_patch_rate=0.0,
        **dataclasses.asdict(Preprocess()),
    )
    return next((name for name, known in MODELS.items() if known == plain), None)


# --- the folder -----------------------------------------------------------------------------------


def save_onnx(
    model: AnyModel, folder: str, options: OnnxOptions, source: str = ""
) -> dict[str, float] | None:
    """Write a new folder whole or not at all; the largest differences of its graphs to PyTorch.

    None where onnxruntime is missing, which runs them. ValueError for a folder that is not empty,
    weights that are not finite, and a model that the type cannot hold.
    """
    require_packages()
    if not isinstance(model, CLIP):
        raise ValueError(
            f"{model.config.name} is computed by open_clip's own module, and only the ViTs of this "
            "trainer become ONNX graphs here; export that module by torch.onnx"
        )
    options.check(model.config)
    if folder.endswith(".onnx"):
        raise ValueError(
            f"{folder} would be a folder with {IMAGE_FILE} and {TEXT_FILE};"
            " give it a name that does not end in .onnx"
        )
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} holds NaN or infinity; the model is broken")
    plain = description(model, source, options)
    metadata = {}
    for key, value in plain.items():
        metadata[f"clipmill.{key}"] = value if isinstance(value, str) else json.dumps(value)
    with disk.new_folder(folder) as staging:
        write_graphs(model, staging, options, metadata)
        differences = _checked(model, staging, options)
        files = {}
        for path in sorted(staging.iterdir()):
            files[path.name] = {"bytes": path.stat().st_size, "sha256": disk.file_sha256(path)}
        disk.write_json(str(staging / CONFIG_FILE), {**plain, "files": files})
    return differences


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
        shape = (batch, CHANNELS, height, width)
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
