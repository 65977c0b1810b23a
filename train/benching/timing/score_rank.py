"""One rank of `--mode score`: `python -m train.benching.timing.score_rank FOLDER`."""

from __future__ import annotations

import sys

from manifests import console
from train.benching.timing.rank_group import serve_rank
from train.benching.timing.score_steps import measure_scoring
from train.benching.timing.train_steps import StepPlan

if __name__ == "__main__":
    console.end_process(lambda: serve_rank(sys.argv[1], StepPlan, measure_scoring))
