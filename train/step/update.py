"""From gradients to new weights: norm, precision, optimizers, schedules."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from train.config import TrainConfig
from train.model.clip import CLIP

# --------------------------------------------------------------------------------------------------
# The norm of gradients that are plain tensors or DTensors on several meshes.


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


# --------------------------------------------------------------------------------------------------
# Parameters in groups of one optimizer and weight decay, and the optimizers: AdamW and Muon.


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters with the same optimizer and weight decay."""

    optimizer: str
    weight_decay: float
    names: list[str]
    numbers: int  # elements of all of them together

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        about = f"{self.optimizer}, weight decay {self.weight_decay:g}"
        return f"{about}: {len(self.names)} tensors, {self.numbers:,} numbers ({shown})"


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[ParameterGroup]:
    """The groups of a model's parameters, for the log: by optimizer and weight decay."""
    groups: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        decay = config.weight_decay if decays(name, parameter, config) else 0.0
        kind = "Muon" if steps_by_muon(name, parameter, config) else "AdamW"
        if not parameter.requires_grad:
            kind, decay = "locked", 0.0
        groups.setdefault((kind, decay), []).append((name, parameter))
    return [
        ParameterGroup(
            optimizer=kind,
            weight_decay=decay,
            names=[n for n, _ in rest],
            numbers=sum(p.numel() for _, p in rest),
        )
        for (kind, decay), rest in groups.items()
    ]


