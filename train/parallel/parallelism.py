"""A model over a mesh: tensor parallelism, recomputed blocks, compiled blocks, FSDP2, in this
order.

Tensor parallelism gives each rank some of the heads and some of the MLPs' hidden channels: rows of
`qkv` and `fc1`, columns of `out` and `fc2`, as DTensors. The input of a block's branch is the same
on all ranks of the group, and its gradients are summed. The outputs are summed, and their gradient
is the same on all ranks. So every rank of the group holds everything else (embeddings, norms,
projections) whole, and has the complete gradient of it.

The model is changed in place. A block stays the same object and gets another `forward`, so that
parameters keep their names and hooks their order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from clipmill.train.config import TrainConfig, recompute_interval
from clipmill.train.model.clip import CLIP, Block, PackedCaptions
from clipmill.train.model.open_clip_model import AnyModel, OpenClipModel
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.step.loss import DataParallel, gather_with_gradient

# Layers of a block, and the dimension of the weight that is split.
SPLIT = {"qkv": 0, "fc1": 0, "out": 1, "fc2": 1}
# Compiled forms of a block: towers, last or not, grad or not, lengths. torch's own limit is 8.
VARIANTS = 64


def parallelize(model: AnyModel, ranks: Ranks, config: TrainConfig) -> None:
    """Lay a whole `model`, in host memory or on the device, over the mesh of `ranks`. It ends on
    the device.
    """
    if isinstance(model, OpenClipModel):
        if ranks.dp > 1:
            model.normalise_over(
                functools.partial(gather_with_gradient, data_parallel=ranks.data_parallel)
            )
        elif config.recompute != "none":
            model.normalise_over(None)
    elif ranks.tp > 1:
        apply_tp(model, ranks.mesh["tp"])
    if every := recompute_interval(config.recompute):
        for number, block in enumerate(_blocks(model)):
            if number % every == 0:
                apply_activation_checkpointing(block, selective=config.recompute == "selective")
    if config.compile != "none":
        apply_compile(model, config.compile)
    if ranks.fsdp:
        apply_fsdp(model, ranks, config)
    model.to(ranks.device)


def apply_compile(model: AnyModel, backend: str | Callable[..., object]) -> None:
    """Compile the forward of every block by itself.

    The compiler is told which sizes change: the lengths of captions. It would guess from the calls
    before, and all blocks share one history. So the captions of a first pass over micro-batches
    would make the images of the second pass a variable size, whose kernels are slower.
    """
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    for block in _blocks(model):
        compiled = torch.compile(block.forward, backend=backend)
        if not isinstance(block, Block):  # open_clip's own module pads captions to the context
            block.forward = compiled
            continue
        marked = _with_any_length if block.causal else _with_fixed_sizes
        block.forward = functools.partial(marked, compiled)  # type: ignore[method-assign]


def _with_fixed_sizes(compiled: Callable[..., Tensor], x: Tensor, **rest: object) -> Tensor:
    """A block of images. Micro-batches have two sizes at most, and each has kernels of its own."""
    torch._dynamo.mark_static(x)
    return compiled(x, **rest)


def _with_any_length(
    compiled: Callable[..., Tensor],
    x: Tensor,
    *,
    packed: PackedCaptions | None = None,
    **rest: object,
) -> Tensor:
    """A block of captions. Their length, or their sum where they are packed, is a variable."""
    if packed is None:
        lengths = [(x, 1)]
    else:
        of_tokens = (packed.token_N, packed.position_N, packed.padded_index_N)
        lengths = [(tensor, 0) for tensor in (x, *of_tokens)]
    for tensor, dim in lengths:
        torch._dynamo.maybe_mark_dynamic(tensor, dim)
    return compiled(x, packed=packed, **rest)


def _blocks(model: AnyModel) -> Iterator[nn.Module]:
    if isinstance(model, OpenClipModel):
        yield from model.blocks()
    else:
        yield from (*model.visual.blocks, *model.text.blocks)


# --- tensor parallelism ---------------------------------------------------------------------------


class _LocalLayer(NamedTuple):
    """What a layer's own `forward` reads of the layer: this rank's part."""

    weight: Tensor
    bias: Tensor
    head_width: int


def apply_tp(model: CLIP, mesh: Any) -> None:
    """Split every block over the ranks of a one-dimensional mesh."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for block in _blocks(model):
        for name, dim in SPLIT.items():
            layer = getattr(block, name)
            placements = {"weight": Shard(dim), "bias": Shard(0) if dim == 0 else Replicate()}
            for part, placement in placements.items():
                # Every rank has the same numbers: nothing has to be sent (src_data_rank=None).
                whole = getattr(layer, part).detach()
                split = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
                setattr(layer, part, nn.Parameter(split))
            forward = _column_parallel if dim == 0 else _row_parallel
            layer.forward = functools.partial(forward, layer, mesh)


