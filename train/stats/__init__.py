"""Statistics of ablations: values of runs in, differences with intervals and verdicts out."""

from __future__ import annotations

from train.stats.multiplicity import holm
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
from train.stats.signal_to_noise import MetricSignal, metric_signals

__all__ = [
    "Crossing",
    "Interval",
    "MetricSignal",
    "PowerLaw",
    "Prediction",
    "ScaleAgreement",
    "ScalingFit",
    "find_crossing",
    "fit_scaling",
    "holm",
    "metric_signals",
    "predict_error",
    "scale_agreement",
    "wilson",
]