def decays(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Whether weight decay applies: never to biases, norms and the logit scale.

    Positional and class embeddings go by convention. open_clip_main: they do not decay. open_clip
    (its releases up to 3.3): only tensors of less than two dimensions do not decay, so positional
    embeddings do.
    """
    spared = "positional_embedding" in name or "class_embedding" in name
    return parameter.ndim >= 2 and not (spared and config.decay_groups == "open_clip_main")


def steps_by_muon(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Whether Muon steps a parameter: the matrices of the blocks. AdamW steps all others."""
    return config.optimizer == "muon" and ".blocks." in name and parameter.ndim == 2


def build_optimizers(
    groups: Mapping[tuple[bool, bool, Any], list[Tensor]], config: TrainConfig
) -> list[torch.optim.Optimizer]:
    """Fused AdamW and, where it has matrices, Muon."""
    _skip_compiler()
    adamw: list[dict[str, Any]] = []
    muon: list[dict[str, Any]] = []
    for (by_muon, decay, _), tensors in groups.items():
        group = {"params": tensors, "weight_decay": config.weight_decay if decay else 0.0}
        (muon if by_muon else adamw).append(group)
    betas = (config.beta1, config.beta2)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(adamw, lr=config.lr, betas=betas, eps=config.eps, fused=True)
    ]
    if muon:
        kind: Callable[..., torch.optim.Optimizer] | None = getattr(torch.optim, "Muon", None)
        if kind is None:
            raise ValueError(
                f"optimizer is muon, but torch {torch.__version__} has none; "
                "install torch 2.9 or later"
            )
        optimizers.append(kind(muon, lr=config.lr, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def _skip_compiler() -> None:
    """Let optimizers be made without torch._dynamo, which torch imports to keep the compiler out of
    `add_param_group`: 1.5 s of CPU in every process. No optimizer is compiled here.

    Where torch does this in another way, it imports the module as before.
    """
    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and not hasattr(function, "__dynamo_disable"):
        function.__dynamo_disable = function


def step_eagerly(optimizer: torch.optim.Optimizer, skip: Tensor | None = None) -> None:
    """`optimizer.step()` without its decorators, which import torch._dynamo too, for profilers,
    hooks and differentiable steps.

    Where `skip` is 1 fused AdamW changes nothing. It reads that from the attribute in which torch's
    GradScaler leaves it.
    """
    step: Callable[[torch.optim.Optimizer], Any] = inspect.unwrap(type(optimizer).step)
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    with torch.no_grad():
        step(optimizer)


# --------------------------------------------------------------------------------------------------
# Precision of a step: autocast, tf32, and the loss scale of fp16.
#
# Precisions: fp32; tf32 (matrix products with 10 bits of mantissa); bf16 and fp16 (autocast over
# fp32 weights, fp16 with a scaled loss); bf16_o2 (NVIDIA's O2: weights and gradients of 16 bits,
# and fp32 masters that the optimizer steps).


# Steps in a row that fp16 may skip. A gradient that still overflows with 2^-20 of the loss scale is
# infinite by itself.
OVERFLOWS = 20


def precision_context(config: TrainConfig, device: torch.device) -> torch.autocast:
    """The autocast around a forward pass."""
    half = torch.float16 if config.precision == "fp16" else torch.bfloat16
    enabled = config.precision not in ("fp32", "tf32")
    # Selective recomputation counts operations; autocast's cache would skip casts of the second
    # group of captions.
    cache = config.recompute != "selective"
    return torch.autocast(device.type, half, enabled=enabled, cache_enabled=cache)


@contextlib.contextmanager
def matmul_precision(config: TrainConfig) -> Iterator[None]:
    """Products of fp32 matrices in tf32 while the block runs, where the settings say so."""
    if config.precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(slots=True, kw_only=True)
class Scaler:
    """The factor on the loss that keeps small gradients above fp16's smallest number.

    The rule is that of torch's GradScaler: the factor halves where a gradient overflowed, whose
    step is skipped, and doubles after 2,000 good steps. An overflow shows in the norm of all
    gradients, which is equal on all ranks; GradScaler would look at a rank's part of a DTensor.
    """

    scale: float = 65536.0
    good: int = 0  # steps without overflow since the factor changed
    skipped: int = 0  # steps of the run
    in_a_row: int = 0  # skipped steps since the last good one

    def record(self, finite: bool) -> None:
        """Count a step and adapt the factor."""
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
            return
        self.good, self.in_a_row = self.good + 1, 0
        if self.good == 2000:
            self.scale, self.good = self.scale * 2, 0


# --------------------------------------------------------------------------------------------------
# Schedules: the learning rate of every step, and what weight decay alone leaves of a weight.


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of step 0, 1, …: a linear rise over the warm-up, then the schedule.

    - cosine: half a cosine from `lr` to 0.
    - constant: `lr`.
    - constant_cooldown: `lr`; over the last `cooldown` steps it falls to `cooldown_end_lr` as
      the power `cooldown_power` of the steps that are left (1: a straight line).
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "constant_cooldown":
        left = min(1.0, (config.steps - step) / config.cooldown)
        share: float = left**config.cooldown_power
        return config.cooldown_end_lr + (config.lr - config.cooldown_end_lr) * share
    done = (step - config.warmup) / (config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def decay_factor(config: TrainConfig, steps: int) -> float:
    """What weight decay leaves of a weight of 1 without gradient after the first `steps` steps."""
    factor = 1.0
    for step in range(steps):
        factor *= 1 - learning_rate(config, step) * config.weight_decay
    return factor


# --------------------------------------------------------------------------------------------------
# From gradients to new weights: clipping, the optimizers, fp32 masters, the moving average.
#
# `Update` holds everything that a run keeps beside its weights (moments, fp32 masters, the loss
# scale, the average). It gives and takes that state by parameter name, in the shape of the
# parameter. Parameters may be plain tensors or DTensors on several meshes; elementwise operations
# work on a rank's own part.
#
# Shapes: H heads, D channels of a head, C channels of a tower.


State = dict[str, dict[str, Tensor]]  # parameter -> name -> tensor
SCALER = "scaler"  # the key of the loss scale in a State; no parameter has this name


@dataclass(slots=True, kw_only=True)
class _SteppedParameter:
    """A parameter and what the optimizers step for it: itself, its fp32 master, or its parts.

    Muon steps fused queries, keys and values (rows [H, 3, D]) as three matrices, so that each of
    them is orthogonal by itself.
    """

    parameter: nn.Parameter
    heads: int = 0  # above 0: rows are [H, 3, D], stepped as three matrices
    tensors: list[Tensor] = field(default_factory=list)

    @property
    def is_itself(self) -> bool:
        return self.tensors[0] is self.parameter

    def split(self, x: Tensor) -> list[Tensor]:
        """A tensor of the parameter's shape as the parts that are stepped."""
        if not self.heads:
            return [x]
        parts_H3DC = x.reshape(self.heads, 3, -1, x.shape[-1])
        return [parts_H3DC[:, k].reshape(-1, x.shape[-1]) for k in range(3)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`; of scalars the first."""
        if not self.heads or parts[0].ndim < 2:
            return parts[0]
        stacked = torch.stack([part.view(self.heads, -1, part.shape[-1]) for part in parts], dim=1)
        return stacked.reshape(-1, parts[0].shape[-1])

    def master(self) -> Tensor:
        """The weights in the precision that is stepped."""
        return self.join(self.tensors)

    @torch.no_grad()
    def refresh(self, weights: Tensor) -> None:
        """Set what is stepped to `weights`."""
        if not self.is_itself:
            for tensor, part in zip(self.tensors, self.split(weights), strict=True):
                tensor.copy_(part)


class Update:
    """The optimizer step of a model: scale the loss, take the norm, then step or skip.

    Make it after FSDP2 or tensor parallelism have replaced the parameters, and before DDP wraps the
    model, since bf16_o2 casts the weights (all but the logit scale and bias). `masters=False` is
    for FSDP2's mixed precision, which keeps the fp32 weights itself.

    Muon is approximate by design: five Newton-Schulz iterations in bf16 leave singular values
    between 0.5 and 1.5. Its rate is matched to the root mean square of AdamW's steps, so `lr` and
    `weight_decay` mean the same for both.
    """

    def __init__(self, model: CLIP, config: TrainConfig, *, masters: bool = True) -> None:
        self.model, self.config = model, config
        self.scaler = Scaler() if config.precision == "fp16" else None
        self.stepped: dict[str, _SteppedParameter] = {}
        # One group for each mesh: fused AdamW takes no mixture.
        groups: dict[tuple[bool, bool, Any], list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # of a locked tower: it stays as it is
                continue
            muon = steps_by_muon(name, parameter, config)
            if muon and mesh_of(parameter) is not None:
                raise ValueError(
                    "optimizer is muon, which needs whole matrices, "
                    "but they are sharded; set it to adamw"
                )
            is_array = parameter.ndim > 0 and parameter.numel() > 1
            master = masters and config.precision == "bf16_o2" and is_array
            entry = _SteppedParameter(parameter=parameter, heads=_heads(name, model) if muon else 0)
            entry.tensors = [parameter]
            if master or entry.heads:
                entry.tensors = [x.clone().float() for x in entry.split(parameter.detach())]
            if master:
                parameter.data = parameter.data.bfloat16()
            self.stepped[name] = entry
            key = (muon, decays(name, parameter, config), mesh_of(parameter))
            groups.setdefault(key, []).extend(entry.tensors)
        self.optimizers = build_optimizers(groups, config)
        self._optimizer_of: dict[int, torch.optim.Optimizer] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    self._optimizer_of[id(tensor)] = optimizer
        self.average: dict[str, Tensor] = {}
        if config.ema is not None:
            for name, entry in self.stepped.items():
                self.average[name] = entry.master().detach().clone()

    def loss_scale(self) -> float:
        """The factor on the loss."""
        return 1.0 if self.scaler is None else self.scaler.scale

    def grad_norm(self) -> Tensor:
        """The norm of the gradients of the loss itself."""
        norm = total_norm(self._grads())
        return norm if self.scaler is None else norm / self.scaler.scale

    def may_skip(self) -> bool:
        """Whether non-finite gradients may be an overflow of fp16: not too many steps in a row."""
        return self.scaler is not None and self.scaler.in_a_row < OVERFLOWS

    def skip(self) -> None:
        """Leave the weights as they are; the next loss is scaled by half as much."""
        assert self.scaler is not None
        self.scaler.record(finite=False)
        self._clear()

    @property
    def skips_on_device(self) -> bool:
        """Whether `step` can skip by a flag on the device: AdamW can, Muon cannot.

        With fp16 the host decides, because a skipped step also changes the scale of the next loss.
        The flag lies on the model's device, and offloaded parameters do not.
        """
        only_adamw = len(self.optimizers) == 1
        return only_adamw and self.scaler is None and not self.config.cpu_offload

    @torch.no_grad()
    def step(self, step: int, lr: float, norm: Tensor, skip: Tensor | None = None) -> None:
        """Step number `step` (from 0) with gradients of norm `norm`, which are then removed.

        `skip` (fp32, no dimensions, on the device) is 1 where parameters and moments shall stay as
        they are, else 0; it needs `skips_on_device`.
        """
        assert skip is None or self.skips_on_device
        factor: Tensor | float | None = None
        if self.config.grad_clip is not None:
            factor = (self.config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        if self.scaler is not None:
            factor = (1.0 if factor is None else factor) / self.scaler.scale
            self.scaler.record(finite=True)
        if factor is not None:
            grads = [local_part(grad) for grad in self._grads()]
            # Two devices where FSDP2 offloads its shards.
            for device in {grad.device for grad in grads}:
                factor_there = factor.to(device) if isinstance(factor, Tensor) else factor
                torch._foreach_mul_([g for g in grads if g.device == device], factor_there)
        for entry in self.stepped.values():
            if not entry.is_itself and entry.parameter.grad is not None:
                for tensor, grad in zip(
                    entry.tensors, entry.split(entry.parameter.grad), strict=True
                ):
                    tensor.grad = grad.float()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            step_eagerly(optimizer, skip)
        for entry in self.stepped.values():
            if not entry.is_itself:
                entry.parameter.copy_(entry.master())
        self._clear()
        local_part(self.model.logit_scale).clamp_(0, self.config.logit_scale_max)
        if self.config.ema is not None:
            self._update_average(step, self.config.ema)

    def _update_average(self, step: int, decay: float) -> None:
        """Move the average towards the weights; by more at first, to forget the start."""
        keep = min(decay, (1 + step) / (10 + step))
        averages = [local_part(average) for average in self.average.values()]
        weights = [local_part(self.stepped[name].master()) for name in self.average]
        torch._foreach_lerp_(averages, weights, 1 - keep)

    def log_values(self) -> dict[str, float]:
        """For the log: with fp16 the loss scale and the number of skipped steps."""
        if self.scaler is None:
            return {}
        return {"loss_scale": self.scaler.scale, "skipped": self.scaler.skipped}

    def _grads(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _clear(self) -> None:
        for entry in self.stepped.values():
            for tensor in (entry.parameter, *entry.tensors):
                tensor.grad = None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its average, or its fp32 weights, while the block runs."""
        kept: list[tuple[nn.Parameter, Tensor]] = []
        try:
            for name, entry in self.stepped.items():
                parameter = entry.parameter
                better = self.average.get(name, entry.master()).detach()
                if parameter.dtype != better.dtype:
                    kept.append((parameter, parameter.data))
                    parameter.data = better
                elif name in self.average:
                    # In place: FSDP2 refers to this memory.
                    kept.append((parameter, parameter.detach().clone()))
                    local_part(parameter).copy_(local_part(better))
            yield
        finally:
            for parameter, before in kept:
                if parameter.dtype == before.dtype:
                    local_part(parameter).copy_(local_part(before))
                else:
                    parameter.data = before

    def state(self) -> State:
        """By parameter name: moments, `master` for 16-bit weights, `ema`; and the loss scale."""
        state: State = {}
        for name, entry in self.stepped.items():
            parts = [self._optimizer_of[id(tensor)].state[tensor] for tensor in entry.tensors]
            state[name] = {key: entry.join([part[key] for part in parts]) for key in parts[0]}
            if entry.parameter.dtype != entry.tensors[0].dtype:
                state[name]["master"] = entry.master()
            if name in self.average:
                state[name]["ema"] = self.average[name]
        if self.scaler is not None:
            numbers = [
                self.scaler.scale,
                self.scaler.good,
                self.scaler.skipped,
                self.scaler.in_a_row,
            ]
            state[SCALER] = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put the state back. The model has its weights already; missing parts start from them."""
        for name, entry in self.stepped.items():
            parts = {key: x.to(entry.parameter.device) for key, x in state[name].items()}
            entry.refresh(parts.pop("master", entry.parameter))
            average = parts.pop("ema", None)
            if name in self.average:
                self.average[name].copy_(entry.master() if average is None else average)
            split = {
                key: entry.split(x) if entry.heads and x.ndim > 1 else [x]
                for key, x in parts.items()
            }
            for k, tensor in enumerate(entry.tensors):
                self._optimizer_of[id(tensor)].state[tensor] = {
                    key: tensors[k] for key, tensors in split.items()
                }
        if self.scaler is not None and SCALER in state:
            scale, *counts = state[SCALER]["numbers"].tolist()
            self.scaler.scale = scale
            self.scaler.good, self.scaler.skipped, self.scaler.in_a_row = (
                int(count) for count in counts
            )


def _heads(name: str, model: CLIP) -> int:
    """Heads of a fused matrix of queries, keys and values; 0 for another parameter."""
    if not name.endswith("qkv.weight"):
        return 0
    return model.config.vision_heads if name.startswith("visual.") else model.config.text_heads
