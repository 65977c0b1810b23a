"""The task kind `retrieval`: images and captions find each other, in both directions."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from manifests import disk
from manifests.schema import TaskSpec
from train.evaluation.embeddings import BATCH_SIZE, Encoder
from train.evaluation.task_kind import BoolArray, Columns, Metrics, Samples, TaskKind

RECALLS = (1, 5, 10)
DIRECTIONS = ("image_to_text", "text_to_image")


def read_captions(task: TaskSpec) -> Samples:
    """Images and captions from DATA/captions.csv (columns file, caption).

    Equal captions are one text that belongs to several images. ValueError names a missing file,
    column or cell with its line.
    """
    path = disk.join(task.data, "captions.csv")
    if not disk.exists(path):
        raise ValueError(
            f"task {task.name!r}: {path} does not exist; retrieval reads its columns "
            "file and caption"
        )
    text = disk.read_bytes(path).decode("utf-8-sig")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    columns = list(rows.fieldnames or ())
    for column in ("file", "caption"):
        if column not in columns:
            raise ValueError(
                f"{path} has no column {column!r}{disk.did_you_mean(column, columns)} "
                f"(of {', '.join(columns) or 'none'})"
            )
    images: dict[str, int] = {}
    captions: dict[str, int] = {}
    matches: dict[tuple[int, int], None] = {}
    for row in rows:
        if not row["file"] or not row["caption"]:
            raise ValueError(f"{path} line {rows.line_num}: file and caption must both be given")
        image = images.setdefault(row["file"], len(images))
        caption = captions.setdefault(row["caption"], len(captions))
        matches[image, caption] = None
    if len(images) < 2:
        raise ValueError(f"{path} names {len(images)} images; retrieval needs at least two")
    for file in images:
        if not disk.exists(disk.join(task.data, file)):
            raise ValueError(f"{path}: image {disk.join(task.data, file)} does not exist")
    return Samples(files=tuple(images), captions=tuple(captions), matches=tuple(matches))


def ranks(
    query_NE: Tensor,
    candidate_ME: Tensor,
    matches: Sequence[tuple[int, int]],
    batch_size: int = BATCH_SIZE,
) -> np.ndarray:
    """(N,) number of wrong candidates at least as similar as the best right one of each query.

    `matches` are pairs (n, m). A tie counts against the model, and so does a NaN.
    Memory is O(batch_size × M).
    """
    right: list[list[int]] = [[] for _ in range(len(query_NE))]
    for n, m in matches:
        right[n].append(m)
    batches = []
    for start in range(0, len(query_NE), batch_size):
        similarity_BM = query_NE[start : start + batch_size] @ candidate_ME.T
        right_BM = torch.zeros_like(similarity_BM, dtype=torch.bool)
        for row, columns in enumerate(right[start : start + batch_size]):
            right_BM[row, columns] = True
        best_B = similarity_BM.masked_fill(~right_BM, -torch.inf).amax(dim=1)
        above_BM = ~(similarity_BM < best_B[:, None]) & ~right_BM
        batches.append(above_BM.sum(dim=1).int().numpy())
    return np.concatenate(batches)


def retrieve(image_NE: Tensor, text_ME: Tensor, samples: Samples) -> tuple[Columns, Metrics]:
    """Columns of the predictions, and recall@1/5/10 per direction and their means.

    `image_to_text_recall@1` is the share of images whose nearest caption is one of theirs.
    """
    by_image = ranks(image_NE, text_ME, samples.matches)
    by_text = ranks(text_ME, image_NE, [(m, n) for n, m in samples.matches])
    columns = {
        "direction": [DIRECTIONS[0]] * len(by_image) + [DIRECTIONS[1]] * len(by_text),
        "sample": [*samples.files, *samples.captions],
        "rank": np.concatenate([by_image, by_text]),
    }
    metrics: Metrics = {}
    for k in RECALLS:
        both = float((by_image < k).mean()), float((by_text < k).mean())
        metrics[f"recall@{k}"] = sum(both) / 2
        for direction, recall in zip(DIRECTIONS, both, strict=True):
            metrics[f"{direction}_recall@{k}"] = recall
    return columns, metrics


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> tuple[Columns, Metrics]:
    image_NE = encoder.images(task.data, samples.files, task.name)
    return retrieve(image_NE, encoder.texts(samples.captions, task.name), samples)


def _correct(predictions: pa.Table) -> list[BoolArray]:
    first = predictions["rank"].to_numpy() == 0
    direction = np.asarray(predictions["direction"].to_pylist())
    return [first[direction == name] for name in DIRECTIONS]


def _chance(metadata: Mapping[str, Any], samples: int) -> float:
    return 1 / samples


RETRIEVAL = TaskKind(
    name="retrieval",
    headline="recall@1",
    read=read_captions,
    predict=_predict,
    correct=_correct,
    chance=_chance,
)
