"""The contrastive losses, softmax (CLIP) and sigmoid (SigLIP), on one process or several ranks.

Data parallelism averages the gradients of the ranks. For this average to be the gradient of the
loss of the global batch, a gathered feature needs its gradient from every rank that used it
(`_Gather`). Without that, a rank that computes only its own rows has the right loss and a wrong
gradient (cosine 0.978), and nothing reports it. The gather is over the data-parallel group alone:
other ranks would repeat rows and add ln(ranks) to the loss.

A large batch is computed in tiles, forward and again backward, so that one tile of its logits
exists at a time: 32,768 pairs would need 4 GiB a copy otherwise. The numbers are those of the whole
form up to rounding.

Shapes: b samples of this rank, B of all ranks, E channels of an embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits of a rank that are computed at once. torch keeps four or five copies: 0.3 GB.
WHOLE = 4096**2
TILE = 1024  # three buffers of 1024 x 1024 numbers are 13 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """The ranks that share a global batch: rank k has the k-th of `world` equal blocks."""

    rank: int = 0
    world: int = 1
    group: Any = None  # of torch.distributed; None is the default group


class _Gather(torch.autograd.Function):
    """The features of all ranks, [n, b, E] -> [n, B, E], in the order of the ranks.

    Each rank uses the features in its own loss; backward adds the shares up.
    """

    @staticmethod
    def forward(ctx: Any, x_nbE: Tensor, data_parallel: DataParallel) -> Tensor:
        ctx.data_parallel = data_parallel
        x_nbE = x_nbE.contiguous()
        parts = [torch.empty_like(x_nbE) for _ in range(data_parallel.world)]
        dist.all_gather(parts, x_nbE, group=data_parallel.group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        data_parallel, grad_nBE = ctx.data_parallel, grads[0]
        b = grad_nBE.shape[1] // data_parallel.world
        # Each rank receives the sum of its own rows alone: half of the bytes of an all-reduce.
        # Flat tensors: gloo wants `world` times as many rows in as out.
        parts = grad_nBE.unflatten(1, (data_parallel.world, b)).transpose(0, 1).contiguous()
        sum_nbE = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(sum_nbE.view(-1), parts.view(-1), group=data_parallel.group)
        return sum_nbE, None


def gather_with_gradient(x: Tensor, data_parallel: DataParallel) -> Tensor:
    """The tensors of all ranks, W×…; backward sums the gradients that all ranks have of one."""
    flat: Tensor = _Gather.apply(x.flatten()[None, None], data_parallel)
    return flat.view(data_parallel.world, *x.shape)


def contrastive(
    kind: Literal["clip", "siglip"],
    image_bE: Tensor,
    text_bE: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    data_parallel: DataParallel | None = None,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and the share of its images whose own caption scores highest.

    Features are unit vectors, `scale` is the factor on their products (not its logarithm). 16-bit
    features are gathered and multiplied in 32 bits. Over several ranks the mean of both results
    over the ranks is that of the global batch: a rank computes b of the B rows. `tile` is the side
    of a tile of logits; None computes up to WHOLE logits at once and more in tiles of TILE.
    """
    data_parallel = DataParallel() if data_parallel is None else data_parallel
    with torch.autocast(image_bE.device.type, enabled=False):
        image_bE, text_bE = (
            x if x.dtype == torch.float64 else x.float() for x in (image_bE, text_bE)
        )
        all_image_BE, all_text_BE = image_bE, text_bE
        start = 0
        if data_parallel.world > 1:
            both = _Gather.apply(torch.stack([image_bE, text_bE]), data_parallel)
            all_image_BE, all_text_BE = both.unbind(0)
            start = data_parallel.rank * len(image_bE)
        b, B = len(image_bE), len(all_text_BE)
        side = loss_tile(b, B, tile) or B
        if kind == "siglip":
            assert bias is not None
            if side < B:
                loss, right_b = _Sigmoid.apply(image_bE, all_text_BE, scale, bias, start, side)
                return loss, right_b.float().mean()
            return _sigmoid(image_bE, all_text_BE, scale, bias, start)
        if side >= B:
            return _softmax(image_bE, all_image_BE, text_bE, all_text_BE, scale, start)
        loss, right_b = _Softmax.apply(image_bE, all_text_BE, scale, start, side, b == B)
        if b != B:
            loss = (loss + _Softmax.apply(text_bE, all_image_BE, scale, start, side, False)[0]) / 2
        return loss, right_b.float().mean()


