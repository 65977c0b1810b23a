"""Training steps: throughput, step time, memory, and how they scale with the ranks.

Every cell runs in processes of its own, as train/run.py starts them (gloo on a processor, nccl on
GPUs), and takes the trainer's own step. A cell that fails, by memory or by a layout that is not
possible, is reported with the reason, and the others go on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence

from manifests import disk
from manifests.schema import Blend
from train.benching.cells import PlannedCell, data_name, planned_cells, refuse_cell
from train.benching.data import read_data
from train.benching.machine import device_of
from train.benching.options import SYNTHETIC, BenchOptions
from train.benching.report import Cell, Measurement
from train.benching.tables import figure_lines, scaling_lines
from train.benching.timing import MeasurementFailed, StepPlan, measure_in_ranks, steps_of

UNUSED: tuple[str, ...] = ()
RANK = "train.benching.timing.train_rank"  # the module that a rank runs
logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """This mode has no options of its own."""


def measure(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """Every combination of the lists, one after another."""
    blend = None if options.data == SYNTHETIC else read_data(options.data)
    data = data_name(options, blend)
    known: dict[tuple[str, int], Measurement] = {}
    for planned in planned_cells(options):
        facts = planned.facts(data)
        try:
            plan = step_plan(options, planned, blend)
            key = (disk.content_hash(plan.config), planned.ranks)
            refuse_cell(plan.config, planned.ranks, device_of(plan.config.device))
            if key not in known:  # a cell of weak scaling may be one of strong scaling too
                logger.info("%s: %d steps", Cell(**facts).label, plan.steps)
                known[key] = measure_in_ranks(
                    "train.benching.timing.train_rank", plan, planned.ranks
                )
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


def lines(cells: Sequence[Cell]) -> list[str]:
    """The figures of every cell, then the tables of weak and strong scaling."""
    return [*figure_lines(cells), *scaling_lines(cells)]
