"""A loss or gradient that is NaN or infinite: a report of where it appeared, and the error that
ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manifests import disk
from manifests.run_layout import RunLayout
from train.data import Batch
from train.dist import Ranks, process_group, sharded_checkpoint
from train.model import CLIP


class NonFinite(RuntimeError):
    """A loss or gradient is NaN or infinite. The optimizer was not stepped; RUN/nonfinite-RANK.json
    has the details.
    """


def report_nonfinite(
    out: str,
    ranks: Ranks,
    model: CLIP,
    batch: Batch,
    loss: float,
    grad_norm: float,
    features: Mapping[str, Tensor],
) -> NonFinite:
    """Write RUN/nonfinite-RANK.json on every rank; the error to raise. A collective: every rank
    calls it.

    `features` has the image and text features (BE) of this rank's rows, by tower.
    """
    layout, step = RunLayout(out), batch.step + 1
    damaged_rows, tensors = _nonfinite_features(features)
    tensors += _nonfinite_gradients(model)
    keys = [batch.keys[row] for row in sorted(damaged_rows)] or list(batch.keys)
    # A key is POOL/VIEW:SHARD and four digits of the row
    shards = sorted({key[:-4] for key in keys})
    report: dict[str, Any] = {
        "step": step,
        "rank": ranks.rank,
        "loss": str(loss),
        "grad_norm": str(grad_norm),
        "tensors": tensors,
        "shards": shards,
        "keys": keys,
    }
    disk.write_json(layout.nonfinite_json(ranks.rank), report)
    # Loss and gradients are all-reduced, so one rank's NaN reaches all. Features are not: they name
    # the rank.
    source_rank = ranks.rank
    for rank, count in enumerate(process_group.all_gather_int(len(damaged_rows), ranks)):
        if count:
            source_rank = rank
            break
    where = f"first on rank {source_rank}"
    if source_rank == ranks.rank:
        where = f"first in {(tensors or ['?'])[0]} on rank {ranks.rank}"
        where += f"; {len(keys)} samples, the first is {keys[0]} of shard {shards[0]}"
    return NonFinite(
        f"step {step}: the loss is {loss} and the gradients' norm {grad_norm}; {where}."
        f" The optimizer was not stepped; see {layout.nonfinite_json(source_rank)}"
    )


def _nonfinite_features(features: Mapping[str, Tensor]) -> tuple[set[int], list[str]]:
    """Rows with a non-finite feature, and the towers that they are in."""
    rows: set[int] = set()
    tensors: list[str] = []
    for tower, feature_bE in features.items():
        tower_rows = (~torch.isfinite(feature_bE).all(dim=1)).nonzero().flatten().tolist()
        if tower_rows:
            tensors.append(f"{tower} features")
            rows |= set(tower_rows)
    return rows, tensors


def _nonfinite_gradients(model: CLIP) -> list[str]:
    tensors = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if not torch.isfinite(sharded_checkpoint.local(parameter.grad)).all():
            tensors.append(f"gradient of {name}")
    return tensors
