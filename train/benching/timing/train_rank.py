"""One rank of `--mode train`: `python -m train.benching.timing.train_rank FOLDER`."""

from __future__ import annotations

import sys

from manifests import console
from train.benching.timing.rank_group import serve_rank
from train.benching.timing.train_steps import StepPlan, measure_training

if __name__ == "__main__":
    console.end_process(lambda: serve_rank(sys.argv[1], StepPlan, measure_training))
