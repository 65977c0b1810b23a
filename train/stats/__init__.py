"""Statistics of ablations: values of runs in, differences with intervals and verdicts out.

Statistics of ablations, pure: values in, differences with intervals and verdicts out.

Invariants:

* Dunnett's values are exact to 1e-9 (`test_dunnett.py`); interval, p and verdict agree
  (`test_comparison.py`); what cannot be compared is named (`test_analysis.py`).
* Simultaneous 95 % intervals hold the truth in 93-97 % for equal spreads (`test_moderation.py`).
* Looks spend alpha (`test_spending.py`). Verdicts on all tasks hold together, and a further look
  has half the error (`test_analysis.py`).
* At most 5 % of simulated studies that stop early make a false call (`test_sequential.py`).
"""

from __future__ import annotations

from train.stats.analysis import (
    AVERAGE,
    Analysis,
    Discordance,
    LeftOut,
    MeanSd,
    TaskAnalysis,
    TaskScores,
    analyse,
    mcnemar,
    mean_sd,
    one_model_difference,
    run_spread,
)
from train.stats.comparison import (
    Comparison,
    Headline,
    Power,
    Verdict,
    dunnett_critical,
    dunnett_p,
    equal_loadings,
    holm,
    seeds_needed,
    smallest_visible,
)
from train.stats.model import LedgerEntry, SampleNoise, fit_prior, sample_noise
from train.stats.scaling import (
    Crossing,
    Interval,
    MetricSignal,
    PowerLaw,
    Prediction,
    ScaleAgreement,
    ScalingFit,
    find_crossing,
    fit_scaling,
    metric_signals,
    predict_error,
    scale_agreement,
    wilson,
)
from train.stats.sequential import (
    SequentialComparison,
    SequentialDecision,
    SequentialPlan,
    Spending,
    decide_study,
)

__all__ = [
    "AVERAGE",
    "Analysis",
    "Comparison",
    "Crossing",
    "Discordance",
    "Headline",
    "Interval",
    "LedgerEntry",
    "LeftOut",
    "MeanSd",
    "MetricSignal",
    "Power",
    "PowerLaw",
    "Prediction",
    "SampleNoise",
    "ScaleAgreement",
    "ScalingFit",
    "SequentialComparison",
    "SequentialDecision",
    "SequentialPlan",
    "Spending",
    "TaskAnalysis",
    "TaskScores",
    "Verdict",
    "analyse",
    "decide_study",
    "dunnett_critical",
    "dunnett_p",
    "equal_loadings",
    "find_crossing",
    "fit_prior",
    "fit_scaling",
    "holm",
    "mcnemar",
    "mean_sd",
    "metric_signals",
    "one_model_difference",
    "predict_error",
    "run_spread",
    "sample_noise",
    "scale_agreement",
    "seeds_needed",
    "smallest_visible",
    "wilson",
]
