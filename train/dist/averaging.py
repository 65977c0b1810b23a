"""Models from the checkpoints of a run: the mean of the last ones, or the moving average.

The run may still be going on. Both kinds of checkpoints are read, whole and sharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manifests import disk
from manifests.run_layout import RunLayout
from manifests.schema import Weights
from train.config import TrainConfig, model_config
from train.dist import checkpoint, sharded_checkpoint
from train.dist.checkpoint import Checkpoint
from train.dist.process_group import Ranks
from train.formats import from_open_clip, load_model
from train.model import CLIP

ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def load_weights(source: str, weights: Weights) -> tuple[CLIP, str]:
    """The model of a run, a folder or open_clip:NAME/TAG with these of its weights, and which
    weights they are, in words.

    ValueError for a source without such weights.
    """
    folder = source.removeprefix("local-dir:")
    if weights.average_last is not None:
        model, steps = mean_of_last(folder, weights.average_last)
        return model, f"the mean of the weights after steps {', '.join(map(str, steps))}"
    if weights.ema:
        model, step = moving_average(folder)
        return model, f"the moving average of the weights after step {step}"
    export = RunLayout(folder).export
    return load_model(export if disk.exists(export) else source), "the exported weights"


def mean_of_last(run: str, count: int) -> tuple[CLIP, tuple[int, ...]]:
    """A model with the mean of the weights of the last `count` checkpoints, and their steps.

    The sum is made in fp32, oldest first. ValueError for fewer checkpoints and for a damaged one.
    """
    if count < 1:
        raise ValueError(f"the number of checkpoints to average is {count}; it must be at least 1")
    steps = checkpoint.steps(run)
    if len(steps) < count:
        raise ValueError(
            f"{run} has {len(steps)} checkpoints, not {count}; a run keeps the last two unless it "
            "is trained with --set checkpoint_every=N keep_checkpoints=K"
        )
    model: CLIP | None = None
    total: dict[str, Tensor] = {}
    for step in steps[-count:]:
        saved = _read(run, step)
        model = model or _model_of(saved)
        weights, _ = _weights(saved, model)
        for name, value in weights.items():
            total[name] = total[name].add_(value) if name in total else value.clone()
    assert model is not None
    model.load_state_dict({name: value / count for name, value in total.items()})
    return model, tuple(steps[-count:])


def moving_average(run: str) -> tuple[CLIP, int]:
    """A model with the moving average (EMA) of the last checkpoint, and its step.

    ValueError for a run without checkpoints or without an average.
    """
    steps = checkpoint.steps(run)
    if not steps:
        raise ValueError(f"{run} has no checkpoints")
    saved = _read(run, steps[-1])
    model = _model_of(saved)
    weights, moments = _weights(saved, model)
    averages = {name: parts["ema"] for name, parts in moments.items() if "ema" in parts}
    if not averages:
        raise ValueError(f"{run} keeps no moving average; train it with --set ema=0.9999")
    model.load_state_dict({**weights, **{name: each.float() for name, each in averages.items()}})
    return model, steps[-1]


def _read(run: str, step: int) -> Checkpoint:
    """ValueError where the sha256 of a file is not the one that was written down."""
    try:
        return checkpoint.read(RunLayout(run).checkpoint(step))
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{RunLayout(run).checkpoint(step)} is damaged: {reason}") from error


def _model_of(saved: Checkpoint) -> CLIP:
    settings: Mapping[str, Any] = saved.record.identity["config"]
    known = {**disk.to_plain(TrainConfig()), **settings}
    config: TrainConfig = disk.from_plain(TrainConfig, known)
    return CLIP(model_config(config))


def _weights(
    saved: Checkpoint, model: CLIP
) -> tuple[dict[str, Tensor], Mapping[str, Mapping[str, Tensor]]]:
    """fp32 weights by our names, and the optimizer's state. Masters replace 16-bit weights."""
    if saved.sharded:
        weights, moments = sharded_checkpoint.read(
            saved.folder, dict(model.named_parameters()), ALONE
        )
    else:
        weights, moments = from_open_clip(saved.model, model.config), saved.optimizer
    plain = {}
    for name, value in weights.items():
        plain[name] = moments.get(name, {}).get("master", value).float()
    return plain, moments
