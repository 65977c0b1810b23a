"""The task kind `association`: which of a few images belong to a word, as in WinoGAViL.

As many candidates are chosen as there are right ones, the most similar to the prompt "A WORD" or
"An WORD". A tie between a right and a wrong candidate counts against the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.schema import TaskSpec
from train.evaluation.embeddings import Encoder
from train.evaluation.metrics import mean_of_directions, metric_values
from train.evaluation.task_kind import BoolArray, Predicted, TaskKind
from train.task_data import Samples, read_associations


def jaccard_indices(
    similarity_N: np.ndarray, cue_N: np.ndarray, right_N: BoolArray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per cue: the Jaccard index of chosen and right candidates, their number, and the right ones.

    `cue_N` rises: the candidates of a cue stand side by side.
    """
    starts = np.flatnonzero(np.diff(cue_N, prepend=-1))
    ends = np.append(starts[1:], len(cue_N))
    indices = np.empty(len(starts), np.float32)
    right_counts = np.empty(len(starts), np.int16)
    for cue, (start, end) in enumerate(zip(starts, ends, strict=True)):
        right = right_N[start:end]
        order = np.lexsort((right, -similarity_N[start:end]))  # of equals the wrong one first
        count = int(right.sum())
        hits = int(right[order[:count]].sum())
        indices[cue], right_counts[cue] = hits / (2 * count - hits), count
    return indices, (ends - starts).astype(np.int16), right_counts


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    image_NE = encoder.images(samples.images, task.name).numpy()
    text_ME = encoder.texts(samples.captions, task.name).numpy()
    cue_N = np.array(samples.labels)
    similarity_N = np.einsum("ne,ne->n", image_NE, text_ME[cue_N])
    right_N = np.zeros(len(cue_N), bool)
    right_N[[image for image, _ in samples.matches]] = True
    indices, candidates, right = jaccard_indices(similarity_N, cue_N, right_N)
    columns = {
        "sample": list(samples.captions),
        "candidates": candidates,
        "right": right,
        "jaccard": indices,
        "correct": indices == 1,
    }
    table, metrics = pa.table(columns), {}
    for name in ("accuracy", "jaccard"):
        metrics[name] = mean_of_directions(metric_values(table, name))
    if (candidates >= 10).any():
        metrics["jaccard_10_12"] = mean_of_directions(metric_values(table, "jaccard_10_12"))
    chance = []
    for total, count in zip(candidates.tolist(), right.tolist(), strict=True):
        chance.append(1 / math.comb(total, count))
    return Predicted(columns=columns, metrics=metrics, details={"chance": float(np.mean(chance))})


def _correct(predictions: pa.Table) -> list[BoolArray]:
    return [predictions["correct"].to_numpy()]


def _chance(metadata: Mapping[str, Any], samples: int) -> float:
    return float(metadata["chance"])


ASSOCIATION = TaskKind(
    name="association",
    headline="accuracy",
    read=read_associations,
    predict=_predict,
    correct=_correct,
    chance=_chance,
)
