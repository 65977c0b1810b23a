"""Forward and backward of one step, whole or in micro-batches with the same gradients.

A contrastive loss couples all samples of a batch, so the gradients of the losses of its pieces do
not add up to its own. Micro-batches are computed in three parts instead (gradient caching, Gao et
al. 2021): forward of all pieces, keeping only the features; the loss of all features and its
gradient to them; forward of every piece again, and backward from its share of that gradient. The
result is that of the whole batch. The memory is that of one piece and the features; the price is a
second forward pass. The loss, its gather and the gradients of the logit scale and bias are computed
once.

Shapes: b samples of this rank, E channels of an embedding.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Piece = tuple[Any, ...]  # the model's arguments
Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
Context = Callable[[], contextlib.AbstractContextManager[Any]]
PASSES = 2  # over the inputs of micro-batches


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardResult:
    """What a backward pass returns beside the gradients."""

    loss: Tensor
    accuracy: Tensor
    image_bE: Tensor
    text_bE: Tensor


def backward(
    model: nn.Module,
    model_inputs: Callable[[slice], Piece],
    count: int,
    loss_of: Loss,
    *,
    micro_batch: int | None = None,
    precision: Context = contextlib.nullcontext,
    loss_scale: float = 1.0,
) -> BackwardResult:
    """Add the gradients of the loss of `count` samples, times `loss_scale`, to the parameters.

    `model_inputs` gives the model's arguments for some of the samples, right before each of their
    forward passes, so that one piece lies on the device at a time; it is also the place to choose
    the random numbers. `model` returns both features, the factor and the bias. It may be wrapped in
    DDP or FSDP2, which then reduce the gradients in the last piece. `precision` surrounds every
    forward pass. The states of torch's generators are restored before the second pass, for layers
    that draw from them.
    """
    pieces = micro_batches(count, micro_batch)
    if len(pieces) == 1:
        with precision():
            image_bE, text_bE, scale, bias = model(*model_inputs(pieces[0]))
        loss, accuracy = loss_of(image_bE, text_bE, scale, bias)
        (loss if loss_scale == 1 else loss * loss_scale).backward()
        return BackwardResult(
            loss=loss.detach(), accuracy=accuracy, image_bE=image_bE, text_bE=text_bE
        )
    images, texts, states = [], [], []
    for piece in pieces:
        states.append(_generator_states())
        with torch.no_grad(), precision():
            image_bE, text_bE, scale, bias = model(*model_inputs(piece))
        images.append(image_bE)
        texts.append(text_bE)
    leaves = [torch.cat(images).requires_grad_(), torch.cat(texts).requires_grad_(), _leaf(scale)]
    if bias is not None:
        leaves.append(_leaf(bias))
    del images, texts, image_bE, text_bE, scale, bias
    loss, accuracy = loss_of(
        leaves[0], leaves[1], leaves[2], leaves[3] if len(leaves) > 3 else None
    )
    (loss * loss_scale).backward()
    for number, piece in enumerate(pieces):
        _restore_generators(states[number])
        last = number == len(pieces) - 1
        with _gradient_sync(model, last):
            with precision():
                outputs = model(*model_inputs(piece))
            _backward_of_piece(outputs, leaves, piece, last)
    return BackwardResult(
        loss=loss.detach(), accuracy=accuracy, image_bE=leaves[0], text_bE=leaves[1]
    )


def _backward_of_piece(
    outputs: Sequence[Tensor | None], leaves: Sequence[Tensor], piece: slice, last: bool
) -> None:
    """Pass the gradients of the features of one piece on to the parameters.

    The gradients of scale and bias are those of the whole batch: they are passed on once, with the
    last piece.
    """
    tensors: list[Tensor] = []
    gradients: list[Tensor] = []
    given = [output for output in outputs if output is not None]
    for position, (output, leaf) in enumerate(zip(given, leaves, strict=True)):
        is_feature = position < 2
        # A locked tower has no gradient to pass on.
        if leaf.grad is None or not output.requires_grad or not (is_feature or last):
            continue
        tensors.append(output)
        gradients.append(leaf.grad[piece].to(output.dtype) if is_feature else leaf.grad)
    if tensors:
        torch.autograd.backward(tensors, gradients)


def micro_batches(count: int, micro_batch: int | None) -> list[slice]:
    """The rows of each micro-batch: as few as `micro_batch` allows, equal to ± 1 sample."""
    number = 1 if micro_batch is None else max(1, -(-count // micro_batch))
    ends = [count * k // number for k in range(number + 1)]
    return [slice(first, end) for first, end in itertools.pairwise(ends)]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _generator_states() -> list[Tensor]:
    """The states of the generators of the CPU and of the current GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return states


def _restore_generators(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


@contextlib.contextmanager
def _gradient_sync(model: object, last: bool) -> Iterator[None]:
    """All-reduce gradients in the last piece only: the sums of the pieces are reduced once."""
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
        model.set_requires_gradient_sync(last)
        yield
    elif hasattr(model, "no_sync") and not last:  # DDP
        with model.no_sync():
            yield
    else:
        yield
