"""The contrastive losses, softmax (CLIP) and sigmoid (SigLIP), on one process or over the ranks of data parallelism.

Data parallelism averages the ranks' gradients. So that this average is the gradient of the loss over the global batch,
a feature that was gathered needs its gradient from every rank that used it (`_Gather`). What happens without that, for
a rank that computes its own rows only: the loss is right, the gradient is not (cosine 0.978), and nothing tells.
The gather is over the data-parallel group alone; ranks of any other kind would repeat rows and add ln(ranks).

Shapes: b samples of this rank, B of all, E channels of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """How a global batch lies over the ranks of a group: rank k has the k-th of `world` equal blocks."""

    rank: int = 0
    world: int = 1
    group: Any = None  # of torch.distributed; None is the default group


class _Gather(torch.autograd.Function):
    """All ranks' features, [n, b, E] -> [n, B, E], in the order of the ranks.

    Backward, `summed`: each rank used the features in its own loss, and the shares are added up. Otherwise every rank
    computed one and the same loss, its gradient is complete, and `world` undoes the average that comes later: exact
    with nothing sent.
    """

    @staticmethod
    def forward(ctx: Any, x_nbE: Tensor, shards: Shards, summed: bool) -> Tensor:
        ctx.shards, ctx.summed = shards, summed
        x_nbE = x_nbE.contiguous()
        parts = [torch.empty_like(x_nbE) for _ in range(shards.world)]
        dist.all_gather(parts, x_nbE, group=shards.group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        shards, grad_nBE = ctx.shards, grads[0]
        b = grad_nBE.shape[1] // shards.world
        own = slice(shards.rank * b, (shards.rank + 1) * b)
        if not ctx.summed:
            return grad_nBE[:, own] * shards.world, None, None
        grad_nBE = grad_nBE.contiguous()
        dist.all_reduce(grad_nBE, group=shards.group)
        return grad_nBE[:, own], None, None


def contrastive(
    kind: Literal["clip", "siglip"],
    image_bE: Tensor,
    text_bE: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    shards: Shards | None = None,
    local_loss: bool = True,
    gather_with_grad: bool = True,
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and the share of its pictures whose own caption scores highest.

    Features are unit vectors, `scale` the factor on their products (not its logarithm). Over several ranks the mean of
    both over the ranks is that of the global batch: `local_loss` computes b of its B rows per rank, otherwise every
    rank computes all. ValueError for `local_loss` without `gather_with_grad`.
    """
    shards = Shards() if shards is None else shards
    if shards.world > 1 and local_loss and not gather_with_grad:
        raise ValueError("local_loss without gather_with_grad trains on a wrong gradient; gather with gradient")
    all_image_BE, all_text_BE = image_bE, text_bE
    start = 0
    if shards.world > 1:
        both = _Gather.apply(torch.stack([image_bE, text_bE]), shards, gather_with_grad)
        all_image_BE, all_text_BE = both.unbind(0)
        if local_loss:
            start = shards.rank * len(image_bE)
        else:
            image_bE, text_bE = all_image_BE, all_text_BE
    logits_bB = scale * image_bE @ all_text_BE.T
    own_b = torch.arange(start, start + len(image_bE), device=image_bE.device)
    if kind == "siglip":
        assert bias is not None
        logits_bB = logits_bB + bias
        sign_bB = -torch.ones_like(logits_bB)
        sign_bB[torch.arange(len(own_b), device=own_b.device), own_b] = 1
        loss = -F.logsigmoid(sign_bB * logits_bB).sum() / len(own_b)
    else:
        whole = logits_bB.shape[0] == logits_bB.shape[1]
        text_logits_bB = logits_bB.T if whole else scale * text_bE @ all_image_BE.T
        loss = (F.cross_entropy(logits_bB, own_b) + F.cross_entropy(text_logits_bB, own_b)) / 2
    return loss, (logits_bB.detach().argmax(dim=1) == own_b).float().mean()
