"""Parameters in groups of one optimizer and weight decay, and the optimizers: AdamW and Muon."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from train.config import TrainConfig


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
