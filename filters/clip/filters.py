"""Filters of CLIP embeddings: embed, clip_score, clip_loss and head."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import FILE, FREE, Batch, Columns, Filter, PoolFilter, described
from clipmill.filters.clip.model import ClipFilter, Embeddings, model_config
from clipmill.filters.columns import unit_vectors
from clipmill.manifests import disk
from clipmill.manifests.arrays import NUMPY_ERRORS, Float32Array, Hashes, Integers, Mask
from clipmill.manifests.hashes import text_hashes

# --------------------------------------------------------------------------------------------------
# Embeddings of images and captions under a CLIP, stored once for everything that reads them.


@dataclass(kw_only=True)
class Embed(ClipFilter):
    """embed_image, embed_text: embeddings of length 1, fixed-size fp16 lists of the model's width.

    model, pretrained, precision: see ClipFilter. towers: those whose embeddings are stored. A row
    without a caption has no embed_text, a row without a readable image has neither if the image is
    asked for.
    """

    name = "embed"
    needs = frozenset({"image", "caption"})
    adds, meanings = described(
        embed_image=(pa.list_(pa.float16()), "embedding of the image, of length 1"),
        embed_text=(pa.list_(pa.float16()), "embedding of the caption, of length 1"),
    )
    towers: tuple[Literal["image", "text"], ...] = ("image", "text")

    def check_model_options(self) -> None:
        super().check_model_options()
        if not self.towers or len(set(self.towers)) < len(self.towers):
            raise ValueError(
                f"filter embed: towers is {list(self.towers)}; "
                "name image, text, or each of them once"
            )
        self.towers = tuple(sorted(self.towers))  # the order makes no other columns
        # A row that lacks its caption keeps the embedding of its image.
        vars(self)["needs"] = frozenset({"image"} if "image" in self.towers else {"caption"})

    def columns(self) -> dict[str, pa.DataType]:
        """Lists of any length where the model's configuration is not there yet: a recipe is checked
        before its scorer is trained, and on machines without open_clip, which may crawl and fetch.
        """
        try:
            width = int(model_config(self.name, self.model)["embed_dim"])
        except ValueError:
            width = -1
        return {f"embed_{tower}": pa.list_(pa.float16(), width) for tower in self.towers}

    def identity(self) -> str:
        """Weights, and open_clip's configuration: activation, sizes, context length."""
        config = disk.content_hash(model_config(self.name, self.model), 64)
        return f"{super().identity()} {config}"

    def score(self, batch: Batch) -> Columns:
        assert self.loaded is not None
        columns: Columns = {}
        types = self.columns()
        if "image" in self.towers:
            assert batch.images is not None
            image_BE = self.loaded.embed_images(batch.images, self.batch_size)
            columns["embed_image"] = fixed_lists(image_BE, types["embed_image"])
        if "text" in self.towers:
            text_BE = self.loaded.embed_texts(batch.captions, self.batch_size)
            lacking = None
            if "image" in self.towers and "caption" in batch.rows.column_names:
                lacking = pc.is_null(batch.rows["caption"]).to_numpy()
            columns["embed_text"] = fixed_lists(text_BE, types["embed_text"], lacking)
        return columns


def fixed_lists(rows_BE: Embeddings, kind: pa.DataType, lacking: Mask | None = None) -> pa.Array:
    """An Arrow array of `kind`, a fixed-size list of fp16; NULL where `lacking` is true."""
    values = pa.array(rows_BE.astype(np.float16).reshape(-1), pa.float16())
    mask = None if lacking is None else pa.array(lacking)
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)


def stored_embeddings(
    columns: pa.Table | Mapping[str, object], instance: str, tower: str
) -> tuple[Embeddings, Mask]:
    """(rows, width) fp32 of a stored column of an `embed` instance, of length 1 again, and
    which rows have one. Rows without one are zero.

    ValueError if the instance has no such column.
    """
    return unit_vectors(_stored_column(columns, instance, tower))


def _stored_column(columns: pa.Table | Mapping[str, object], instance: str, tower: str) -> Any:
    name = f"{instance}_{tower}"
    if name not in (columns.column_names if isinstance(columns, pa.Table) else columns):
        raise ValueError(
            f"{instance} has no column {name}; it must be an embed filter with towers: [{tower}]"
        )
    return columns[name]


# --------------------------------------------------------------------------------------------------
# The cosine of a pair less what its image and its caption score with other pairs (s-CLIPLoss).


BLOCK = 4  # batches of rows that are loaded together: 268 MB of fp16 at a width of 512
STRIPE = 1 << 24  # similarities computed at a time, 64 MB


