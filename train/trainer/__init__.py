"""One training run: its identity, its state, its steps and its log.

One training run: what it is, what it holds, its steps, and what it writes down.

Reads the blend and its pools. Writes `RUN/`: `blend.json`, `log.jsonl`, `checkpoints/`, `until/`,
`nonfinite-RANK.json`, `export/`, and last `run.json`.

Invariants:

* A run that is killed and started again ends with the same weights (tests/train/test_resume.py).
* A run is refused in the folder of another one, by the comparison that an ablation uses too
  (tests/train/trainer/test_identity.py).
* A step that is not finite changes no weight (tests/train/trainer/test_train_step.py).
* A line of the log that was cut off is written again (tests/train/trainer/test_logbook.py).

To extend: a setting that does not decide the weights belongs into `INCIDENTAL` in identity.py.
"""

from __future__ import annotations

from train.trainer.logbook import peak_memory
from train.trainer.loop import (
    SEEDS,
    LaunchedStep,
    NonFinite,
    Records,
    Resume,
    SaveTimer,
    StepNumbers,
    StepRunner,
    StopRequest,
    TrainState,
    changes_since,
    deciding_settings,
    differences,
    prepare,
    run_identity,
    settings_identity,
    shared_part,
    train,
)
from train.trainer.mix import (
    RunLoader,
    blend_of,
    count_rows,
    is_pool,
    open_loader,
    plan_lines,
    read_blend,
    stream_of,
)

__all__ = [
    "SEEDS",
    "LaunchedStep",
    "NonFinite",
    "Records",
    "Resume",
    "RunLoader",
    "SaveTimer",
    "StepNumbers",
    "StepRunner",
    "StopRequest",
    "TrainState",
    "blend_of",
    "changes_since",
    "count_rows",
    "deciding_settings",
    "differences",
    "is_pool",
    "open_loader",
    "peak_memory",
    "plan_lines",
    "prepare",
    "read_blend",
    "run_identity",
    "settings_identity",
    "shared_part",
    "stream_of",
    "train",
]
