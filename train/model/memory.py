"""Parameters, FLOPs and memory of a training step by formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from clipmill.manifests.preprocess import CHANNELS
from clipmill.train.model.architecture import (
    ModelConfig,
    OpenClipConfig,
    group_count,
    trained_blocks,
)

if TYPE_CHECKING:
    from torch import Tensor

    from clipmill.train.model.open_clip_model import Counts

# --------------------------------------------------------------------------------------------------
# Floating-point operations of training.
#
# Matrix products count, 2mkn for [m, k] x [k, n]: patches, queries, keys, values, attention's two
# (the whole square, causal or not, as in published profiles), its output, the MLP and the
# projections. Norms, activations and the softmax, the loss and the optimizer do not count. Nor
# does what is computed a second time (checkpointing, the second pass of micro-batches): these are
# the operations that the result needs, so recomputing cannot raise an MFU. Backward is twice
# forward, but for the patches: an image needs no gradient.


Captions = Literal["padded", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Operations of forward and backward: of an image, and of a caption by its tokens."""

    image: float
    caption: float  # of any length
    token: float  # for each token of a caption
    square: float  # for each pair of tokens of a caption

    def sample(self, tokens: int) -> float:
        """One image and a caption of `tokens` tokens."""
        return self.image + self.caption + tokens * self.token + tokens * tokens * self.square

    def batch(self, length_B: Tensor, captions: Captions = "padded") -> float:
        """A batch of captions of these lengths.

        A padded caption costs as much as the longest of the batch, a packed one what its own length
        costs.
        """
        if captions == "padded":
            return len(length_B) * self.sample(int(length_B.max()))
        length_B = length_B.double()
        fixed = len(length_B) * (self.image + self.caption)
        tokens, pairs = float(length_B.sum()), float(length_B.square().sum())
        return fixed + tokens * self.token + pairs * self.square


def training_flops(
    config: ModelConfig | OpenClipConfig,
    *,
    whole: bool = False,
    trained: tuple[int | None, int | None] = (None, None),
) -> FlopCount:
    """Operations of training a model as it is computed here.

    The last block of a tower computes the pooled token alone, and patches that are left out are not
    computed. With `whole` all blocks compute all tokens, as in other trainers. trained: the last
    groups of layers of the image and caption towers that are trained; None: all. Of
    the others only forward is computed. The towers of open_clip's own module are counted by torch,
    and compute the whole context of every caption.
    """
    if isinstance(config, OpenClipConfig):
        counts = _counts_of(config, trained)
        return FlopCount(image=counts.image_flops, caption=counts.text_flops, token=0, square=0)
    kept = config.patches if whole else max(1, int(config.patches * (1 - config.drop_patch_rate)))
    width = config.vision_width
    patches = 2.0 * config.patches * CHANNELS * config.patch_size**2 * width
    layers = config.vision_layers
    fixed, token, square = _trained_tower(width, config.vision_mlp, layers, not whole, trained[0])
    tokens = kept + 1  # the class token
    image = fixed + tokens * token + tokens * tokens * square
    image += _passes(trained[0]) * 2.0 * width * config.embed_dim
    is_whole = trained[0] is None or trained[0] >= group_count(layers)
    width, layers = config.text_width, config.text_layers
    fixed, token, square = _trained_tower(width, config.text_mlp, layers, not whole, trained[1])
    return FlopCount(
        image=image + (2 if is_whole else 1) * patches,
        caption=fixed + _passes(trained[1]) * 2.0 * width * config.embed_dim,
        token=token,
        square=square,
    )


def _passes(groups: int | None) -> int:
    """How often the product of a tower's projection is computed: forward, and for the gradients of
    its weights and of its input.
    """
    return 3 if groups is None else 1 + min(groups, 2)


