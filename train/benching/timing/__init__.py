"""Steps of the trainer, timed; and processes to time them in, one for each rank.

Reads the plan that a rank is given and the data of a run. Writes figures or a reason into the
folder of the measurement, which is removed.

Invariants:

* The timed steps are those of a run: the same log
  (tests/train/benching/timing/test_train_steps.py).
* A rank that fails leaves a reason of one line (tests/train/benching/timing/test_rank_group.py).

To extend: a measurement is a plan (a dataclass), a function of the plan and a folder, and a
module that calls `serve_rank` with both, as `train_rank.py` does.
"""

from __future__ import annotations

from train.benching.timing.rank_group import MeasurementFailed, measure_in_ranks
from train.benching.timing.score_steps import measure_scoring
from train.benching.timing.spread import percentile_figures, spread_figures, spread_of
from train.benching.timing.synthetic import SyntheticLoader, draw_captions
from train.benching.timing.telemetry import Telemetry
from train.benching.timing.train_steps import StepPlan, measure_training, steps_of

__all__ = [
    "MeasurementFailed",
    "StepPlan",
    "SyntheticLoader",
    "Telemetry",
    "draw_captions",
    "measure_in_ranks",
    "measure_scoring",
    "measure_training",
    "percentile_figures",
    "spread_figures",
    "spread_of",
    "steps_of",
]
