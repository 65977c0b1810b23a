"""The cells of a command line: every combination of its lists, in the order they are measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from manifests.schema import Blend
from train.benching.machine import usable_cores
from train.benching.options import SYNTHETIC, BenchOptions, Layout
from train.capacity import device_of, fit, unfit_message
from train.config import TrainConfig, check_layout

RANKS_PER_CORE = 4  # of a processor; more measure the system's switching between processes
FEWEST_MOST = 8  # ranks that are tried on any processor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """A cell before it is measured. One of `batch` and `global_batch` is of the command line."""

    model: str
    dtype: str
    layout: Layout
    ranks: int
    batch: int  # of a data-parallel rank; 0 where the ranks cannot share the global batch
    global_batch: int
    scaling: str  # weak or strong

    def facts(self, data: str) -> dict[str, Any]:
        """What the report says of the cell beside its figures."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "parallel": self.layout.name,
            "ranks": self.ranks,
            "batch": self.batch,
            "global_batch": self.global_batch,
            "scaling": self.scaling,
            "data": data,
        }


def planned_cells(options: BenchOptions) -> Iterator[PlannedCell]:
    """Weak scaling of each batch, then strong scaling of each global batch, by ranks."""
    of_model = itertools.product(options.models, options.dtypes, options.layouts)
    for model, dtype, layout in of_model:
        same: dict[str, Any] = {"model": model, "dtype": dtype, "layout": layout}
        for batch, ranks in itertools.product(options.batches, options.ranks):
            whole = batch * max(1, ranks // layout.tp)
            yield PlannedCell(**same, ranks=ranks, batch=batch, global_batch=whole, scaling="weak")
        for whole, ranks in itertools.product(options.global_batches, options.ranks):
            share, rest = divmod(whole, max(1, ranks // layout.tp))
            batch = 0 if rest else share
            yield PlannedCell(
                **same, ranks=ranks, batch=batch, global_batch=whole, scaling="strong"
            )


def data_name(options: BenchOptions, blend: Blend | None) -> str:
    """The data of a cell in a report, without a path."""
    return SYNTHETIC if blend is None else f"blend {blend.name}"


def refuse_cell(config: TrainConfig, ranks: int, device: torch.device) -> None:
    """ValueError where this machine cannot hold the ranks: too few GPUs, cores or bytes.

    On a GPU memory is not estimated: a step that does not fit fails alone. On a processor it would
    end other programs.
    """
    check_layout(config, ranks)
    if device.type == "cuda":
        if ranks > torch.cuda.device_count():
            raise ValueError(
                f"{ranks} ranks need as many GPUs; here are {torch.cuda.device_count()}"
            )
        return
    cores = usable_cores()
    if ranks > max(FEWEST_MOST, RANKS_PER_CORE * cores):
        raise ValueError(
            f"{ranks} ranks are more than {RANKS_PER_CORE} for each of this machine's {cores} cores"
        )
    result = fit(config, ranks, device_of("cpu", ranks=ranks))
    if result.needed > result.device.memory:
        raise ValueError(unfit_message(result))
