"""Towers that are locked: their weights stay as they are, but for the last groups of layers.

The groups are open_clip's (`--lock-image-unlocked-groups`, `--lock-text-unlocked-layers`): the
embeddings, each block, and the projection; the norm before the projection belongs to the last
block. LiT (Zhai et al. 2022) locks the image tower.
"""

from __future__ import annotations

from torch import nn


def group_count(layers: int) -> int:
    """The groups of a tower with so many blocks."""
    return layers + 2


def trained_blocks(layers: int, groups: int | None) -> int:
    """How many of a tower's last blocks are trained, with so many trained groups; None: all."""
    return layers if groups is None else min(layers, max(0, groups - 1))


def lock_tower(tower: nn.Module, layers: int, unlocked: int) -> None:
    """Lock a tower with `layers` blocks; its last `unlocked` groups are still trained."""
    first_unlocked = group_count(layers) - unlocked
    for name, parameter in tower.named_parameters():
        parameter.requires_grad_(_group_of(name, layers) >= first_unlocked)


def _group_of(name: str, layers: int) -> int:
    """The number of the group of a tower's parameter, from 0."""
    part, _, rest = name.partition(".")
    if part == "blocks":
        return 1 + int(rest.partition(".")[0])
    return {"ln_post": layers, "ln_final": layers, "proj": layers + 1}.get(part, 0)
