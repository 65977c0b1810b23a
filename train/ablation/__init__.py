"""Arms × seeds: runs, statistics and conclusions.

Read: pools, blends, recipes, finished runs. Written: `POOL/views/VIEW.clean-HASH`,
`blends/ARM.json`, `runs/ARM/seed-N/`, `runs/.replaced/ARM/seed-N-HASH/`, `overlap.json`, `logs/`,
`noise.json`, `ledger.json`, `history.jsonl`.

Invariants:

* A finished run is reused, a stale one is moved aside and never deleted (`test_runner.py`). A
  prior is of the same settings, task, data and metric (`test_ledger.py`).
* Rounds are a replay: killed or not, the same runs and verdicts (`test_rounds.py`). Scores
  without noise claim nothing; a failed run costs its seed only (`test_conclusions.py`).
* A model without seeds counts as one run (`test_models.py`). Predictions of others are put in one
  order (`test_given.py`); ranks change a result by rounding only (`test_runs_of_ranks.py`).
"""

from __future__ import annotations

from train.ablation.arms import (
    A_A,
    NO_SEED,
    AnyRun,
    GivenRun,
    GivenTask,
    ModelRun,
    Run,
    all_runs,
    arm_names,
    evaluated_runs,
    expand_runs,
    finished_metrics,
    given_runs,
    missing_seeds,
    missing_views,
    model_runs,
    scorer_run,
    stale_because,
)
from train.ablation.conclusions import (
    Conclusions,
    FailedRun,
    RunMetrics,
    ScalingTable,
    TaskComparison,
    TaskNoise,
    TaskSignals,
    conclude,
    looks_line,
    metric_tables,
    scaling_tables,
)
from train.ablation.plan import (
    Hardware,
    Plan,
    check_ablation,
    check_plan,
    check_pools,
    dropped_lines,
    plan_ablation,
    plan_lines,
    planned_drops,
    refuse_plan,
)
from train.ablation.ranges import ScorerScore, TaskFacts, TaskRange, scorer_score
from train.ablation.rounds import (
    ArmRounds,
    ReadScore,
    Score,
    Study,
    expected_runs,
    replay,
    run_rounds,
)
from train.ablation.runner import Outcome, evaluate_scorer, run_all

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
    "ScorerScore",
    "Study",
    "TaskComparison",
    "TaskFacts",
    "TaskNoise",
    "TaskRange",
    "TaskSignals",
    "all_runs",
    "arm_names",
    "check_ablation",
    "check_plan",
    "check_pools",
    "conclude",
    "dropped_lines",
    "evaluate_scorer",
    "evaluated_runs",
    "expand_runs",
    "expected_runs",
    "finished_metrics",
    "given_runs",
    "looks_line",
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
    "scorer_run",
    "scorer_score",
    "stale_because",
]
