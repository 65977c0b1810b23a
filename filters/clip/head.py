"""A small head on stored embeddings: aesthetic, safety or watermark scores from a file of
weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters.base import FREE, Batch, Columns, Filter
from filters.clip.embed import stored_embeddings
from manifests import disk

Floats = NDArray[np.float32]
SUFFIXES = (".pth", ".pt", ".safetensors", ".npz")


@dataclass(frozen=True, slots=True)
class Layers:
    """Fully connected layers: output = input @ weight.T + bias. mean and variance of the input
    are None where the file has none."""

    weights: tuple[Floats, ...]  # (out, in) each
    biases: tuple[Floats, ...]  # (out,) each
    mean: Floats | None = None
    variance: Floats | None = None


@dataclass(kw_only=True)
class Head(Filter):
    """head: a score of each row, from its stored embedding.

    weights: a .pth, .safetensors or .npz file with a weight and a bias per fully connected layer,
    applied in the natural order of their names; shapes are read from the file. Tensors `mean` and
    `variance` normalise the input first, as Keras does. on: an `embed` instance. tower: whose
    embedding. hidden: the activation between layers (LAION's aesthetic heads have none), last: the
    one after the last layer. output: the number of the output that is the score, where a head has
    more than one; softmax is over all of them.
    """

    name: ClassVar[str] = "head"
    needs: ClassVar[frozenset[str]] = frozenset()
    adds: ClassVar[dict[str, pa.DataType]] = {"head": pa.float32()}
    meanings: ClassVar[dict[str, str]] = {"head": "score of the filter's head on an embedding"}
    weights: str = field(metadata=FREE)  # identity() hashes the file
    on: str = field(metadata=FREE)  # the id of the set that is read counts
    tower: Literal["image", "text"] = "image"
    hidden: Literal["none", "relu", "gelu", "tanh"] = "none"
    last: Literal["none", "sigmoid", "softmax"] = "none"
    output: int | None = None
    layers: Any = field(default=None, init=False, repr=False, compare=False)  # Layers

    def __post_init__(self) -> None:
        self.weights = os.path.abspath(self.weights)  # a worker may start in another folder
        if not self.weights.endswith(SUFFIXES):
            raise ValueError(
                f"filter head: weights is {self.weights!r}; it must end with {', '.join(SUFFIXES)}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

    def identity(self) -> str:
        if not Path(self.weights).is_file():
            raise ValueError(f"filter head: there is no file {self.weights}")
        return disk.file_sha256(self.weights)

    def setup(self) -> None:
        self.layers = read_layers(Path(self.weights))
        outputs = len(self.layers.biases[-1])
        if self.output is None and outputs != 1:
            raise ValueError(
                f"filter head: {self.weights} has {outputs} outputs; "
                f"say which is the score with output: 0 to {outputs - 1}"
            )
        if self.output is not None and not 0 <= self.output < outputs:
            raise ValueError(
                f"filter head: output is {self.output}; "
                f"{self.weights} has outputs 0 to {outputs - 1}"
            )

    def score(self, batch: Batch) -> Columns:
        assert self.layers is not None
        rows_BE, there = stored_embeddings(batch.columns, self.on, self.tower)
        width = self.layers.weights[0].shape[1]
        if rows_BE.shape[1] != width:
            raise ValueError(
                f"filter head: {self.weights} reads embeddings of width {width}, "
                f"and those of {self.on} have width {rows_BE.shape[1]}"
            )
        outputs_BO = apply(self.layers, rows_BE, self.hidden, self.last)
        scores_B = outputs_BO[:, self.output or 0]
        return {"head": np.where(there, scores_B, np.float32(np.nan))}


def apply(layers: Layers, rows_BE: Floats, hidden: str = "none", last: str = "none") -> Floats:
    """(B, outputs) fp32 of embeddings (B, E)."""
    values = rows_BE
    if layers.mean is not None and layers.variance is not None:
        deviation = np.sqrt(np.maximum(layers.variance, np.float32(1e-14)))
        values = np.asarray((values - layers.mean) / deviation, np.float32)
    depth = len(layers.weights)
    for number, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
        values = values @ weight.T + bias
        values = activation(values, hidden if number < depth - 1 else last)
    return values


def activation(values: Floats, kind: str) -> Floats:
    """none, relu, gelu (exact), tanh, sigmoid, or softmax over the last axis."""
    if kind == "relu":
        return np.maximum(values, 0)
    if kind == "tanh":
        return np.tanh(values)
    if kind == "gelu":
        from scipy.special import erf

        return np.asarray(values * 0.5 * (1 + erf(values / np.sqrt(2))), np.float32)
    if kind == "sigmoid":
        from scipy.special import expit

        return np.asarray(expit(values), np.float32)
    if kind == "softmax":
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)
    assert kind == "none"
    return values


def read_layers(path: Path) -> Layers:
    """Layers of a file of weights. ValueError for tensors that are not those of fully connected
    layers, or whose shapes do not follow each other."""
    tensors = _read_tensors(path)
    weights, biases, stages = {}, {}, {}
    for name, tensor in tensors.items():
        prefix, _, kind = name.rpartition(".")
        if kind == "weight" and tensor.ndim == 2:
            weights[prefix] = tensor
        elif kind == "bias" and tensor.ndim == 1:
            biases[prefix] = tensor
        elif kind in ("mean", "variance") and tensor.ndim == 1:
            stages[kind] = tensor
        elif not (kind == "count" and tensor.size == 1):  # of Keras's normalisation
            raise ValueError(
                f"{path}: {name} has the shape {tensor.shape}; a head has fully connected layers "
                "(weight of 2 axes, bias of 1), and mean and variance of its input"
            )
    order = sorted(weights, key=_natural_key)
    if not order or set(biases) - set(weights):
        raise ValueError(f"{path}: there is no weight of 2 axes for {sorted(biases) or 'a layer'}")
    if len(stages) == 1:
        raise ValueError(f"{path}: there is {next(iter(stages))} without its counterpart")
    shapes = [weights[name].shape for name in order]
    widths = [shapes[0][1], *[shape[0] for shape in shapes]]
    for name, (_, inputs), width in zip(order, shapes, widths, strict=False):
        bias = biases.get(name)
        if inputs != width or (bias is not None and bias.shape != weights[name].shape[:1]):
            raise ValueError(f"{path}: layers do not follow each other: shapes {shapes}")
    for name, tensor in stages.items():
        if tensor.shape != (widths[0],):
            raise ValueError(f"{path}: {name} has {tensor.size} values for {widths[0]} inputs")
    return Layers(
        weights=tuple(weights[name] for name in order),
        biases=tuple(biases.get(name, np.zeros(len(weights[name]), np.float32)) for name in order),
        mean=stages.get("mean"),
        variance=stages.get("variance"),
    )


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts layers.10 behind layers.9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _read_tensors(path: Path) -> dict[str, Floats]:
    """Named tensors in fp32. A pickle is read without executing what it contains."""
    tensors: Mapping[str, Any]
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name], np.float32) for name in file.files}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        tensors = load_file(path)
    else:
        import torch

        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # UnpicklingError, RuntimeError of zip files, EOFError
            raise ValueError(f"{path} is not a file of weights: {error}") from error
        nested = tensors.get("state_dict") if isinstance(tensors, Mapping) else None
        tensors = nested if isinstance(nested, Mapping) else tensors
    if not isinstance(tensors, Mapping):
        raise ValueError(f"{path}: it holds no dictionary of tensors")
    return {str(name): np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
