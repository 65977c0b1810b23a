"""Statistics of ablations: values of runs in, differences with intervals and verdicts out."""

from __future__ import annotations

from train.stats.analysis import (
    AVERAGE,
    Analysis,
    LeftOut,
    TaskAnalysis,
    TaskScores,
    analyse,
)
from train.stats.comparison import Comparison, Headline, Verdict
from train.stats.dunnett import dunnett_critical, dunnett_p, equal_loadings
from train.stats.moderation import LedgerEntry, fit_prior
from train.stats.multiplicity import holm
from train.stats.power import seeds_needed, smallest_visible
from train.stats.samples import SampleNoise, sample_noise
from train.stats.scaling import (
    Crossing,
    Interval,
    PowerLaw,
    Prediction,
    ScaleAgreement,
    ScalingFit,
    find_crossing,
    fit_scaling,
    predict_error,
    scale_agreement,
    wilson,
)
from train.stats.sequential import (
    SequentialComparison,
    SequentialDecision,
    SequentialPlan,
    decide_study,
)
from train.stats.signal_to_noise import MetricSignal, metric_signals
from train.stats.single_runs import (
    Discordance,
    MeanSd,
    mcnemar,
    mean_sd,
    one_model_difference,
    run_spread,
)
from train.stats.spending import Spending

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
