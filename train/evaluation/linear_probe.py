"""The task kind `linear_probe`: a logistic regression on the frozen features of the images.

The objective is the mean cross-entropy plus half the strength times the squared norm of the
weights (the bias is free), minimised in float64 by L-BFGS over all samples. It is convex, the
start is zero and nothing is drawn at random, so the result is a function of the features. The
strength is the one of STRENGTHS with the most right answers on every fifth training image of each
class, when the regression is fitted to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manifests.schema import TaskSpec
from train.evaluation.embeddings import Encoder, finite_rows, require_finite
from train.evaluation.task_kind import Columns, Predicted, TaskKind
from train.evaluation.zero_shot import CLASSIFICATION, predicted_of, sample_columns
from train.task_data import Samples, batch_rows, read_probe

STRENGTHS = tuple(10.0**exponent for exponent in range(-6, 2))
HELD_OUT = 5  # one of so many training images of each class is for the choice of the strength
STEPS = 500  # of L-BFGS at most
TOLERANCE = 1e-7  # largest component of the gradient


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted regression in float64; the logits are features @ weight_EC + bias_C."""

    weight_EC: Tensor
    bias_C: Tensor

    def logits(self, feature_NE: Tensor) -> Tensor:
        """(N, C) float64."""
        return feature_NE.double() @ self.weight_EC + self.bias_C


def fit(
    feature_NE: Tensor, label_N: Tensor, classes: int, strength: float, start: Probe | None = None
) -> Probe:
    """The regression that minimises the objective, from zero or from `start`.

    ValueError where L-BFGS ends with a gradient that is not finite.
    """
    feature_NE = feature_NE.double()
    shape = (feature_NE.shape[1], classes)
    weight_EC = torch.zeros(shape, dtype=torch.float64) if start is None else start.weight_EC
    bias_C = torch.zeros(classes, dtype=torch.float64) if start is None else start.bias_C
    weight_EC = weight_EC.clone().requires_grad_()
    bias_C = bias_C.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight_EC, bias_C],
        max_iter=STEPS,
        history_size=20,
        tolerance_grad=TOLERANCE,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(feature_NE @ weight_EC + bias_C, label_N)
        loss = loss + strength / 2 * weight_EC.square().sum()
        loss.backward()
        return loss

    with torch.inference_mode(False), torch.enable_grad():
        optimizer.step(objective)
    if not torch.isfinite(weight_EC).all():
        raise ValueError(f"the linear probe of strength {strength} did not converge")
    return Probe(weight_EC.detach(), bias_C.detach())


def held_out(labels: Sequence[int]) -> np.ndarray:
    """(N,) whether an image is for the choice of the strength: every fifth of its class."""
    seen: dict[int, int] = {}
    chosen = np.zeros(len(labels), bool)
    for index, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        chosen[index] = seen[label] % HELD_OUT == 0
    return chosen


def choose_strength(feature_NE: Tensor, labels: Sequence[int], classes: int) -> float:
    """The strength with the most right answers on the held-out images; of equals the largest.

    ValueError where no class has HELD_OUT images.
    """
    chosen = torch.from_numpy(held_out(labels))
    if not chosen.any():
        raise ValueError(
            f"no class has {HELD_OUT} training images, so none can be held out for the strength "
            "of the regularisation; add training images"
        )
    label_N = torch.as_tensor(labels)
    best, best_hits, probe = STRENGTHS[-1], -1, None
    for strength in sorted(STRENGTHS, reverse=True):
        probe = fit(feature_NE[~chosen], label_N[~chosen], classes, strength, probe)
        predicted_N = probe.logits(feature_NE[chosen]).argmax(dim=1)
        hits = int((predicted_N == label_N[chosen]).sum())
        if hits > best_hits:
            best, best_hits = strength, hits
    return best


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    assert samples.train is not None
    # Tensors made in inference mode take no part in a backward pass.
    train_NE = encoder.images(samples.train.images, task.name)
    test_NE = encoder.images(samples.images, task.name)
    classes, labels = len(samples.classes), samples.train.labels
    with torch.inference_mode(False):
        train_NE, test_NE = train_NE.clone(), test_NE.clone()
        try:
            strength = choose_strength(train_NE, labels, classes)
            probe = fit(train_NE, torch.tensor(labels), classes, strength)
        except ValueError as error:
            raise ValueError(f"task {task.name!r}: {error}") from error
        logits_NC = probe.logits(test_NE)
    require_finite(finite_rows(logits_NC), samples.files, task.name, "logits")
    label_N = torch.tensor(samples.labels)
    batches = [sample_columns(logits_NC[rows], label_N[rows]) for rows in batch_rows(len(label_N))]
    columns: Columns = {}
    for name in batches[0]:
        columns[name] = np.concatenate([batch[name] for batch in batches])
    predicted = predicted_of(columns, task, samples)
    details: Mapping[str, Any] = {"strength": strength, "train_images": len(labels)}
    return Predicted(columns=predicted.columns, metrics=predicted.metrics, details=dict(details))


LINEAR_PROBE = TaskKind(
    name="linear_probe",
    headline="accuracy",
    read=read_probe,
    predict=_predict,
    correct=CLASSIFICATION.correct,
    chance=CLASSIFICATION.chance,
)