def loss_tile(rows: int, columns: int, tile: int | None = None) -> int | None:
    """The side of a tile of logits that `contrastive` computes; None: all at once."""
    if tile is None:
        return None if rows * columns <= WHOLE else TILE
    return tile if tile < columns else None


# --- all logits at once --------------------------------------------------------------------------


def _softmax(
    image_bE: Tensor,
    all_image_BE: Tensor,
    text_bE: Tensor,
    all_text_BE: Tensor,
    scale: Tensor,
    start: int,
) -> tuple[Tensor, Tensor]:
    """The mean over both directions of the cross-entropy, and the accuracy."""
    logits_bB = scale * image_bE @ all_text_BE.T
    own_b = torch.arange(start, start + len(image_bE), device=image_bE.device)
    whole = logits_bB.shape[0] == logits_bB.shape[1]
    text_logits_bB = logits_bB.T if whole else scale * text_bE @ all_image_BE.T
    loss = (F.cross_entropy(logits_bB, own_b) + F.cross_entropy(text_logits_bB, own_b)) / 2
    return loss, (logits_bB.detach().argmax(dim=1) == own_b).float().mean()


def _sigmoid(
    image_bE: Tensor, all_text_BE: Tensor, scale: Tensor, bias: Tensor, start: int
) -> tuple[Tensor, Tensor]:
    """A binary loss for every pair, summed and divided by b; and the accuracy."""
    logits_bB = scale * image_bE @ all_text_BE.T + bias
    own_b = torch.arange(start, start + len(image_bE), device=image_bE.device)
    sign_bB = -torch.ones_like(logits_bB)
    sign_bB[torch.arange(len(own_b), device=own_b.device), own_b] = 1
    loss = -F.logsigmoid(sign_bB * logits_bB).sum() / len(own_b)
    return loss, (logits_bB.detach().argmax(dim=1) == own_b).float().mean()


# --- in tiles ------------------------------------------------------------------------------------


class _Softmax(torch.autograd.Function):
    """Mean cross-entropy of the rows of the logits, x against y.

    With `both` it is the mean of the rows' and the columns' cross-entropy. Row i belongs to column
    start + i. The second result is True for each row whose own column is the highest.
    """

    @staticmethod
    def forward(
        ctx: Any, x_bE: Tensor, y_BE: Tensor, scale: Tensor, start: int, side: int, both: bool
    ) -> tuple[Tensor, Tensor]:
        b, B = len(x_bE), len(y_BE)
        best = _Best(x_bE)
        # Logarithms of the sums so far, of rows and of columns; and the rows' own logits.
        row_b, own_b = x_bE.new_full((b,), -torch.inf), x_bE.new_zeros(b)
        column_B = x_bE.new_full((B if both else 0,), -torch.inf)
        for rows, columns in _tiles(b, B, side):
            z = (scale * x_bE[rows]) @ y_BE[columns].T
            best.see(z, rows, columns)
            diagonal, here = _diagonal(z, rows, columns, start)
            own_b[here] = diagonal
            row_b[rows] = torch.logaddexp(row_b[rows], z.logsumexp(dim=1))
            if both:
                column_B[columns] = torch.logaddexp(column_B[columns], z.logsumexp(dim=0))
        loss = (row_b - own_b).mean()
        if both:
            loss = (loss + (column_B - own_b).mean()) / 2
        ctx.save_for_backward(x_bE, y_BE, scale, row_b, column_B)
        ctx.start, ctx.side, ctx.both = start, side, both
        right_b = best.right(start)
        ctx.mark_non_differentiable(right_b)
        return loss, right_b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_bE, y_BE, scale, row_b, column_B = ctx.saved_tensors
        dx_bE, dy_BE = torch.zeros_like(x_bE), torch.zeros_like(y_BE)
        for rows, columns in _tiles(len(x_bE), len(y_BE), ctx.side):
            scaled = scale * x_bE[rows]
            z = scaled @ y_BE[columns].T
            of_columns = (z - column_B[columns]).exp_() if ctx.both else None
            z.sub_(row_b[rows, None]).exp_()
            if of_columns is not None:
                z.add_(of_columns)
            _diagonal(z, rows, columns, ctx.start)[0].sub_(2 if ctx.both else 1)
            dx_bE[rows].addmm_(z, y_BE[columns])
            dy_BE[columns].addmm_(z.T, scaled)
        factor = grads[0] / (len(x_bE) * (2 if ctx.both else 1))
        dscale = (factor * torch.dot(x_bE.flatten(), dx_bE.flatten())).reshape(scale.shape)
        return dx_bE.mul_(factor * scale), dy_BE.mul_(factor), dscale, None, None, None