def _trained_tower(
    width: int, mlp: int, layers: int, pruned: bool, groups: int | None
) -> tuple[float, float, float]:
    """Forward through all blocks, and backward, twice as much, through those that are trained."""
    forward = _tower(width, mlp, layers, pruned)
    blocks = trained_blocks(layers, groups)
    again = _tower(width, mlp, blocks, pruned) if blocks else (0.0, 0.0, 0.0)
    fixed, token, square = (one + 2 * other for one, other in zip(forward, again, strict=True))
    return fixed, token, square


def _tower(width: int, mlp: int, layers: int, pruned: bool) -> tuple[float, float, float]:
    """Forward through the blocks: of a sample, of each of its tokens, of each pair of these."""
    token, square = 2.0 * (4 * width * width + 2 * width * mlp), 4.0 * width
    if not pruned:
        return 0.0, layers * token, layers * square
    # The last block: query, output and MLP of the pooled token; of every token the key and value,
    # and its product with the one query.
    pooled = 2.0 * (2 * width * width + 2 * width * mlp)
    other = 4.0 * width * width + square
    return pooled, (layers - 1) * token + other, (layers - 1) * square


# --------------------------------------------------------------------------------------------------
# How many numbers a model has, by its configuration: in blocks, outside them, and in all.


def block_parameters(width: int, mlp: int) -> tuple[int, int]:
    """Numbers of a block: in its matrices and the biases beside their rows, and in the rest."""
    split = 3 * width * (width + 1) + width * width + mlp * (width + 1) + width * mlp
    return split, 6 * width  # two norms, and the biases of both outputs


def parameter_count(config: ModelConfig | OpenClipConfig) -> int:
    """Numbers in a model, scale and bias of the logits included."""
    if isinstance(config, OpenClipConfig):
        return _counts_of(config, (None, None)).parameters
    vision = sum(block_parameters(config.vision_width, config.vision_mlp)) * config.vision_layers
    text = sum(block_parameters(config.text_width, config.text_mlp)) * config.text_layers
    return vision + text + outside_vision(config) + outside_text(config)


def outside_vision(config: ModelConfig) -> int:
    """Numbers of the image tower's embeddings, outer norms and projection."""
    width = config.vision_width
    patch = CHANNELS * config.patch_size**2 * width
    positions = (config.patches + 1) * width
    return patch + width + positions + 4 * width + width * config.embed_dim


def outside_text(config: ModelConfig) -> int:
    """The same of the caption tower, and the scale and bias of the logits."""
    rows = config.vocab_size + config.context_length + 2 + config.embed_dim
    return rows * config.text_width + (2 if config.logit_bias else 1)


