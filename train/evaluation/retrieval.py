"""The task kind `retrieval`: images and captions find each other, in both directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from manifests.schema import TaskSpec
from train.dist import Ranks
from train.evaluation.embeddings import Encoder
from train.evaluation.metrics import DIRECTIONS, METRICS, mean_of_directions, metric_values
from train.evaluation.sharing import ALONE, Arrays, in_batches
from train.evaluation.task_kind import BoolArray, Columns, Metrics, Predicted, TaskKind
from train.task_data import Samples, read_captioned

LOSS_BATCH = 256  # most pairs of a batch of the contrastive loss
CANDIDATES = 8192  # compared at once, so that the comparison stays in the cache


def ranks(
    query_NE: Tensor,
    candidate_ME: Tensor,
    matches: Sequence[tuple[int, int]],
    shared_by: Ranks = ALONE,
) -> np.ndarray:
    """(N,) number of wrong candidates at least as similar as the best right one of each query.

    `matches` are pairs (n, m). A tie counts against the model, and so does a NaN. Memory is
    O(BATCH_SIZE × M). A collective of `shared_by`.
    """
    right = torch.tensor(sorted(set(matches)), dtype=torch.long).reshape(-1, 2)

    def of_batch(rows: slice) -> Arrays:
        similarity_BM = query_NE[rows] @ candidate_ME.T
        start, stop, _ = rows.indices(len(query_NE))
        first, end = torch.searchsorted(right[:, 0].contiguous(), torch.tensor([start, stop]))
        row, column = right[first:end, 0] - start, right[first:end, 1]
        of_right = similarity_BM[row, column]
        best_B = similarity_BM.new_full((stop - start,), -torch.inf)
        best_B.scatter_reduce_(0, row, of_right, "amax")  # a NaN stays the largest
        above_B = torch.zeros(stop - start, dtype=torch.long)
        for part_BC in similarity_BM.split(CANDIDATES, dim=1):
            above_B += (~(part_BC < best_B[:, None])).sum(dim=1)
        above_B -= torch.bincount(row[~(of_right < best_B[row])], minlength=stop - start)
        return {"rank": above_B.int().numpy()}

    return in_batches(shared_by, len(query_NE), of_batch)["rank"]


def first_captions(samples: Samples) -> list[int]:
    """The first caption of each image."""
    captions: dict[int, int] = {}
    for image, caption in samples.matches:
        captions.setdefault(image, caption)
    return [captions[image] for image in range(len(samples.files))]


def contrastive_losses(
    image_NE: Tensor, text_ME: Tensor, samples: Samples, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) and (M,) cross-entropy in nats of each image and of its first caption, in batches.

    The pairs (image, first caption) are dealt out to the fewest batches of at most LOSS_BATCH
    pairs, neighbours to different batches; the sizes of two batches differ by at most 1. Other
    right answers inside a batch are no candidates. A caption that is no image's first has NaN; one
    that is the first of several images has the mean of its losses.
    """
    captions = torch.tensor(first_captions(samples))
    by_image = np.full(len(image_NE), np.nan, np.float32)
    sums, counts = np.zeros(len(text_ME)), np.zeros(len(text_ME))
    captions_of: list[list[int]] = [[] for _ in samples.files]
    for image, caption in samples.matches:
        captions_of[image].append(caption)
    batches = math.ceil(len(image_NE) / LOSS_BATCH)
    for first in range(batches):
        rows = torch.arange(first, len(image_NE), batches)
        logits_BB = (scale * image_NE[rows] @ text_ME[captions[rows]].T).double()
        for b, other in _other_right_answers(rows.tolist(), captions[rows].tolist(), captions_of):
            logits_BB[b, other] = -torch.inf
        by_image[rows] = -logits_BB.log_softmax(dim=1).diagonal().float().numpy()
        text_losses = -logits_BB.log_softmax(dim=0).diagonal().numpy()
        np.add.at(sums, captions[rows].numpy(), text_losses)
        np.add.at(counts, captions[rows].numpy(), 1)
    by_text = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return by_image, by_text.astype(np.float32)


def _other_right_answers(
    images: Sequence[int], captions: Sequence[int], captions_of: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """(b, other) where the caption of pair `other` in the batch belongs to the image of b too."""
    pairs_of_caption: dict[int, list[int]] = {}
    for number, caption in enumerate(captions):
        pairs_of_caption.setdefault(caption, []).append(number)
    for b, image in enumerate(images):
        for caption in captions_of[image]:
            for other in pairs_of_caption.get(caption, ()):
                if other != b:
                    yield b, other


def retrieve(
    image_NE: Tensor, text_ME: Tensor, samples: Samples, scale: float, shared_by: Ranks = ALONE
) -> tuple[Columns, Metrics]:
    """Columns of the predictions, and recall@1/5/10 and the median rank per direction and both.

    `image_to_text_recall@1` is the share of images whose nearest caption is one of theirs, as in
    CLIP_benchmark. `loss` is described at `contrastive_losses`.
    """
    by_image = ranks(image_NE, text_ME, samples.matches, shared_by)
    by_text = ranks(text_ME, image_NE, [(m, n) for n, m in samples.matches], shared_by)
    losses = np.concatenate(contrastive_losses(image_NE, text_ME, samples, scale))
    columns = {
        "direction": [DIRECTIONS[0]] * len(by_image) + [DIRECTIONS[1]] * len(by_text),
        "sample": [*samples.files, *samples.captions],
        "rank": np.concatenate([by_image, by_text]),
        "loss": pa.array(losses, from_pandas=True),  # NaN becomes null
    }
    table = pa.table(columns)
    medians = [float(np.median(values) + 1) for values in (by_image, by_text)]
    metrics: Metrics = {}
    for name, metric in METRICS.items():
        if metric.values is not None and ("recall@" in name or name == "contrastive_loss"):
            metrics[name] = mean_of_directions(metric_values(table, name))
    metrics["median_rank"] = sum(medians) / 2
    for direction, median in zip(DIRECTIONS, medians, strict=True):
        metrics[f"{direction}_median_rank"] = median
    return columns, metrics


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    image_NE = encoder.images(samples.images, task.name)
    text_ME = encoder.texts(samples.captions, task.name)
    scale = encoder.model.logit_scale.exp().item()
    if not math.isfinite(scale):
        raise ValueError(f"task {task.name!r}: the model's logit scale is {scale}; it is broken")
    columns, metrics = retrieve(image_NE, text_ME, samples, scale, encoder.ranks)
    return Predicted(columns=columns, metrics=metrics)


def _correct(predictions: pa.Table) -> list[BoolArray]:
    first = predictions["rank"].to_numpy() == 0
    direction = np.asarray(predictions["direction"].to_pylist())
    return [first[direction == name] for name in DIRECTIONS]


def _chance(metadata: Mapping[str, Any], samples: int) -> float:
    return 1 / samples


RETRIEVAL = TaskKind(
    name="retrieval",
    headline="recall@1",
    read=read_captioned,
    predict=_predict,
    correct=_correct,
    chance=_chance,
)
