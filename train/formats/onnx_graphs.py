"""The two towers of a model as ONNX graphs.

image.onnx   images -> unit vectors
text.onnx    token numbers -> unit vectors, the factor on their products, and a bias if there is one

The exporter is torch.onnx on torch.export: it follows the model's own code with the batch as a
symbol and fails where an operation fixes it. The older one records one run for one batch.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train.model import CLIP, ModelConfig, l2_normalise
from train.pixels import augment

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
    luminance_C: Tensor

    def __init__(self, model: CLIP, pixels: str) -> None:
        super().__init__()
        self.visual, self.pixels = model.visual, pixels
        config = model.config
        # Buffers: normalise() caches its tensors, and those of an export cannot be used after it.
        for name, values in (
            ("mean_C", config.image_mean),
            ("std_C", config.image_std),
            ("luminance_C", augment.LUMINANCE),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) fp32, or (B, H, W, 3) uint8, to BE."""
        if self.pixels == "uint8":
            image = self._normalise(image.float())
        return l2_normalise(self.visual(image.to(self.visual.proj.dtype)))

    def _normalise(self, pixels_BHWC: Tensor) -> Tensor:
        """As train/pixels/augment.py does."""
        mean_C, std_C = self.mean_C, self.std_C
        if len(mean_C) == 1:
            pixels_BHWC = (pixels_BHWC * self.luminance_C).sum(dim=-1, keepdim=True)
        return ((pixels_BHWC - mean_C * 255) / (std_C * 255)).permute(0, 3, 1, 2)


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
            " pip install -e '.[onnx]'"
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
        image = torch.zeros(EXAMPLE_BATCH, config.num_channels, height, width)
    _save(_program(image_tower, image, "image", {0: batch}), folder / IMAGE_FILE, metadata)
    dims = {0: batch}
    length = options.text_length or config.context_length
    if options.text_length is None:
        dims[1] = torch.export.Dim("text_length", min=1, max=config.context_length)
    tokens = torch.zeros(EXAMPLE_BATCH, length, dtype=torch.long)
    _save(_program(text_tower, tokens, "tokens", dims), folder / TEXT_FILE, metadata)
