"""Arms × seeds: runs, statistics and conclusions."""

from __future__ import annotations

from train.ablation import ledger, wording
from train.ablation.arms import (
    A_A,
    AnyRun,
    Run,
    all_runs,
    arm_names,
    evaluated_runs,
    expand_runs,
    finished_metrics,
    missing_seeds,
    missing_views,
    stale_because,
)
from train.ablation.checks import check_ablation, check_pools, dropped_lines, planned_drops
from train.ablation.conclusions import (
    Conclusions,
    FailedRun,
    TaskComparison,
    TaskNoise,
    conclude,
)
from train.ablation.given import GivenRun, GivenTask, given_runs
from train.ablation.models import NO_SEED, ModelRun, model_runs
from train.ablation.plan import (
    Hardware,
    Plan,
    check_plan,
    plan_ablation,
    plan_lines,
    refuse_plan,
)
from train.ablation.round_intervals import ArmRounds
from train.ablation.rounds import (
    ReadScore,
    Score,
    Study,
    expected_runs,
    replay,
    run_rounds,
)
from train.ablation.runner import Outcome, run_all
from train.ablation.tables import (
    RunMetrics,
    ScalingTable,
    TaskSignals,
    metric_tables,
    scaling_tables,
)

__all__ = [
    "A_A",
    "NO_SEED",
    "AnyRun",
    "ArmRounds",
    "Conclusions",
    "FailedRun",
    "GivenRun",
    "GivenTask",
    "Hardware",
    "ModelRun",
    "Outcome",
    "Plan",
    "ReadScore",
    "Run",
    "RunMetrics",
    "ScalingTable",
    "Score",
    "Study",
    "TaskComparison",
    "TaskNoise",
    "TaskSignals",
    "all_runs",
    "arm_names",
    "check_ablation",
    "check_plan",
    "check_pools",
    "conclude",
    "dropped_lines",
    "evaluated_runs",
    "expand_runs",
    "expected_runs",
    "finished_metrics",
    "given_runs",
    "ledger",
    "metric_tables",
    "missing_seeds",
    "missing_views",
    "model_runs",
    "plan_ablation",
    "plan_lines",
    "planned_drops",
    "refuse_plan",
    "replay",
    "run_all",
    "run_rounds",
    "scaling_tables",
    "stale_because",
    "wording",
]