def _column_parallel(layer: Any, mesh: Any, h: Tensor, **rest: Any) -> Any:
    """This rank's output channels. h is whole; its gradient is summed over the ranks."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    h = DTensor.from_local(h, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
    weight, bias = layer.weight.to_local(), layer.bias.to_local()
    local_layer = _LocalLayer(weight, bias, getattr(layer, "head_width", 0))
    return type(layer).forward(local_layer, h, **rest)


def _row_parallel(layer: Any, mesh: Any, h: Tensor) -> Tensor:
    """All output channels from this rank's input channels: products are summed, then the bias."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    product = DTensor.from_local(F.linear(h, layer.weight.to_local()), mesh, [Partial()])
    whole: Tensor = product.redistribute(placements=[Replicate()]).to_local()
    bias: Tensor = layer.bias.to_local()
    return whole + bias.to(whole.dtype)


# --- recomputation --------------------------------------------------------------------------------


def apply_activation_checkpointing(block: nn.Module, *, selective: bool) -> None:
    """Recompute the block in backward; `selective` saves the results of matrix products and
    attention.

    No state of a random generator is saved for our blocks: patch dropout is a function of a
    sample's position.
    """
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    draws = not isinstance(block, Block)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    if selective:
        options["context_fn"] = functools.partial(
            create_selective_checkpoint_contexts, _saved_operations()
        )
    block.forward = functools.partial(checkpoint, block.forward, **options)  # type: ignore[method-assign]


def _saved_operations() -> list[Any]:
    """Operations that cost more to repeat than their results take to keep; those that this torch
    has.
    """
    names = [(torch.ops.aten, name) for name in ("mm", "addmm", "bmm")]
    for kind in ("flash", "efficient", "cudnn"):
        names.append((torch.ops.aten, f"_scaled_dot_product_{kind}_attention"))
    names.append((torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"))
    names.append((torch.ops.torch_attn, "_varlen_attn"))
    names.append((torch.ops.flash_attn, "_flash_attn_forward"))
    names.append((torch.ops.flash_attn, "_flash_attn_varlen_forward"))
    known = [getattr(space, name).default for space, name in names if hasattr(space, name)]
    return [*known, torch.ops._c10d_functional.all_reduce.default]


# --- FSDP2 ----------------------------------------------------------------------------------------


def apply_fsdp(model: AnyModel, ranks: Ranks, config: TrainConfig) -> None:
    """Shard parameters, gradients and optimizer state over dp_shard, one block at a time.

    The logit scale and bias stay whole and in fp32: they have no dimension to shard, and 16 bits
    would round the temperature to three digits. Their gradients are all-reduced by a hook.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = ("dp_replicate", "dp_shard") if ranks.dp_replicate > 1 else ("dp_shard",)
    options: dict[str, Any] = {"mesh": ranks.mesh[names]}
    if config.precision == "bf16" and isinstance(model, CLIP):
        # Autocast casts the inputs of layers; a cast here would also round the residual stream.
        options["mp_policy"] = MixedPrecisionPolicy(
            torch.bfloat16, torch.float32, cast_forward_inputs=False
        )
    scalars = [p for p in (model.logit_scale, model.logit_bias) if p is not None]
    for scalar in scalars:
        scalar.data = scalar.data.to(ranks.device)
        hook = functools.partial(_average_gradient, ranks.data_parallel)
        scalar.register_post_accumulate_grad_hook(hook)
    for block in _blocks(model):
        fully_shard(block, **options)
    if config.precision == "bf16":  # embeddings stay in fp32, as under autocast without sharding
        options["mp_policy"] = MixedPrecisionPolicy(None, torch.float32, cast_forward_inputs=False)
    fully_shard(model, ignored_params=set(scalars), **options)


def _average_gradient(data_parallel: DataParallel, scalar: Tensor) -> None:
    """Average the gradient of a scalar. It arrives once in a step, also with micro-batches."""
    assert scalar.grad is not None
    dist.all_reduce(scalar.grad, group=data_parallel.group)
    scalar.grad /= data_parallel.world