@dataclass(kw_only=True)
class ClipLoss(PoolFilter):
    """clip_loss: cosine - temperature / 2 * (log-sum-exp of the image's similarities with the
    captions of a batch + that of the caption's similarities with its images), where a similarity is
    a cosine / temperature. The mean over `rounds` random batches. Larger is better; a caption that
    fits every image scores low.

    Wang et al. 2024, "CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive
    Learning", with their batch of 32,768 and temperature of 0.01. on: an `embed` instance with both
    towers. Batches are drawn by a hash of uid and seed. A pool without a batch of rows is one
    batch. Rows without both embeddings have none.
    """

    name = "clip_loss"
    adds, meanings = described(
        clip_loss=(pa.float32(), "cosine less the log-sum-exp over random batches, at most 0"),
    )
    on: str = field(metadata=FREE)  # the id of the set that is read counts
    batch: int = field(default=32768, metadata={"least": 2})
    rounds: int = field(default=5, metadata={"least": 1})
    temperature: float = field(default=0.01, metadata={"above": 0})
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return pa.table({"rows": pa.array([len(self._there(rows))], pa.int64())})

    def merge(self, summaries: pa.Table) -> pa.Table:
        return pa.table({"rows": pa.array([pc.sum(summaries["rows"]).as_py()], pa.int64())})

    def combine(self, summaries: pa.Table) -> pa.Table:
        """The number of blocks of the pool."""
        total = int(np.sum(summaries["rows"].to_numpy()))
        return pa.table({"blocks": [max(1, math.ceil(total / (BLOCK * self.batch)))]})

    def route(self, rows: pa.Table, state: pa.Table, partitions: int) -> tuple[Integers, Integers]:
        row_numbers = self._there(rows)
        uids = rows["uid"].take(row_numbers).to_pylist()
        return row_numbers, self._blocks(uids, state) % partitions

    def judge(self, rows: pa.Table, state: pa.Table) -> Columns:
        image_BE, _ = stored_embeddings(rows, self.on, "image")
        text_BE, _ = stored_embeddings(rows, self.on, "text")
        uids = rows["uid"].to_pylist()
        blocks = self._blocks(uids, state)
        scores = np.zeros(len(uids), np.float32)
        for block in np.unique(blocks):
            members = np.flatnonzero(blocks == block)
            rounds = self._rounds(len(members))
            for numbers in self.batches([uids[row] for row in members]):
                chosen = members[numbers]
                losses = pair_losses(
                    image_BE[chosen], text_BE[chosen], self.temperature, self.device
                )
                scores[chosen] += losses / rounds
        return {"clip_loss": scores}

    def batches(self, uids: list[str]) -> list[Integers]:
        """Row numbers of each batch of a block: every round cuts the rows in a random order of its
        own into equal parts of about `batch`."""
        count = max(1, round(len(uids) / self.batch))
        parts: list[Integers] = []
        for number in range(self._rounds(len(uids))):
            order = np.argsort(_hashes(uids, self.seed, number + 1), kind="stable")
            parts.extend(np.array_split(order.astype(np.int64), count))
        return parts

    def _rounds(self, rows: int) -> int:
        """One if all rows are in the same batch anyway."""
        return self.rounds if round(rows / self.batch) > 1 else 1

    def _blocks(self, uids: Iterable[str], state: pa.Table) -> Integers:
        count = np.uint64(state["blocks"][0].as_py())
        return (_hashes(uids, self.seed, 0) % count).astype(np.int64)

    def _there(self, rows: pa.Table) -> Integers:
        """Row numbers of the rows with both embeddings."""
        columns = [_stored_column(rows, self.on, tower) for tower in ("image", "text")]
        there = pc.and_(*[column.is_valid() for column in columns])
        return np.flatnonzero(there).astype(np.int64)


def _hashes(uids: Iterable[str], seed: int, number: int) -> Hashes:
    """(rows,) independent for each number of a round."""
    return text_hashes(f"{uid}/{seed}/{number}" for uid in uids)


