"""The metrics of evaluation tasks, and their values per sample from a predictions table. Pure.

A classification table has one row per image. A retrieval table has one row per image and one per
text; the column `direction` names which searches for which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, FloatArray, Mask
from clipmill.manifests.schema import TaskSpec

RECALLS = (1, 5, 10)
DIRECTIONS = ("image_to_text", "text_to_image")
CALIBRATION_BINS = 15
TOP = 5  # classes whose log-probabilities are kept
# By which logits are multiplied to find the temperature that fits a run best, e^-5 to e^2.5
TEMPERATURES = np.exp(np.linspace(-5, 2.5, 26))
Metrics = dict[str, float]
# Of each kind of task, the metric that arms are compared by where the task names none.
HEADLINES = {
    "association": "accuracy",
    "classification": "accuracy",
    "linear_probe": "accuracy",
    "retrieval": "recall@1",
}
Values = Callable[[pa.Table], list[FloatArray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name.

    unit: `share` (0 to 1), `nats` (natural logarithm) or `rank` (1 is best).
    values: the values per sample, one array per direction; the metric is the mean of their means.
    None for a metric that is no mean over samples. guesses: so many single guesses are right as
    often as a random answer; 0 where that is not known.
    """

    name: str
    unit: str
    higher_is_better: bool
    meaning: str
    values: Values | None
    guesses: int = 0


def metric_values(table: pa.Table, metric: str) -> list[FloatArray]:
    """Values per sample of a metric, one array per direction, in the order of the table.

    The metric is the mean of the means of the arrays. Samples without a value are left out
    (`contrastive_loss` has none for the further captions of an image). ValueError for an unknown
    metric, one that is no mean over samples, and a table without its column.
    """
    if metric not in METRICS:
        raise ValueError(
            f"there is no metric {metric!r}{disk.did_you_mean(metric, METRICS)} "
            f"(of {', '.join(METRICS)})"
        )
    values = METRICS[metric].values
    if values is None:
        raise ValueError(f"{metric} is no mean over samples: it has no values per sample")
    try:
        return values(table)
    except KeyError as error:
        raise ValueError(
            f"{metric} needs the column {error.args[0]}, which these predictions do not have "
            f"(they have {', '.join(table.schema.names)}); evaluate the model again"
        ) from None


def deciding_metric(task: TaskSpec) -> str:
    """The metric that decides on a task: its own `metric`, else the headline of its kind.

    ValueError for a metric that there is not.
    """
    name = task.metric or HEADLINES[task.kind]
    if name not in METRICS:
        raise ValueError(
            f"task {task.name!r}: there is no metric {name!r}{disk.did_you_mean(name, METRICS)}"
        )
    return name


def chance_of(metric: str, one_guess: float) -> float | None:
    """A metric of random answers, from the chance of one guess; None where it is not known."""
    guesses = METRICS[metric].guesses
    return min(1.0, guesses * one_guess) if guesses else None


def can_be_averaged(metrics: Collection[str]) -> bool:
    """Whether a mean over these metrics means anything: one unit, and one direction is better."""
    return len({(METRICS[name].unit, METRICS[name].higher_is_better) for name in metrics}) <= 1


def mean_of_directions(values: Sequence[Array]) -> float:
    """The metric from its values per sample: the mean over the directions of their means."""
    return float(np.mean([np.mean(samples) for samples in values]))


def at_best_temperature(values_NT: FloatArray) -> FloatArray:
    """(N,) the values per sample at the temperature where their mean is largest.

    values_NT: log-probabilities of the right answers under logits times each of TEMPERATURES, NaN
    in the rows of samples that have none. Between two of them the values are a parabola through
    the three nearest, and so is the mean: wrong by less than 0.001 nats.
    """
    mean_T = np.nanmean(values_NT, axis=0)
    k = int(mean_T[1:-1].argmax()) + 1
    before, middle, after = mean_T[k - 1 : k + 2]
    bend = before - 2 * middle + after
    # Where the mean has no maximum inside, the best one is at an end: a model that knows nothing.
    x = float(np.clip((before - after) / (2 * bend), -1, 1)) if bend < 0 else 1.0
    if bend >= 0 and before > after:
        x = -1.0
    weights = np.array([x * (x - 1) / 2, 1 - x * x, x * (x + 1) / 2])
    fitted: FloatArray = values_NT[:, k - 1 : k + 2] @ weights
    return fitted


def calibration_error(confidence_N: FloatArray, correct_N: Mask) -> float:
    """Expected calibration error with 15 bins of equal width (Guo et al. 2017, equation 3).

    `confidence_N` is the probability of the best class. A bin holds its upper edge.
    """
    bins_N = np.ceil(confidence_N * CALIBRATION_BINS).clip(1, CALIBRATION_BINS).astype(int) - 1
    hits = np.bincount(bins_N, weights=correct_N, minlength=CALIBRATION_BINS)
    confidence = np.bincount(bins_N, weights=confidence_N, minlength=CALIBRATION_BINS)
    return float(np.abs(hits - confidence).sum() / len(confidence_N))


def f1_macro(label_N: Array, predicted_N: Array) -> float:
    """The mean over the classes that have samples of the harmonic mean of precision and recall."""
    classes = int(max(label_N.max(), predicted_N.max())) + 1
    hits_C = np.bincount(label_N[label_N == predicted_N], minlength=classes)
    labels_C = np.bincount(label_N, minlength=classes)
    total_C = labels_C + np.bincount(predicted_N, minlength=classes)
    present = labels_C > 0
    return float((2 * hits_C[present] / total_C[present]).mean())


