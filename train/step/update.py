"""From gradients to new weights: AdamW or Muon, groups of weight decay, schedules, clipping, precision, averaging.

`Update` holds all that a run keeps beside its weights (moments, fp32 masters, the loss scale, the average) and hands it
out and takes it back by parameter name, in the parameter's own shape. Parameters may be plain tensors or DTensors on
several meshes; what is elementwise works on a rank's own part, and a norm is summed over the meshes by hand.

Precisions: fp32; tf32 (products of matrices with 10 bits of mantissa); bf16 and fp16 (autocast over fp32 weights, fp16
with a scaled loss); bf16_o2 (NVIDIA's O2: weights and gradients of 16 bits, fp32 masters that the optimizer steps).

Shapes: H heads, D channels of a head, C channels of a tower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from train.config import TrainConfig
from train.model import CLIP

State = dict[str, dict[str, Tensor]]  # parameter -> name -> tensor
SCALER = "scaler"  # the key of the loss scale in a State; no parameter has this name
OVERFLOWS = 20  # steps in a row that fp16 may skip: 2^-20 of a loss scale that still overflows is no overflow


# --- settings as functions -------------------------------------------------------------------------------------------


def precision_context(config: TrainConfig, device: torch.device) -> torch.autocast:
    """What surrounds a forward pass."""
    half = torch.float16 if config.precision == "fp16" else torch.bfloat16
    enabled = config.precision not in ("fp32", "tf32")
    # Selective recomputation counts operations: a weight's cast that a second group of captions finds done misleads it.
    return torch.autocast(
        device.type, half, enabled=enabled, cache_enabled=config.recompute != "selective"
    )


@contextlib.contextmanager
def matmul_precision(config: TrainConfig) -> Iterator[None]:
    """What surrounds a run: for tf32 the products of fp32 matrices are allowed to be that; put back afterwards."""
    if config.precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that are stepped alike."""

    optimizer: str
    weight_decay: float
    names: list[str]
    numbers: int  # in all of them together

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        about = f"{self.optimizer}, weight decay {self.weight_decay:g}"
        return f"{about}: {len(self.names)} tensors, {self.numbers:,} numbers ({shown})"


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[ParameterGroup]:
    """The groups of a model's parameters, for the log: by optimizer and by whether they decay."""
    found: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        decay = config.weight_decay if decays(name, parameter, config) else 0.0
        kind = "Muon" if _by_muon(name, parameter, config) else "AdamW"
        found.setdefault((kind, decay), []).append((name, parameter))
    return [
        ParameterGroup(
            optimizer=kind,
            weight_decay=decay,
            names=[n for n, _ in rest],
            numbers=sum(p.numel() for _, p in rest),
        )
        for (kind, decay), rest in found.items()
    ]