def pair_losses(
    image_BE: Float32Array, text_BE: Float32Array, temperature: float, device: str = "cpu"
) -> Float32Array:
    """(B,) cosine less half the temperature times both log-sum-exps over the batch.

    Similarities are computed in stripes of STRIPE values, in fp32 without TF32. The text side is
    accumulated from stripe to stripe with a running maximum.
    """
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    place = torch.device("cuda" if on_gpu else "cpu")
    images, texts = (torch.from_numpy(array).to(place) for array in (image_BE, text_BE))
    rows = len(images)
    stripe = max(1, STRIPE // max(1, rows))
    of_images = torch.empty(rows, device=place)
    cosines = (images * texts).sum(-1)
    of_texts = torch.full((rows,), -torch.inf, device=place)
    for start in range(0, rows, stripe):
        similarities = images[start : start + stripe] @ texts.T / temperature
        of_images[start : start + stripe] = torch.logsumexp(similarities, dim=1)
        of_texts = torch.logaddexp(of_texts, torch.logsumexp(similarities, dim=0))
    losses = cosines - temperature / 2 * (of_images + of_texts)
    scores: Float32Array = losses.cpu().numpy()
    return scores


# --------------------------------------------------------------------------------------------------
# How well a caption fits its image: the cosine of both under a CLIP that open_clip can load.


@dataclass(kw_only=True)
class ClipScore(ClipFilter):
    """clip_score: cosine of image and text embedding, in [-1, 1].

    model, pretrained: see ClipFilter. precision auto is resolved before the id of the columns is
    made, so bf16 and fp32 scores never share an id. Where a pool has scores of either kind, auto
    takes them as they are (fp32 before bf16). Images go through the model's own validation
    transform, captions through its own tokenizer and context length.

    on: an `embed` instance with both towers, instead of a model: the cosine of its stored columns.
    Embeddings are stored in fp16, which rounds a component by at most 2**-11 of itself, so that
    the cosine is within 1e-3 of the exact one.
    """

    name = "clip_score"
    needs = frozenset({"image", "caption"})
    adds, meanings = described(
        clip_score=(pa.float32(), "cosine of image and caption under the filter's CLIP, -1 to 1"),
    )
    on: str | None = field(default=None, metadata=FREE)  # the id of the set that is read counts

    def check_model_options(self) -> None:
        if self.on is None:
            super().check_model_options()
            return
        if self.model or self.pretrained is not None or self.precision != "auto":
            raise ValueError(
                f"filter clip_score: on: {self.on} reads stored embeddings; leave model, "
                "pretrained and precision out"
            )
        vars(self)["needs"] = frozenset[str]()  # no image is decoded

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.on is None else (self.on,)

    def identity(self) -> str:
        return super().identity() if self.on is None else "stored embeddings"

    def score(self, batch: Batch) -> Columns:
        if self.on is not None:
            image_BE, image_there = stored_embeddings(batch.columns, self.on, "image")
            text_BE, text_there = stored_embeddings(batch.columns, self.on, "text")
            there = image_there & text_there
            return {"clip_score": np.where(there, cosine(image_BE, text_BE), np.nan)}
        assert batch.images is not None
        assert self.loaded is not None
        if not batch.captions:
            return {"clip_score": np.zeros(0, np.float32)}
        image_BE = self.loaded.embed_images(batch.images, self.batch_size)
        text_BE = self.loaded.embed_texts(batch.captions, self.batch_size)
        return {"clip_score": cosine(image_BE, text_BE)}


def cosine(image_BE: Float32Array, text_BE: Float32Array) -> Float32Array:
    """(B,) of embeddings of length 1."""
    products_B: Float32Array = np.einsum("be,be->b", image_BE, text_BE)
    return products_B


# --------------------------------------------------------------------------------------------------
# A small head on stored embeddings: aesthetic, safety or watermark scores from a file of weights.


SUFFIXES = (".pth", ".pt", ".safetensors", ".npz")


@dataclass(frozen=True, slots=True)
class Layers:
    """Fully connected layers: output = input @ weight.T + bias. mean and variance of the input
    are None where the file has none."""

    weights: tuple[Float32Array, ...]  # (out, in) each
    biases: tuple[Float32Array, ...]  # (out,) each
    mean: Float32Array | None = None
    variance: Float32Array | None = None


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

    name = "head"
    needs = frozenset()
    adds, meanings = described(
        head=(pa.float32(), "score of the filter's head on an embedding"),
    )
    weights: str = field(metadata=FILE)
    on: str = field(metadata=FREE)  # the id of the set that is read counts
    tower: Literal["image", "text"] = "image"
    hidden: Literal["none", "relu", "gelu", "tanh"] = "none"
    last: Literal["none", "sigmoid", "softmax"] = "none"
    output: int | None = None
    layers: Any = field(default=None, init=False, repr=False, compare=False)  # Layers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weights.endswith(SUFFIXES):
            raise ValueError(
                f"filter head: weights is {self.weights!r}; it must end with {', '.join(SUFFIXES)}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

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


def apply(
    layers: Layers, rows_BE: Float32Array, hidden: str = "none", last: str = "none"
) -> Float32Array:
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


def activation(values: Float32Array, kind: str) -> Float32Array:
    """none, relu, gelu (exact), tanh, sigmoid, or softmax over the last axis."""
    from scipy import special

    functions: dict[str, Callable[[Float32Array], object]] = {
        "none": np.asarray,
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: x * 0.5 * (1 + special.erf(x / np.sqrt(2))),
        "tanh": np.tanh,
        "sigmoid": special.expit,
        "softmax": lambda x: special.softmax(x, axis=-1),
    }
    return np.asarray(functions[kind](values), np.float32)


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


def _read_tensors(path: Path) -> dict[str, Float32Array]:
    """Named tensors in fp32. A pickle is read without executing what it contains."""
    tensors: Mapping[str, object]
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: np.asarray(file[name], np.float32) for name in file.files}
        except NUMPY_ERRORS as error:
            raise ValueError(f"{path} is not a file of weights: {error}") from None
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
