"""The norm of gradients that are plain tensors or DTensors on several meshes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm


def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """The norm of all gradients together, the same on every rank.

    Plain tensors are equal on all ranks and count without communication. Of DTensors each rank
    squares and sums its own part; one number for each mesh and way of sharding is summed over the
    dimensions that are sharded. ValueError for a gradient that is a partial sum.
    """
    plain = [grad for grad in grads if mesh_of(grad) is None]
    if len(plain) == len(grads):
        return _norm(plain)
    buckets: dict[tuple[Any, tuple[int, ...]], list[Tensor]] = {}
    for grad in grads:
        if (mesh := mesh_of(grad)) is not None:
            placements = grad.placements  # type: ignore[attr-defined]
            if any(placement.is_partial() for placement in placements):
                raise ValueError(
                    "a gradient is still a partial sum over a mesh; "
                    "reduce it before its norm is taken"
                )
            sharded = tuple(k for k, p in enumerate(placements) if not p.is_replicate())
            buckets.setdefault((mesh, sharded), []).append(local_part(grad))
    squares = [_norm(plain).square()] if plain else []
    for (mesh, sharded), parts in buckets.items():
        square = _norm(parts).square()
        for k in sharded:
            dist.all_reduce(square, group=mesh.get_group(k))
        squares.append(square)
    return torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()


def _norm(parts: Sequence[Tensor]) -> Tensor:
    """The norm of tensors on this rank; tensors of 16 bits are summed in 32."""
    if all(part.dtype in (torch.float32, torch.float64) for part in parts):
        return get_total_norm(parts)
    norms: list[Tensor] = list(torch._foreach_norm(list(parts), 2, torch.float32))
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def mesh_of(x: Tensor) -> Any:
    """The mesh of a DTensor, None for a plain tensor."""
    return getattr(x, "device_mesh", None)


@torch.no_grad()
def local_part(x: Tensor) -> Tensor:
    """This rank's part, in the same memory."""
    return x.detach() if mesh_of(x) is None else x.detach().to_local()  # type: ignore[attr-defined]
