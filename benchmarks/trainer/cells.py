"""The cells of a command line: every combination of its lists, planned and measured in ranks."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from clipmill.bench.options import SYNTHETIC, BenchOptions
from clipmill.bench.ranks import MeasurementFailed, measure_in_ranks
from clipmill.bench.report import torch_device
from clipmill.bench.report_form import Cell, Layout
from clipmill.bench.steps import StepPlan, steps_of
from clipmill.bench.timing import Measurement
from clipmill.manifests import disk
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, check_layout
from clipmill.train.data.blends import blend_of, count_rows, is_pool, read_blend, stream_of
from clipmill.train.sizing.device_fit import device_of, fit, unfit_message, usable_cores

STEPS = "clipmill.bench.steps"  # the module that a rank runs
RANKS_PER_CORE = 4  # of a processor; more measure the system's switching between processes
FEWEST_MOST = 8  # ranks that are tried on any processor
logger = logging.getLogger(__name__)

# --- the data -------------------------------------------------------------------------------------


def read_data(text: str) -> Blend:
    """The blend of --data: a blend, a view of a pool, or a folder of tars. Its pools and views are
    there. ValueError for what is none of these.
    """
    blend = _blend(text)
    count_rows(blend)
    return blend


def _blend(text: str) -> Blend:
    folder, _, _ = text.rstrip("/").rpartition("/")
    if not is_pool(text) and folder and is_pool(folder):
        return blend_of([f"{text.rstrip('/')}=1"])
    if not disk.is_url(text) and os.path.isdir(text) and not is_pool(text):
        tars = disk.list_names(text, ".tar")
        if not tars:
            raise ValueError(
                f"--data {text} is a folder without tars; name a blend, POOL/VIEW, or a folder of "
                "tars"
            )
        return stream_of([disk.join(text, name) for name in tars])
    return read_blend(text)


# --- the cells ------------------------------------------------------------------------------------


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


def measured_cells(options: BenchOptions, kind: str, *, trains: bool) -> Iterator[Cell]:
    """Every planned cell, measured in ranks of its own, one cell after another.

    `kind` is one of steps.MEASUREMENTS. `trains`: the memory of a training step is needed.
    ValueError before the first cell for data that is not there.
    """
    blend = None if options.data == SYNTHETIC else read_data(options.data)
    data = data_name(options, blend)
    known: dict[tuple[str, int], Measurement] = {}
    for planned in planned_cells(options):
        facts = planned.facts(data)
        try:
            plan = step_plan(options, planned, blend)
            key = (disk.content_hash(plan.config), planned.ranks)
            refuse_cell(plan.config, planned.ranks, torch_device(plan.config.device), trains=trains)
            if key not in known:  # a cell of weak scaling may be one of strong scaling too
                steps = options.warmup + options.repeats * plan.iterations
                logger.info("%s: %d steps", Cell(**facts).label, steps)
                known[key] = measure_in_ranks((STEPS, kind), plan, planned.ranks)
        except (ValueError, MeasurementFailed) as error:
            yield Cell(**facts, state="failed", reason=str(error))
            continue
        yield Cell(**facts, figures=known[key].figures, rates=known[key].rates)


def step_plan(options: BenchOptions, planned: PlannedCell, blend: Blend | None) -> StepPlan:
    """What a cell times. ValueError for settings that no run can have."""
    if planned.batch == 0:
        raise ValueError(
            f"{planned.ranks} ranks in layout {planned.layout.name} cannot share a global batch of "
            f"{planned.global_batch} evenly"
        )
    iterations = options.iterations_of(planned.global_batch)
    if iterations < 1:
        raise ValueError(
            f"num_examples {options.num_examples} is less than one global batch of "
            f"{planned.global_batch}"
        )
    steps = steps_of(iterations, options.repeats, options.warmup)
    config = options.config(
        planned.model, planned.dtype, planned.global_batch, planned.layout, planned.ranks, steps
    )
    return StepPlan(
        config=config,
        blend=blend,
        iterations=iterations,
        repeats=options.repeats,
        warmup=options.warmup,
    )


def refuse_cell(
    config: TrainConfig, ranks: int, device: torch.device, *, trains: bool = True
) -> None:
    """ValueError where this machine cannot hold the ranks: too few GPUs, cores or bytes.

    `trains`: the memory of a training step is needed. On a GPU memory is not estimated: a step that
    does not fit fails alone. On a processor it would end other programs.
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
    if not trains:
        return
    result = fit(config, ranks, device_of("cpu", ranks=ranks))
    if result.needed > result.device.memory:
        raise ValueError(unfit_message(result))