class _Sigmoid(torch.autograd.Function):
    """The sigmoid loss of x against y. Rows, columns and results as of `_Softmax`."""

    @staticmethod
    def forward(
        ctx: Any, x_bE: Tensor, y_BE: Tensor, scale: Tensor, bias: Tensor, start: int, side: int
    ) -> tuple[Tensor, Tensor]:
        best = _Best(x_bE)
        loss_b = x_bE.new_zeros(len(x_bE))
        for rows, columns in _tiles(len(x_bE), len(y_BE), side):
            z = ((scale * x_bE[rows]) @ y_BE[columns].T).add_(bias)
            best.see(z, rows, columns)
            _diagonal(z.neg_(), rows, columns, start)[0].neg_()
            loss_b[rows] -= F.logsigmoid(z).sum(dim=1)
        ctx.save_for_backward(x_bE, y_BE, scale, bias)
        ctx.start, ctx.side = start, side
        right_b = best.right(start)
        ctx.mark_non_differentiable(right_b)
        return loss_b.mean(), right_b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_bE, y_BE, scale, bias = ctx.saved_tensors
        dx_bE, dy_BE, of_bias_b = (
            torch.zeros_like(x_bE),
            torch.zeros_like(y_BE),
            x_bE.new_zeros(len(x_bE)),
        )
        for rows, columns in _tiles(len(x_bE), len(y_BE), ctx.side):
            scaled = scale * x_bE[rows]
            z = (scaled @ y_BE[columns].T).add_(bias)
            own = _diagonal(z, rows, columns, ctx.start)[0].neg()
            z.sigmoid_()
            _diagonal(z, rows, columns, ctx.start)[0].copy_(own.sigmoid_().neg_())
            of_bias_b[rows] += z.sum(dim=1)
            dx_bE[rows].addmm_(z, y_BE[columns])
            dy_BE[columns].addmm_(z.T, scaled)
        factor = grads[0] / len(x_bE)
        dscale = (factor * torch.dot(x_bE.flatten(), dx_bE.flatten())).reshape(scale.shape)
        dbias = (factor * of_bias_b.sum()).reshape(bias.shape)
        return dx_bE.mul_(factor * scale), dy_BE.mul_(factor), dscale, dbias, None, None


class _Best:
    """The highest column of each row, tile by tile; the first of equal columns."""

    def __init__(self, x_bE: Tensor) -> None:
        self.value_b = x_bE.new_full((len(x_bE),), -torch.inf)
        self.at_b = torch.zeros(len(x_bE), dtype=torch.long, device=x_bE.device)

    def see(self, z: Tensor, rows: slice, columns: slice) -> None:
        """Compare with the logits of a tile."""
        value, at = z.max(dim=1)
        higher = value > self.value_b[rows]
        self.value_b[rows] = torch.where(higher, value, self.value_b[rows])
        self.at_b[rows] = torch.where(higher, at + columns.start, self.at_b[rows])

    def right(self, start: int) -> Tensor:
        """Whether the highest column of row i is start + i."""
        return self.at_b == torch.arange(start, start + len(self.at_b), device=self.at_b.device)


def _tiles(b: int, B: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of tiles of at most side² logits; fewer rows make longer tiles."""
    height = min(b, side)
    width = side * side // height
    for row in range(0, b, height):
        for column in range(0, B, width):
            yield slice(row, min(row + height, b)), slice(column, min(column + width, B))


def _diagonal(z: Tensor, rows: slice, columns: slice, start: int) -> tuple[Tensor, slice]:
    """The rows' own logits in a tile, as a view that may be empty, and which rows they are."""
    offset = start + rows.start - columns.start
    view = z.diagonal(offset)
    first = rows.start + max(0, -offset)
    return view, slice(first, first + len(view))
