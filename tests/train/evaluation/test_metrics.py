from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.schema import TaskSpec
from train.evaluation.metrics import (
    METRICS,
    calibration_error,
    f1_macro,
    mean_of_directions,
    metric_values,
    worst_group,
)
from train.evaluation.tasks import evaluate
from train.model.clip import CLIP


def test_the_metrics_are_the_means_of_their_values_per_sample(
    colours: TaskSpec, captioned: TaskSpec, model: CLIP, tmp_path: Path
) -> None:
    metrics = evaluate(model, [colours, captioned], str(tmp_path))
    checked = set()
    for task, directions in (("colours", 1), ("captioned", 2)):
        table = disk.read_parquet(tmp_path / f"{task}.parquet")
        for name, value in metrics[task].items():
            if METRICS[name].values is None:
                continue
            values = metric_values(table, name)
            assert len(values) == (1 if "_to_" in name else directions)
            assert mean_of_directions(values) == pytest.approx(value, abs=1e-12)
            checked.add(name)
    assert set(METRICS) - checked - {"accuracy5"} == {  # there are three classes
        "calibration_error", "f1_macro", "worst_group_accuracy", "worst_group_accuracy5",
        "median_rank", "image_to_text_median_rank", "text_to_image_median_rank",
        "jaccard", "jaccard_10_12",  # of associations, which have a test of their own
    }  # fmt: skip


def test_samples_without_a_loss_are_left_out() -> None:
    table = pa.table(
        {
            "direction": ["image_to_text", "text_to_image", "text_to_image"],
            "loss": [1.0, 3.0, None],
        }
    )
    assert [values.tolist() for values in metric_values(table, "contrastive_loss")] == [[1], [3]]


def test_what_cannot_be_had_is_named() -> None:
    old = pa.table({"label": [0], "correct": [True]})
    with pytest.raises(ValueError, match=r"no metric 'logprobs'; did you mean 'logprob'\?"):
        metric_values(old, "logprobs")
    with pytest.raises(ValueError, match="calibration_error is no mean over samples"):
        metric_values(old, "calibration_error")
    message = r"logprob needs the column logprob, .* \(they have label, correct\); evaluate"
    with pytest.raises(ValueError, match=message):
        metric_values(old, "logprob")


def test_the_calibration_error_by_hand() -> None:
    confidence = np.array([0.95, 0.97, 0.5, 0.52, 1 / 15])
    correct = np.array([True, False, True, True, False])
    # Bins (14/15, 1], (7/15, 8/15] and (0, 1/15]: |1 - 1.92| + |2 - 1.02| + |0 - 1/15| of 5.
    expected = (0.92 + 0.98 + 1 / 15) / 5
    assert calibration_error(confidence, correct) == pytest.approx(expected)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0.0
    assert calibration_error(np.array([0.0]), np.array([False])) == 0.0


def test_f1_and_the_worst_group_by_hand() -> None:
    label, predicted = np.array([0, 0, 1, 1, 3]), np.array([0, 1, 1, 1, 2])
    # Class 0: precision 1, recall 1/2. Class 1: 2/3 and 1. Class 3: 0. Class 2 has no sample.
    assert f1_macro(label, predicted) == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    group = np.array(["a", "a", "b", "b", "other"])
    assert worst_group(label == predicted, group) == 0.0
    assert worst_group(label == predicted, group, ("other",)) == 0.5
    with pytest.raises(ValueError, match="ignore_groups names all groups: a, b, other"):
        worst_group(label == predicted, group, ("a", "b", "other"))
