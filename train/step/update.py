"""From gradients to new weights: norm, precision, optimizer, schedules."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from clipmill.train.config import TrainConfig
from clipmill.train.model.open_clip_model import AnyModel

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
# Parameters in groups of one weight decay, and the optimizer, AdamW.


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters with the same weight decay."""

    optimizer: str  # AdamW, or locked: none
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
        kind = "AdamW"
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


# Positional and class embeddings, by our name, open_clip's and timm's.
EMBEDDINGS = ("positional_embedding", "class_embedding", "pos_embed", "cls_token")


def decays(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Whether weight decay applies: never to biases (a table of them too), norms and the logit
    scale.

    Positional and class embeddings go by convention. open_clip_main: they do not decay. open_clip
    (its releases up to 3.3): only tensors of less than two dimensions do not decay, so positional
    embeddings do.
    """
    if parameter.ndim < 2 or any(part in name for part in ("bias", "bn", "ln")):
        return False
    spared = any(part in name for part in EMBEDDINGS)
    return not (spared and config.decay_groups == "open_clip_main")


def build_optimizer(
    groups: Mapping[tuple[bool, object], list[Tensor]], config: TrainConfig
) -> torch.optim.Optimizer:
    """Fused AdamW of parameters by (whether they decay, their mesh)."""
    _skip_compiler()
    adamw = [
        {"params": tensors, "weight_decay": config.weight_decay if decay else 0.0}
        for (decay, _), tensors in groups.items()
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(adamw, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def _skip_compiler() -> None:
    """Let an optimizer be made without torch._dynamo, which torch imports to keep the compiler out
    of `add_param_group`: 1.5 s of CPU in every process. No optimizer is compiled here.

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
    step: Callable[[torch.optim.Optimizer], object] = inspect.unwrap(type(optimizer).step)
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    with torch.no_grad():
        step(optimizer)


# --------------------------------------------------------------------------------------------------
# Precision of a step: autocast, tf32, and the loss scale of fp16.
#
# Precisions: fp32; tf32 (matrix products with 10 bits of mantissa); bf16 and fp16 (autocast over
# fp32 weights, fp16 with a scaled loss).


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
# From gradients to new weights: clipping and the optimizer.
#
# `Update` holds everything that a run keeps beside its weights (moments, the loss scale). It gives
# and takes that state by parameter name, in the shape of the parameter. Parameters may be plain
# tensors or DTensors on several meshes; elementwise operations work on a rank's own part.


State = dict[str, dict[str, Tensor]]  # parameter -> name -> tensor
LOGIT_SCALE_MAX = math.log(100)  # as in open_clip: the factor on the logits stays below 100
SCALER = "scaler"  # the key of the loss scale in a State; no parameter has this name


class Update:
    """The optimizer step of a model: scale the loss, take the norm, then step or skip.

    Make it after FSDP2 or tensor parallelism have replaced the parameters.
    """

    def __init__(self, model: AnyModel, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self.scaler = Scaler() if config.precision == "fp16" else None
        # A locked parameter stays as it is.
        self.stepped = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # One group for each mesh: fused AdamW takes no mixture.
        groups: dict[tuple[bool, Any], list[Tensor]] = {}
        for name, parameter in self.stepped.items():
            key = (decays(name, parameter, config), mesh_of(parameter))
            groups.setdefault(key, []).append(parameter)
        self.optimizer = build_optimizer(groups, config)

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
        """Whether `step` can skip by a flag on the device.

        With fp16 the host decides, because a skipped step also changes the scale of the next loss.
        """
        return self.scaler is None

    @torch.no_grad()
    def step(self, lr: float, norm: Tensor, skip: Tensor | None = None) -> None:
        """A step with gradients of norm `norm`, which are then removed.

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
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        step_eagerly(self.optimizer, skip)
        self._clear()
        local_part(self.model.logit_scale).clamp_(0, LOGIT_SCALE_MAX)

    def log_values(self) -> dict[str, float]:
        """For the log: with fp16 the loss scale and the number of skipped steps."""
        if self.scaler is None:
            return {}
        return {"loss_scale": self.scaler.scale, "skipped": self.scaler.skipped}

    def _grads(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _clear(self) -> None:
        for parameter in self.stepped.values():
            parameter.grad = None

    def state(self) -> State:
        """By parameter name the moments; and the loss scale."""
        state: State = {}
        for name, parameter in self.stepped.items():
            state[name] = dict(self.optimizer.state[parameter])
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
        """Put the state back. The model has its weights already."""
        for name, parameter in self.stepped.items():
            parts = {key: x.to(parameter.device) for key, x in state[name].items()}
            self.optimizer.state[parameter] = parts
        if self.scaler is not None and SCALER in state:
            scale, *counts = state[SCALER]["numbers"].tolist()
            self.scaler.scale = scale
            self.scaler.good, self.scaler.skipped, self.scaler.in_a_row = (
                int(count) for count in counts
            )
