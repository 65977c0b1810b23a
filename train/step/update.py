"""From gradients to new weights: clipping, the optimizers, fp32 masters, the moving average.

`Update` holds everything that a run keeps beside its weights (moments, fp32 masters, the loss
scale, the average). It gives and takes that state by parameter name, in the shape of the parameter.
Parameters may be plain tensors or DTensors on several meshes; elementwise operations work on a
rank's own part.

Shapes: H heads, D channels of a head, C channels of a tower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from train.config import TrainConfig
from train.model import CLIP
from train.step.grad_norm import local_part, mesh_of, total_norm
from train.step.optimizers import (
    build_optimizers,
    decays,
    step_eagerly,
    steps_by_muon,
)
from train.step.precision import OVERFLOWS, Scaler

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
