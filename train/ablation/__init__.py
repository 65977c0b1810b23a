"""Arms × seeds: runs, statistics and conclusions."""

from __future__ import annotations

from train.ablation import ledger, wording
from train.ablation.arms import (
    A_A,
    Run,
    all_runs,
    arm_names,
    expand_runs,
    finished_metrics,
    missing_seeds,
    stale_because,
)
from train.ablation.checks import check_ablation, check_pools
from train.ablation.conclusions import (
    Conclusions,
    FailedRun,
    TaskComparison,
    TaskNoise,
    conclude,
)
from train.ablation.given import GivenRun, GivenTask, given_runs
from train.ablation.plan import (
    Hardware,
    Plan,
    check_plan,
    plan_ablation,
    plan_lines,
    refuse_plan,
)
from train.ablation.round_intervals import ArmRounds
from train.ablation.rounds import ReadScore, Score, Study, replay, run_rounds
from train.ablation.runner import Outcome, run_all

__all__ = [
    "A_A",
    "ArmRounds",
    "Conclusions",
    "FailedRun",
    "GivenRun",
    "GivenTask",
    "Hardware",
    "Outcome",
    "Plan",
    "ReadScore",
    "Run",
    "Score",
    "Study",
    "TaskComparison",
    "TaskNoise",
    "all_runs",
    "arm_names",
    "check_ablation",
    "check_plan",
    "check_pools",
    "conclude",
    "expand_runs",
    "finished_metrics",
    "given_runs",
    "ledger",
    "missing_seeds",
    "plan_ablation",
    "plan_lines",
    "refuse_plan",
    "replay",
    "run_all",
    "run_rounds",
    "stale_because",
    "wording",
]