def worst_group(correct_N: Mask, group_N: Array, ignored: Sequence[str] = ()) -> float:
    """The lowest share of right samples over the groups. ValueError where none is left."""
    shares = []
    for group in np.unique(group_N):
        if str(group) not in ignored:
            shares.append(float(correct_N[group_N == group].mean()))
    if not shares:
        raise ValueError(
            f"ignore_groups names all groups: {', '.join(map(str, np.unique(group_N)))}"
        )
    return min(shares)


# --- values per sample ----------------------------------------------------------------------------


def _column(table: pa.Table, name: str) -> Array:
    if name not in table.schema.names:
        raise KeyError(name)
    values: Array = table[name].to_numpy()
    return values


def _classification(name: str) -> Values:
    """The values are a column of the table."""

    def values(table: pa.Table) -> list[FloatArray]:
        return [_column(table, name).astype(np.float64)]

    return values


def _jaccard(fewest: int) -> Values:
    """The column `jaccard` where there are at least so many candidates."""

    def values(table: pa.Table) -> list[FloatArray]:
        enough_N = _column(table, "candidates") >= fewest
        return [_column(table, "jaccard")[enough_N].astype(np.float64)]

    return values


def _class_recall(table: pa.Table) -> list[FloatArray]:
    """Right or wrong, weighted so that every class that has samples counts the same."""
    label_N, correct_N = _column(table, "label"), _column(table, "correct").astype(np.float64)
    counts_C = np.bincount(label_N)
    weight_C = len(label_N) / (np.count_nonzero(counts_C) * np.maximum(counts_C, 1))
    return [correct_N * weight_C[label_N]]


def _by_direction(table: pa.Table, values_N: Array, *names: str) -> list[FloatArray]:
    direction_N = _column(table, "direction")
    return [values_N[direction_N == name].astype(np.float64) for name in names]


def _recall(k: int, *directions: str) -> Values:
    def values(table: pa.Table) -> list[FloatArray]:
        return _by_direction(table, _column(table, "rank") < k, *directions)

    return values


def _ranks(table: pa.Table) -> list[FloatArray]:
    return _by_direction(table, _column(table, "rank") + 1, *DIRECTIONS)


def _losses(column: str) -> Values:
    def values(table: pa.Table) -> list[FloatArray]:
        losses = _by_direction(table, _column(table, column).astype(np.float64), *DIRECTIONS)
        return [values[~np.isnan(values)] for values in losses]

    return values


# --- the table ------------------------------------------------------------------------------------


def _share(
    name: str, meaning: str, values: Values | None, *, higher: bool = True, guesses: int = 0
) -> Metric:
    return Metric(
        name=name,
        unit="share",
        higher_is_better=higher,
        meaning=meaning,
        values=values,
        guesses=guesses,
    )


def _nats(name: str, meaning: str) -> Metric:
    """The mean of a column of a classification."""
    values = _classification(name)
    return Metric(name=name, unit="nats", higher_is_better=True, meaning=meaning, values=values)


def _classification_metrics() -> list[Metric]:
    metrics = [
        _share(
            "accuracy",
            "images whose best class is the right one",
            _classification("correct"),
            guesses=1,
        ),
        _share(
            "accuracy5",
            "images whose right class is among the best five (from six classes on)",
            _classification("correct5"),
            guesses=TOP,
        ),
        _share(
            "mean_class_accuracy", "mean of the accuracies of the classes", _class_recall, guesses=1
        ),
        _nats("logprob", "log-probability of the right class"),
        _nats("logprob_t", "log-probability of the right class at the temperature that fits best"),
        _nats("margin", "log-probability of the right class minus that of the best wrong one"),
        _share(
            "calibration_error",
            f"expected calibration error, {CALIBRATION_BINS} bins of equal width",
            None,
            higher=False,
        ),
    ]
    for name, meaning in (
        ("f1_macro", "mean of the F1 scores of the classes that have samples"),
        ("worst_group_accuracy", "accuracy in the group where it is lowest"),
        ("worst_group_accuracy5", "share of right classes among the best five in the worst group"),
    ):
        metrics.append(_share(name, meaning, None))
    return metrics


def _retrieval_metrics() -> list[Metric]:
    metrics: list[Metric] = []
    queries = {(): DIRECTIONS} | {(name,): (name,) for name in DIRECTIONS}
    for prefix, directions in queries.items():
        for k in RECALLS:
            name = "_".join([*prefix, f"recall@{k}"])
            meaning = f"queries ({', '.join(directions)}) with a right answer among the first {k}"
            metrics.append(_share(name, meaning, _recall(k, *directions), guesses=k))
        metrics.append(
            Metric(
                name="_".join([*prefix, "median_rank"]),
                unit="rank",
                higher_is_better=False,
                meaning=f"median rank of the best right answer ({', '.join(directions)})",
                values=None,
            )
        )
    metrics.append(
        Metric(
            name="mean_rank",
            unit="rank",
            higher_is_better=False,
            meaning="mean rank of the best right answer, of both directions",
            values=_ranks,
        )
    )
    what = "cross-entropy of pairs of image and first caption inside batches"
    for name, column, meaning in (
        ("contrastive_loss", "loss", what),
        ("contrastive_loss_t", "loss_t", f"{what}, at the temperature that fits best"),
    ):
        metrics.append(
            Metric(
                name=name,
                unit="nats",
                higher_is_better=False,
                meaning=meaning,
                values=_losses(column),
            )
        )
    return metrics


def _association_metrics() -> list[Metric]:
    what = "Jaccard index of chosen and right images"
    return [
        _share("jaccard", what, _jaccard(0), guesses=1),
        _share("jaccard_10_12", f"{what}, cues with ten candidates or more", _jaccard(10)),
    ]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*_classification_metrics(), *_association_metrics(), *_retrieval_metrics())
}