# --------------------------------------------------------------------------------------------------
# The memory of a training step by formula: what each part of it holds, in bytes.
#
# The formula counts tensors as this model makes them: the inputs that each operation keeps for
# backward, the 16-bit copies of weights that autocast makes, the blocks that are recomputed. It
# is compared with what torch allocates in `tests/train/model/test_memory.py`. A step of micro-
# batches holds the activations of one of them and the features of all.
#
# Not counted: the context of a GPU (0.3 to 0.6 GiB), and memory that the allocator reserves and
# does not use. Callers leave a margin for these.
#
# Shapes: T tokens, C channels of a tower, M hidden channels of its MLP, H heads, b samples of a
# rank, B of all ranks, E channels of an embedding.


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
FULL = 4  # bytes of fp32
# The loss without tiles: logits or their logarithms of both directions, and their gradients.
LOGIT_COPIES = 4
TILE_COPIES = 3
# A GPU gets the images of a batch of up to so many bytes in one copy, those of a larger one a
# micro-batch at a time.
AHEAD_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """One step on one rank: its samples, and the settings that decide its memory."""

    samples: int  # of this rank
    micro_batch: int | None = None  # None: all samples at once
    tokens: float  # computed for a caption, in the mean
    longest: int  # tokens of the longest caption
    captions: Captions = "padded"
    precision: Precision = "bf16"
    device: str = "cuda"  # or cpu
    recompute_every: int = 0  # of how many blocks one is recomputed; 0: none
    selective: bool = False  # recompute all but matrix products and attention
    data_parallel: int = 1  # ranks that see other samples
    dp_shard: int = 1
    tp: int = 1
    loss_tile: int | None = None  # side of a tile of logits; None: all at once
    # Last groups of layers of the image and caption towers that are trained; None: all
    trained: tuple[int | None, int | None] = (None, None)

    @property
    def piece(self) -> int:
        """Samples that are computed at once: of the largest of equal pieces."""
        pieces = 1 if self.micro_batch is None else -(-self.samples // self.micro_batch)
        return -(-self.samples // pieces)

    @property
    def half(self) -> bool:
        """Whether matrix products are of 16 bits."""
        return self.precision not in ("fp32", "tf32")

    @property
    def sharded(self) -> bool:
        """Whether FSDP2 holds the weights. See `Ranks.fsdp`."""
        return self.dp_shard > 1 or (self.tp > 1 and self.data_parallel > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a training step on one rank's device, by what holds them.

    `peak` is less than the sum where some are freed before others are allocated.
    """

    weights: int
    gradients: int
    optimizer: int  # moments
    copies: int  # of weights: in 16 bits, or gathered from other ranks
    activations: int  # kept for backward
    loss: int  # logits and their gradients
    features: int  # embeddings of a batch, gathered and with gradients
    inputs: int  # images; in 32 bits until the loss
    workspace: int  # of the block whose backward runs
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tower:
    """A tower for counting: its shape, and which bytes its activations have."""

    width: int
    mlp: int
    heads: int
    layers: int
    tokens: float
    causal: bool
    stream: int  # bytes of a value of the residual stream
    norm_input: int  # bytes of a value that a norm keeps
    quick_gelu: bool


# --- the whole step ------------------------------------------------------------------------------


def step_memory(config: ModelConfig | OpenClipConfig, shape: StepShape) -> StepMemory:
    """The memory of one step on one rank's device, and its peak."""
    if isinstance(config, OpenClipConfig):
        return _open_clip_memory(config, shape)
    numbers, _ = _parameters_of_rank(config, shape)
    trained, trained_text = _parameters_of_rank(config, shape, trained=True)
    weights = round(FULL * numbers)
    gradients = round(FULL * trained)
    optimizer = round(2 * FULL * trained)  # two moments
    vision, text = sample_activations(config, shape)
    activations = round(shape.piece * (vision + text))
    copies = _copies(config, shape)
    loss, features = _loss_bytes(shape), _feature_bytes(config, shape)
    workspace, inputs = _workspace(config, shape), _input_bytes(config, shape)
    # Backward runs through the caption tower first. Its dense gradient of the token table is added
    # to one that is there where pieces add up.
    after_text = round(shape.piece * vision) + copies.vision + workspace
    table = FULL * config.vocab_size * config.text_width
    adds_up = shape.piece < shape.samples
    has_table = shape.trained[1] in (None, group_count(config.text_layers))
    if has_table and adds_up:
        after_text += table
    whole = activations + copies.vision + copies.text
    if adds_up or shape.data_parallel > 1:
        moving = gradients + max(whole + max(loss, workspace), after_text)
    else:
        text_gradients = round(FULL * trained_text)
        moving = max(whole + max(loss, workspace), after_text + text_gradients, gradients)
    forward = activations + copies.forward + (gradients if adds_up else 0)
    # Images in 32 bits are given up before the loss.
    lasting_inputs = _image_bytes(config, shape)
    peak_of_passes = max(features + moving, forward + inputs - lasting_inputs)
    return StepMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        copies=copies.gathered + copies.vision + copies.text,
        activations=activations,
        loss=loss,
        features=features,
        inputs=inputs,
        workspace=workspace,
        peak=weights + optimizer + lasting_inputs + copies.gathered + peak_of_passes,
    )


def mixes_samples(
    config: ModelConfig | OpenClipConfig, trained: tuple[int | None, int | None]
) -> bool:
    """Whether the embedding of a sample depends on the others of its batch: BatchNorm does that."""
    return isinstance(config, OpenClipConfig) and _counts_of(config, trained).norms > 0


def _counts_of(config: OpenClipConfig, trained: tuple[int | None, int | None]) -> Counts:
    from clipmill.train.model.open_clip_model import counts_of  # with torch

    return counts_of(config, trained)


def _open_clip_memory(config: OpenClipConfig, shape: StepShape) -> StepMemory:
    """The memory of a step of open_clip's own module: at most, since activations count in 32 bits
    and as if no block was recomputed.
    """
    counts = _counts_of(config, shape.trained)
    trained = FULL * counts.trained // shape.dp_shard
    gathered = FULL * (counts.outside + 3 * counts.largest_block) if shape.dp_shard > 1 else 0
    parts = {
        "weights": FULL * counts.parameters // shape.dp_shard,
        "gradients": trained,
        "optimizer": 2 * trained,
        "copies": gathered + (2 * counts.parameters if shape.half else 0),
        "activations": shape.piece * (counts.image_bytes + counts.text_bytes),
        "loss": _loss_bytes(shape),
        "features": _feature_bytes(config, shape),
        "inputs": _input_bytes(config, shape),
        "workspace": shape.piece * (counts.image_bytes + counts.text_bytes) // 8,
    }
    return StepMemory(**parts, peak=sum(parts.values()))


def _parameters_of_rank(
    config: ModelConfig, shape: StepShape, *, trained: bool = False
) -> tuple[float, float]:
    """Numbers that this rank has of the model, or of what is trained; those of the captions."""
    of_blocks = []
    outside = [outside_vision(config), outside_text(config)]
    for tower, (width, mlp, layers) in enumerate(_blocks(config)):
        split, rest = block_parameters(width, mlp)
        groups = shape.trained[tower] if trained else None
        of_blocks.append(trained_blocks(layers, groups) * (split / shape.tp + rest))
        if groups is not None and groups < group_count(layers):
            projection = width * config.embed_dim if groups else 0
            outside[tower] = projection + (2 * width if groups > 1 else 0)
    whole = sum(of_blocks) + sum(outside)
    return whole / shape.dp_shard, (of_blocks[1] + outside[1]) / shape.dp_shard


def _blocks(config: ModelConfig) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Width, MLP and number of blocks of both towers."""
    vision = (config.vision_width, config.vision_mlp, config.vision_layers)
    return vision, (config.text_width, config.text_mlp, config.text_layers)


class _Copies(NamedTuple):
    """Bytes of weights beside the weights."""

    gathered: int  # by FSDP2, all the time
    vision: int  # kept for backward
    text: int
    forward: int  # at the end of the forward pass


def _copies(config: ModelConfig, shape: StepShape) -> _Copies:
    """Autocast casts every weight once and keeps it during the forward pass; selective
    recomputation runs without that. The last block of a tower slices its queries from its fused
    matrix. FSDP2 gathers the weights of some blocks, and holds whole gradients of two before they
    are scattered.
    """
    size = 2 if shape.half else FULL
    if shape.sharded:
        numbers = []
        for width, mlp, layers in _blocks(config):
            split, rest = block_parameters(width, mlp)
            numbers += [split / shape.tp + rest] * layers
        numbers.sort()
        outside = outside_vision(config) + outside_text(config)
        gathered = round(size * sum(numbers[-3:]) + FULL * (sum(numbers[-2:]) + outside))
        return _Copies(gathered, 0, 0, 0)
    is_cast = shape.precision in ("bf16", "fp16")
    patch = CHANNELS * config.patch_size**2 * config.vision_width
    cast = float(patch) if is_cast else 0.0  # backward does not need it: an image has no gradient
    kept: list[float] = []
    number = 0
    for width, mlp, layers in _blocks(config):
        of_tower = float(width * config.embed_dim) if is_cast else 0.0
        cast += of_tower
        for depth in range(layers):
            slices = 3 * width**2 if depth == layers - 1 else 0
            copied = (4 * width**2 + 2 * width * mlp if is_cast else slices) / shape.tp
            of_tower += 0 if _is_recomputed(number, shape) else copied
            cast += copied
            number += 1
        kept.append(of_tower)
    forward = sum(kept) if shape.selective else cast
    return _Copies(0, round(size * kept[0]), round(size * kept[1]), round(size * forward))


def _is_recomputed(number: int, shape: StepShape) -> bool:
    """Whether a block is recomputed; blocks are numbered through both towers."""
    return shape.recompute_every > 0 and number % shape.recompute_every == 0


def _loss_bytes(shape: StepShape) -> int:
    batch = shape.samples * shape.data_parallel
    if shape.loss_tile is None or shape.loss_tile >= batch:
        return LOGIT_COPIES * FULL * shape.samples * batch
    return TILE_COPIES * FULL * shape.loss_tile**2


def _feature_bytes(config: ModelConfig | OpenClipConfig, shape: StepShape) -> int:
    """Both embeddings: as computed, as vectors of length 1, and their gradients."""
    pair = 2 * FULL * config.embed_dim
    gathered = 3 * shape.samples * shape.data_parallel if shape.data_parallel > 1 else 0
    return pair * (3 * shape.samples + gathered)


def _input_bytes(config: ModelConfig | OpenClipConfig, shape: StepShape) -> int:
    """The images of a piece in 32 bits; on a GPU also as bytes."""
    return FULL * shape.piece * _image_values(config) + _image_bytes(config, shape)


def _image_bytes(config: ModelConfig | OpenClipConfig, shape: StepShape) -> int:
    """Images as bytes on a GPU: this batch's and the next one's; of a large batch the buffers for
    micro-batches, of which there are two for the first of a batch and two for all others.
    """
    if shape.device != "cuda":
        return 0
    of_batch = shape.samples * _image_values(config)
    if of_batch <= AHEAD_BYTES:
        return 2 * of_batch
    buffers = min(4, 1 + math.ceil(shape.samples / shape.piece))
    return buffers * shape.piece * _image_values(config)


def _image_values(config: ModelConfig | OpenClipConfig) -> int:
    height, width = config.height_width
    return CHANNELS * height * width


def _workspace(config: ModelConfig, shape: StepShape) -> int:
    """Of the block whose backward runs: its gradients, and what it computes again."""
    size = 2 if shape.half else FULL
    largest = 0.0
    for tower in _towers(config, shape):
        gradients = size * tower.tokens * (tower.mlp / shape.tp + 2 * tower.width)
        if shape.recompute_every:
            gradients += _full_block(tower, shape)
        if shape.selective:  # of what a block keeps, its products are there already
            products = _recomputed_block(tower, shape, last=False)
            gradients -= products - tower.tokens * tower.stream * tower.width
        largest = max(largest, gradients)
    return round(shape.piece * largest)


# --- activations ---------------------------------------------------------------------------------


def sample_activations(config: ModelConfig, shape: StepShape) -> tuple[float, float]:
    """Bytes that one image keeps for backward, and one caption."""
    size = 2 if shape.half else FULL
    of_towers = []
    number = 0
    for tower, groups in zip(_towers(config, shape), shape.trained, strict=True):
        if groups == 0:
            of_towers.append(0.0)
            number += tower.layers
            continue
        total = 3.0 * FULL * (tower.width + config.embed_dim)  # the last norm and the projection
        locked = tower.layers - trained_blocks(tower.layers, groups)
        number += locked
        for depth in range(locked, tower.layers):
            last = depth == tower.layers - 1
            if _is_recomputed(number, shape):
                total += _recomputed_block(tower, shape, last=last)
            elif last:
                total += _last_block(tower, shape)
            else:
                total += _full_block(tower, shape)
            number += 1
        if tower.causal:
            total += 8 * tower.tokens  # token numbers
        else:
            total += tower.tokens * tower.width * tower.norm_input
            total += config.patches * CHANNELS * config.patch_size**2 * size
        of_towers.append(total)
    return of_towers[0], of_towers[1]


def _towers(config: ModelConfig, shape: StepShape) -> tuple[_Tower, _Tower]:
    """The towers with the tokens that training computes.

    Autocast on a GPU computes norms in 32 bits and keeps their inputs so. The stream of captions
    begins with 32-bit embeddings and stays in them.
    """
    half = 2 if shape.half else FULL
    on_gpu = shape.device == "cuda"
    kept = config.patches
    if config.drop_patch_rate:
        kept = max(1, int(kept * (1 - config.drop_patch_rate)))
    vision = _Tower(
        width=config.vision_width,
        mlp=config.vision_mlp,
        heads=config.vision_heads,
        layers=config.vision_layers,
        tokens=kept + 1,
        causal=False,
        stream=half,
        norm_input=FULL if on_gpu else half,
        quick_gelu=config.quick_gelu,
    )
    text = _Tower(
        width=config.text_width,
        mlp=config.text_mlp,
        heads=config.text_heads,
        layers=config.text_layers,
        tokens=shape.tokens,
        causal=True,
        stream=FULL,
        norm_input=FULL,
        quick_gelu=config.quick_gelu,
    )
    return vision, text


def _full_block(tower: _Tower, shape: StepShape) -> float:
    """Bytes that a block keeps of one sample: the inputs of its norms, products and activation."""
    size = 2 if shape.half else FULL
    hidden = tower.mlp / shape.tp * (3 if tower.quick_gelu else 2)
    token = 2 * tower.norm_input * tower.width + size * (2 * tower.width + hidden)
    token += 4 * FULL  # means and deviations of both norms
    return tower.tokens * token + _attention(tower, shape)


def _attention(tower: _Tower, shape: StepShape) -> float:
    """Queries, keys, values, the mixed values, and what the kernel keeps beside them."""
    size = 2 if shape.half else FULL
    tokens, width, heads = tower.tokens, tower.width / shape.tp, tower.heads / shape.tp
    if tower.causal and shape.captions == "packed" and shape.device == "cpu":
        # No kernel reads packed captions there: queries, keys, values and the result are padded.
        padded = shape.longest * width * 4 * size + shape.longest * heads * FULL
        return padded + size * tokens * width
    return tokens * (4 * size * width + FULL * heads)


def _last_block(tower: _Tower, shape: StepShape) -> float:
    """The last block: norm, keys and values of every token, the rest of the pooled one."""
    size = 2 if shape.half else FULL
    width = tower.width / shape.tp
    token = tower.norm_input * tower.width + size * (tower.width + 2 * width) + 2 * FULL
    tokens = tower.tokens
    if tower.causal and shape.captions == "packed" and shape.device == "cpu":
        token, tokens = token - size * 2 * width, tower.tokens
        padded = shape.longest * 2 * size * width
    else:
        padded = 0.0
    if shape.device == "cuda":  # the weights of one query are materialised, from copies
        token += size * 2 * width + tower.heads / shape.tp * (FULL + size)
    hidden = tower.mlp / shape.tp * (3 if tower.quick_gelu else 2)
    pooled = 2 * tower.norm_input * tower.width + size * (5 * tower.width + hidden)
    return tokens * token + padded + pooled


def _recomputed_block(tower: _Tower, shape: StepShape, *, last: bool) -> float:
    """The input of a block that is computed again; `selective` adds what its products gave."""
    kept = tower.tokens * tower.stream * tower.width
    if not shape.selective:
        return kept
    size = 2 if shape.half else FULL
    if last:
        pooled = size * (4 * tower.width + tower.mlp / shape.tp)
        return kept + tower.tokens * size * 2 * tower.width / shape.tp + pooled
    products = 4 * tower.width / shape.tp + 2 * tower.width + tower.mlp / shape.tp
    return kept + tower.tokens * (size * products + FULL * tower.heads / shape.tp)
