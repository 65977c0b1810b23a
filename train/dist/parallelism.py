"""A model over a mesh: tensor parallelism, recomputed blocks, compiled blocks, FSDP2, in this order and in place.

Tensor parallelism gives each rank a share of the heads and of the perceptrons' hidden channels: rows of `qkv` and
`fc1`, columns of `out` and `fc2`, as DTensors. What enters a block's branch is the same on all ranks of the group and
its gradients are added up; what leaves is added up and its gradient is the same. So everything outside (embeddings,
norms, projections) is held whole by every rank of the group and has its complete gradient there, with no more to do.

Blocks are replaced nowhere: their `forward` is, so that parameters keep their names and hooks their order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from train.config import TrainConfig, recompute_interval
from train.step import DataParallel
from train.model import CLIP
from train.model import Block
from train.dist.process_group import Ranks

SPLIT = {"qkv": 0, "fc1": 0, "out": 1, "fc2": 1}  # layers of a block, and the dimension of the weight that is shared
VARIANTS = 64  # compiled forms of a block: towers, last or not, grad or not, lengths; torch's own limit is 8


def parallelize(model: CLIP, ranks: Ranks, config: TrainConfig) -> None:
    """Lay `model` (whole, in main memory or on the device) over the mesh of `ranks`. It ends on the device."""
    if ranks.tp > 1:
        apply_tp(model, ranks.mesh["tp"])
    if every := recompute_interval(config.recompute):
        for number, block in enumerate(_blocks(model)):
            if number % every == 0:
                apply_activation_checkpointing(block, selective=config.recompute == "selective")
    if config.compile != "none":
        torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
        for block in _blocks(model):
            block.forward = torch.compile(block.forward, backend=config.compile)  # type: ignore[method-assign]
    if ranks.fsdp:
        apply_fsdp(model, ranks, config)
    if not (ranks.fsdp and config.cpu_offload):
        model.to(ranks.device)


def _blocks(model: CLIP) -> Iterator[Block]:
    for block in (*model.visual.blocks, *model.text.blocks):
        assert isinstance(block, Block)
        yield block


# --- tensor parallelism ----------------------------------------------------------------------------------------------


class _Local(NamedTuple):
    """What a layer's own `forward` reads of it, on this rank."""

    weight: Tensor
    bias: Tensor
    head_width: int


def apply_tp(model: CLIP, mesh: Any) -> None:
    """Give this rank its share of every block."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for block in _blocks(model):
        for name, dim in SPLIT.items():
            layer = getattr(block, name)
            heads = layer.weight.shape[0] // (3 * layer.head_width) if name == "qkv" else 0
            for part, place in (("weight", Shard(dim)), ("bias", Shard(0) if dim == 0 else Replicate())):
                # Every rank has drawn the same numbers: nothing needs to be sent.
                held = distribute_tensor(getattr(layer, part).detach(), mesh, [place], src_data_rank=None)
                setattr(layer, part, nn.Parameter(held))
            layer.forward = functools.partial(_columns if dim == 0 else _rows, layer, mesh)
            if heads:
                first = heads // mesh.size() * mesh.get_local_rank()
                block.attention_spec = block.attention_spec._replace(first_head=first)


def _columns(layer: Any, mesh: Any, h: Tensor, **rest: Any) -> Any:
    """The layer's share of output channels. h is whole; its gradient is the sum of the ranks' shares."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    h = DTensor.from_local(h, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
    local = _Local(layer.weight.to_local(), layer.bias.to_local(), getattr(layer, "head_width", 0))
    return type(layer).forward(local, h, **rest)


def _rows(layer: Any, mesh: Any, h: Tensor) -> Tensor:
    """The whole output from a share of the input channels: the ranks' products are added up, then the bias."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    product = DTensor.from_local(F.linear(h, layer.weight.to_local()), mesh, [Partial()])
    whole: Tensor = product.redistribute(placements=[Replicate()]).to_local()
    bias: Tensor = layer.bias.to_local()
    return whole + bias.to(whole.dtype)


# --- recomputation ---------------------------------------------------------------------------------------------------


def apply_activation_checkpointing(block: Block, *, selective: bool) -> None:
    """Let backward compute the block once more; `selective` keeps the results of matrix products and attention.

    No generator's state is kept: dropout's numbers are functions of where a sample stands.
    """
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if selective:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _kept())
    block.forward = functools.partial(checkpoint, block.forward, **options)  # type: ignore[method-assign]


def _kept() -> list[Any]:
    """Operations that cost more to repeat than their results take to keep."""
    names = ["mm", "addmm", "bmm"]
    kinds = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    names += [f"_scaled_dot_product_{kind}" for kind in kinds]
    found = [(torch.ops.aten, name) for name in names]
    found += [(torch.ops.torch_attn, "_varlen_attn")]
    found += [(torch.ops.flash_attn, f"_flash_attn{kind}_forward") for kind in ("", "_varlen")]
    kept = [getattr(space, name).default for space, name in found if hasattr(space, name)]
    return [*kept, torch.ops._c10d_functional.all_reduce.default]


# --- FSDP2 -----------------------------------------------------------------------------------------------------------


def apply_fsdp(model: CLIP, ranks: Ranks, config: TrainConfig) -> None:
    """Share parameters, gradients and the optimizer's state out over dp_shard, whole blocks at a time.

    The logit scale and bias stay whole and in 32 bits: they have no dimension to share, and 16 bits would round the
    temperature to three digits. Their gradients are averaged by hand.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    names = ("dp_replicate", "dp_shard") if ranks.dp_replicate > 1 else ("dp_shard",)
    options: dict[str, Any] = {"mesh": ranks.mesh[names], "reshard_after_forward": config.reshard_after_forward}
    if config.precision in ("bf16", "bf16_o2"):
        # Autocast sees to what enters a layer; casting it here would take the residual stream's bits too.
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    if config.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy()
    scalars = [p for p in (model.logit_scale, model.logit_bias) if p is not None]
    for scalar in scalars:
        scalar.data = scalar.data.to(ranks.device)
        scalar.register_post_accumulate_grad_hook(functools.partial(_average, ranks.data_parallel))
    for block in _blocks(model):
        fully_shard(block, **options)
    if config.precision == "bf16":  # embeddings as without sharding: autocast leaves them 32 bits
        options["mp_policy"] = MixedPrecisionPolicy(None, torch.float32, cast_forward_inputs=False)
    fully_shard(model, ignored_params=set(scalars), **options)


def _average(data_parallel: DataParallel, scalar: Tensor) -> None:
    """Its gradient arrives once in a step, also where a batch is computed in pieces."""
    assert scalar.grad is not None
    dist.all_reduce(scalar.grad, group=data_parallel.group)
    scalar.grad /= data_parallel.world