def decays(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Whether weight decay applies. Biases, norms and the logit scale never do; tables of positions by convention.

    open_clip_main: positional and class embeddings do not. open_clip: its releases to 3.3, where only tensors of less
    than two dimensions are spared (and names of norms and biases, which have one), so positions decay.
    """
    spared = "positional_embedding" in name or "class_embedding" in name
    return parameter.ndim >= 2 and not (spared and config.decay_groups == "open_clip_main")


def _by_muon(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    """Muon steps the matrices of the blocks; AdamW the embeddings, projections and all that is no matrix."""
    return config.optimizer == "muon" and ".blocks." in name and parameter.ndim == 2


# --- the norm of gradients on any meshes -----------------------------------------------------------------------------


def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """The norm of all gradients together, the same on every rank.

    Plain tensors count as they are, with no communication: they are alike on all ranks. Of DTensors each rank squares
    and sums its own part, and one number per mesh and way of sharding is summed over the dimensions that are sharded.
    """
    plain = [grad for grad in grads if _mesh(grad) is None]
    if len(plain) == len(grads):
        return _norm(plain)
    buckets: dict[tuple[Any, tuple[int, ...]], list[Tensor]] = {}
    for grad in grads:
        if (mesh := _mesh(grad)) is not None:
            if any(place.is_partial() for place in grad.placements):  # type: ignore[attr-defined]
                raise ValueError(
                    "a gradient is still a partial sum over a mesh; reduce it before its norm is taken"
                )
            placements = grad.placements  # type: ignore[attr-defined]
            sharded = tuple(k for k, place in enumerate(placements) if not place.is_replicate())
            buckets.setdefault((mesh, sharded), []).append(_local(grad))
    squares = [_norm(plain).square()] if plain else []
    for (mesh, sharded), parts in buckets.items():
        square = _norm(parts).square()
        for k in sharded:
            dist.all_reduce(square, group=mesh.get_group(k))
        squares.append(square)
    return torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()


def _norm(parts: Sequence[Tensor]) -> Tensor:
    """The norm of tensors on this rank; of numbers of 16 bits in 32."""
    if all(part.dtype in (torch.float32, torch.float64) for part in parts):
        return get_total_norm(parts)
    norms: list[Tensor] = list(torch._foreach_norm(list(parts), 2, torch.float32))
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _mesh(x: Tensor) -> Any:
    """The mesh of a DTensor, None for a plain tensor."""
    return getattr(x, "device_mesh", None)


@torch.no_grad()
def _local(x: Tensor) -> Tensor:
    """This rank's part, in the same memory."""
    return x.detach() if _mesh(x) is None else x.detach().to_local()  # type: ignore[attr-defined]


# --- the loss scale of fp16 ------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Scaler:
    """The factor on the loss that keeps small gradients above fp16's smallest number, with torch's GradScaler's rule.

    It halves where a gradient overflowed, whose step is skipped, and doubles after 2,000 good steps. The judgement is
    the norm of all gradients, which every rank knows alike; GradScaler's own would be of a rank's part of a DTensor.
    """

    scale: float = 65536.0
    good: int = 0  # steps since it changed
    skipped: int = 0  # steps of the run
    in_a_row: int = 0

    def saw(self, finite: bool) -> None:
        """Take note of a step."""
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
            return
        self.good, self.in_a_row = self.good + 1, 0
        if self.good == 2000:
            self.scale, self.good = self.scale * 2, 0


# --- the update ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _SteppedParameter:
    """A parameter and what the optimizers step in its place: itself, its fp32 master, or its parts for Muon.

    Fused queries, keys and values (rows [H, 3, D]) are three matrices to Muon, so that each is orthogonal by itself.
    """

    parameter: nn.Parameter
    heads: int = 0  # above 0: rows are [H, 3, D] and are stepped as three
    tensors: list[Tensor] = field(default_factory=list)

    @property
    def itself(self) -> bool:
        return self.tensors[0] is self.parameter

    def split(self, x: Tensor) -> list[Tensor]:
        """A tensor of the parameter's shape as the parts that are stepped."""
        if not self.heads:
            return [x]
        parts_H3DC = x.reshape(self.heads, 3, -1, x.shape[-1])
        return [parts_H3DC[:, k].reshape(-1, x.shape[-1]) for k in range(3)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """`split` undone; of a number that has no rows the first."""
        if not self.heads or parts[0].ndim < 2:
            return parts[0]
        stacked = torch.stack([part.view(self.heads, -1, part.shape[-1]) for part in parts], dim=1)
        return stacked.reshape(-1, parts[0].shape[-1])

    def master(self) -> Tensor:
        """The weights in the precision that is stepped."""
        return self.join(self.tensors)

    @torch.no_grad()
    def refresh(self, weights: Tensor) -> None:
        """Make what is stepped equal to `weights`."""
        if not self.itself:
            for tensor, part in zip(self.tensors, self.split(weights), strict=True):
                tensor.copy_(part)


class Update:
    """The optimizer step of a model: `scale` the loss, take the `norm`, then `step` or `skip`.

    Made before the model is wrapped in DDP, since bf16_o2 casts the weights (all but the logit scale and bias), and
    after FSDP2 or tensor parallelism have replaced the parameters. `masters=False` where FSDP2's mixed precision keeps
    the fp32 weights. Muon is approximate by design: five Newton-Schulz iterations in bf16 leave singular values between
    0.5 and 1.5; its rate is matched to AdamW's root mean square, so `lr` and `weight_decay` mean the same for both.
    """

    def __init__(self, model: CLIP, config: TrainConfig, *, masters: bool = True) -> None:
        self.model, self.config = model, config
        self.scaler = Scaler() if config.precision == "fp16" else None
        self.stepped: dict[str, _SteppedParameter] = {}
        groups: dict[
            tuple[bool, bool, Any], list[Tensor]
        ] = {}  # one per mesh: fused AdamW takes no mixture
        for name, parameter in model.named_parameters():
            muon = _by_muon(name, parameter, config)
            if muon and _mesh(parameter) is not None:
                raise ValueError(
                    "optimizer is muon, which needs whole matrices, but they are sharded; set it to adamw"
                )
            master = (
                masters
                and config.precision == "bf16_o2"
                and parameter.ndim > 0
                and parameter.numel() > 1
            )
            stand = _SteppedParameter(parameter=parameter, heads=_heads(name, model) if muon else 0)
            stand.tensors = [parameter]
            if master or stand.heads:
                stand.tensors = [x.clone().float() for x in stand.split(parameter.detach())]
            if master:
                parameter.data = parameter.data.bfloat16()
            self.stepped[name] = stand
            key = (muon, decays(name, parameter, config), _mesh(parameter))
            groups.setdefault(key, []).extend(stand.tensors)
        self.optimizers = _optimizers(groups, config)
        self._owner = {
            id(p): o for o in self.optimizers for group in o.param_groups for p in group["params"]
        }
        self.average: dict[str, Tensor] = {}
        if config.ema is not None:
            self.average = {
                name: stand.master().detach().clone() for name, stand in self.stepped.items()
            }

    def loss_scale(self) -> float:
        """The factor on the loss."""
        return 1.0 if self.scaler is None else self.scaler.scale

    def grad_norm(self) -> Tensor:
        """The norm of the gradients of the loss itself."""
        norm = total_norm(self._grads())
        return norm if self.scaler is None else norm / self.scaler.scale

    def may_skip(self) -> bool:
        """Whether gradients that are no numbers are an overflow of fp16, and not yet too many of them in a row."""
        return self.scaler is not None and self.scaler.in_a_row < OVERFLOWS

    def skip(self) -> None:
        """Leave the weights; the next loss is scaled by half as much."""
        assert self.scaler is not None
        self.scaler.saw(finite=False)
        self._clear()

    @torch.no_grad()
    def step(self, step: int, lr: float, norm: Tensor) -> None:
        """Step number `step` (the first is 0) with the gradients that have `norm`; then they are gone."""
        factor: Tensor | float | None = None
        if self.config.grad_clip is not None:
            factor = (self.config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        if self.scaler is not None:
            factor = (1.0 if factor is None else factor) / self.scaler.scale
            self.scaler.saw(finite=True)
        if factor is not None:
            grads = [_local(grad) for grad in self._grads()]
            for device in {grad.device for grad in grads}:  # two where FSDP2 offloads its shards
                there = factor.to(device) if isinstance(factor, Tensor) else factor
                torch._foreach_mul_([grad for grad in grads if grad.device == device], there)
        for stand in self.stepped.values():
            if not stand.itself and stand.parameter.grad is not None:
                for tensor, grad in zip(
                    stand.tensors, stand.split(stand.parameter.grad), strict=True
                ):
                    tensor.grad = grad.float()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        for stand in self.stepped.values():
            if not stand.itself:
                stand.parameter.copy_(stand.master())
        self._clear()
        _local(self.model.logit_scale).clamp_(0, self.config.logit_scale_max)
        if self.config.ema is not None:
            self._follow(step, self.config.ema)

    def _follow(self, step: int, decay: float) -> None:
        """Move the average towards the weights; at first by more, so that the start is forgotten."""
        keep = min(decay, (1 + step) / (10 + step))
        ours = [_local(average) for average in self.average.values()]
        theirs = [_local(self.stepped[name].master()) for name in self.average]
        torch._foreach_lerp_(ours, theirs, 1 - keep)

    def log_values(self) -> dict[str, float]:
        """For the log: with fp16 the loss scale and how many steps were skipped."""
        return (
            {}
            if self.scaler is None
            else {"loss_scale": self.scaler.scale, "skipped": self.scaler.skipped}
        )

    def _grads(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _clear(self) -> None:
        for stand in self.stepped.values():
            for tensor in (stand.parameter, *stand.tensors):
                tensor.grad = None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its best weights while the block runs: the average where there is one, else in fp32."""
        kept: list[tuple[nn.Parameter, Tensor]] = []
        try:
            for name, stand in self.stepped.items():
                parameter, better = stand.parameter, self.average.get(name, stand.master()).detach()
                if parameter.dtype != better.dtype:
                    kept.append((parameter, parameter.data))
                    parameter.data = better
                elif name in self.average:  # in place: FSDP2 holds on to the memory
                    kept.append((parameter, parameter.detach().clone()))
                    _local(parameter).copy_(_local(better))
            yield
        finally:
            for parameter, before in kept:
                if parameter.dtype == before.dtype:
                    _local(parameter).copy_(_local(before))
                else:
                    parameter.data = before

    def state(self) -> State:
        """By parameter name: the moments, `master` where weights have 16 bits, `ema`; and the loss scale."""
        found: State = {}
        for name, stand in self.stepped.items():
            parts = [self._owner[id(tensor)].state[tensor] for tensor in stand.tensors]
            found[name] = {key: stand.join([part[key] for part in parts]) for key in parts[0]}
            if stand.parameter.dtype != stand.tensors[0].dtype:
                found[name]["master"] = stand.master()
            if name in self.average:
                found[name]["ema"] = self.average[name]
        if self.scaler is not None:
            numbers = [
                self.scaler.scale,
                self.scaler.good,
                self.scaler.skipped,
                self.scaler.in_a_row,
            ]
            found[SCALER] = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
        return found

    @torch.no_grad()
    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put the state back; the model has its weights already. What is missing starts from these."""
        for name, stand in self.stepped.items():
            parts = {key: x.to(stand.parameter.device) for key, x in state[name].items()}
            stand.refresh(parts.pop("master", stand.parameter))
            average = parts.pop("ema", None)
            if name in self.average:
                self.average[name].copy_(stand.master() if average is None else average)
            split = {
                key: stand.split(x) if stand.heads and x.ndim > 1 else [x]
                for key, x in parts.items()
            }
            for k, tensor in enumerate(stand.tensors):
                self._owner[id(tensor)].state[tensor] = {
                    key: pieces[k] for key, pieces in split.items()
                }
        if self.scaler is not None and SCALER in state:
            scale, *counts = state[SCALER]["numbers"].tolist()
            self.scaler.scale = scale
            self.scaler.good, self.scaler.skipped, self.scaler.in_a_row = (
                int(count) for count in counts
            )


def _heads(name: str, model: CLIP) -> int:
    """The heads of a fused matrix of queries, keys and values; 0 for any other."""
    if not name.endswith("qkv.weight"):
        return 0
    return model.config.vision_heads if name.startswith("visual.") else model.config.text_heads


def _optimizers(
    groups: Mapping[tuple[bool, bool, Any], list[Tensor]], config: TrainConfig
) -> list[torch.optim.Optimizer]:
    """Fused AdamW and, where it has matrices, Muon."""
    adamw: list[dict[str, Any]] = []
    muon: list[dict[str, Any]] = []
    for (by_muon, decay, _), tensors in groups.items():
        group = {"params": tensors, "weight_decay": config.weight_decay if decay else 0.0}
        (muon if by_muon else adamw).append(group)
    betas = (config.beta1, config.beta2)
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(adamw, lr=config.lr, betas=betas, eps=config.eps, fused=True)
    ]
    if muon:
        kind: Callable[..., torch.optim.Optimizer] | None = getattr(torch.optim, "Muon", None)
        if kind is None:
            raise ValueError(
                f"optimizer is muon, but torch {torch.__version__} has none; take torch 2.9 or later"
            )
        made.append(kind(muon, lr=config.lr, adjust_lr_fn="match_rms_adamw"))
    return made
