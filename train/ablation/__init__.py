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
from train.ablation.runner import Outcome, run_all

__all__ = [
    "A_A",
    "Conclusions",
    "FailedRun",
    "GivenRun",
    "GivenTask",
    "Hardware",
    "Outcome",
    "Plan",
    "Run",
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
    "run_all",
    "stale_because",
    "wording",
]
