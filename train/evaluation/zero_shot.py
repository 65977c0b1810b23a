"""Zero-shot classification and retrieval: one row per sample, and the metrics in the file's footer.

Example: python train/evaluate.py out/demo/runs/raw/seed-0 --task objects.yaml
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from manifests import disk
from manifests.schema import TaskSpec
from train.data import augment, decode_image
from train.model import CLIP, l2_normalise

logger = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
BATCH = 256  # pictures or prompts per forward
CACHE_BYTES = (
    2 * 2**30
)  # decoded pictures that a process keeps for its next run (10,000 of 224 px are 1.5e9)
RECALLS = (1, 5, 10)
HEADLINE = {"classification": "accuracy", "retrieval": "recall@1"}
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a task's folder holds: pictures by path relative to it, and what belongs to them."""

    files: tuple[str, ...]
    labels: tuple[int, ...] = ()  # classification: the class of each picture
    classes: tuple[str, ...] = ()  # classification: display names
    captions: tuple[str, ...] = ()  # retrieval: different texts, in the order of the file
    matches: tuple[tuple[int, int], ...] = ()  # retrieval: (picture, caption) that belong together


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A picture of an evaluation that a pool stores too."""

    task: str
    file: str
    pool: str
    key: str
    uid: str


# --- what a task holds ---------------------------------------------------------------------------------------------


def samples(task: TaskSpec) -> Samples:
    """The pictures of a task with their classes or captions. ValueError says what its folder lacks."""
    if not re.fullmatch(r"[\w.-]+", task.name):
        raise ValueError(
            f"task {task.name!r}: its file takes a name of letters, digits, '.', '_' and '-'"
        )
    if not disk.exists(task.data):
        raise ValueError(f"task {task.name!r}: there is no folder {task.data}")
    return _classes(task) if task.kind == "classification" else _captions(task)


def _classes(task: TaskSpec) -> Samples:
    found = {}
    for folder in disk.list_names(task.data):
        pictures = [
            f for f in disk.list_names(disk.join(task.data, folder)) if f.lower().endswith(SUFFIXES)
        ]
        if pictures:
            found[folder] = pictures
    if len(found) < 2:
        raise ValueError(
            f"task {task.name!r}: {task.data} has {len(found)} folders of pictures ({', '.join(SUFFIXES)}); "
            "classification takes one folder a class, and at least two"
        )
    if task.classes and len(task.classes) != len(found):
        raise ValueError(
            f"task {task.name!r} names {len(task.classes)} classes, but {task.data} has {len(found)} folders: "
            f"{', '.join(list(found)[:5])} …"
        )
    for template in task.templates:
        if template.count("{}") != 1:
            raise ValueError(
                f"task {task.name!r}: template {template!r} must hold {{}} once, where the class goes"
            )
    if not task.templates:
        raise ValueError(
            f"task {task.name!r} has no templates; leave the key out for 'a photo of a {{}}'"
        )
    return Samples(
        files=tuple(f"{folder}/{name}" for folder, pictures in found.items() for name in pictures),
        labels=tuple(i for i, pictures in enumerate(found.values()) for _ in pictures),
        classes=task.classes or tuple(folder.replace("_", " ") for folder in found),
    )


def _captions(task: TaskSpec) -> Samples:
    path = disk.join(task.data, "captions.csv")
    if not disk.exists(path):
        raise ValueError(
            f"task {task.name!r}: there is no {path}; retrieval reads its columns file and caption"
        )
    rows = csv.DictReader(io.StringIO(disk.read_bytes(path).decode("utf-8-sig"), newline=""))
    columns = list(rows.fieldnames or ())
    for column in ("file", "caption"):
        if column not in columns:
            raise ValueError(
                f"{path} has no column {column!r}{disk.did_you_mean(column, columns)} (of {', '.join(columns) or 'none'})"
            )
    pictures: dict[str, int] = {}
    captions: dict[str, int] = {}
    matches: dict[tuple[int, int], None] = {}
    for row in rows:
        if not row["file"] or not row["caption"]:
            raise ValueError(f"{path} line {rows.line_num}: file and caption must both be there")
        picture = pictures.setdefault(row["file"], len(pictures))
        matches[picture, captions.setdefault(row["caption"], len(captions))] = None
    if len(pictures) < 2:
        raise ValueError(f"{path} names {len(pictures)} pictures; retrieval takes at least two")
    for file in pictures:
        if not disk.exists(disk.join(task.data, file)):
            raise ValueError(f"{path}: there is no picture {disk.join(task.data, file)}")
    return Samples(files=tuple(pictures), captions=tuple(captions), matches=tuple(matches))


@functools.lru_cache(maxsize=32)
def hashes(folder: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """sha256 of each file, read once per process."""
    return tuple(
        hashlib.sha256(disk.read_bytes(disk.join(folder, file))).hexdigest() for file in files
    )


def data_hash(task: TaskSpec) -> str:
    """Hash of a task's pictures and of what belongs to them: equal for equal data wherever it lies."""
    found = samples(task)
    return disk.content_hash({"samples": found, "sha256": hashes(task.data, found.files)})


def overlap(pools: Sequence[str], tasks: Sequence[TaskSpec]) -> list[Shared]:
    """Evaluation pictures that a pool stores too, by the sha256 of the bytes as they were received."""
    where: dict[str, list[tuple[str, str]]] = {}
    for task in tasks:
        files = samples(task).files
        for file, sha256 in zip(files, hashes(task.data, files), strict=True):
            where.setdefault(sha256, []).append((task.name, file))
    wanted = pa.array(list(where), pa.string())
    shared = []
    for pool in pools:
        shards = disk.join(pool, "shards")
        for record in disk.list_names(shards, "_stats.json"):
            path = disk.join(shards, record.removesuffix("_stats.json") + ".parquet")
            rows = disk.read_parquet(path, columns=["key", "uid", "sha256", "reason"])
            stored = rows.filter(
                pc.and_(pc.is_null(rows["reason"]), pc.is_in(rows["sha256"], value_set=wanted))
            )
            for row in stored.to_pylist():
                for name, file in where[row["sha256"]]:
                    shared.append(
                        Shared(task=name, file=file, pool=pool, key=row["key"], uid=row["uid"])
                    )
    return shared


def refuse_overlap(pools: Sequence[str], tasks: Sequence[TaskSpec]) -> dict[str, int]:
    """How many pictures of each task a pool stores too; ValueError where a task does not allow any."""
    shared = overlap(pools, tasks)
    for task in tasks:
        found = [s for s in shared if s.task == task.name]
        if found and not task.allow_overlap:
            first = found[0]
            raise ValueError(
                f"task {task.name!r}: its picture {first.file} is also in the pool {first.pool} (key {first.key}, uid "
                f"{first.uid}), as are {len({s.file for s in found}) - 1} others; take them out of the one or the "
                "other, or set allow_overlap: true in the task"
            )
    return {task.name: len({s.file for s in shared if s.task == task.name}) for task in tasks}


# --- vectors -------------------------------------------------------------------------------------------------------

_decoded: dict[tuple[str, tuple[str, ...], tuple[int, int]], np.ndarray] = {}


def pictures(folder: str, files: tuple[str, ...], size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Batches BHWC uint8 of the pictures as a model of `size` (H, W) sees them; what fits in 2 GiB is decoded once."""
    key = (folder, files, size)
    keep = (
        sum(x.nbytes for x in _decoded.values()) + len(files) * math.prod(size) * 3 <= CACHE_BYTES
    )
    if key not in _decoded and keep:
        _decoded[key] = np.concatenate(list(_decode(folder, files, size)))
    if key not in _decoded:
        yield from _decode(folder, files, size)
        return
    held = _decoded[key]
    for start in range(0, len(held), BATCH):
        yield held[start : start + BATCH]


def _decode(folder: str, files: tuple[str, ...], size: tuple[int, int]) -> Iterator[np.ndarray]:
    def one(file: str) -> np.ndarray:
        path = disk.join(folder, file)
        try:
            return augment.centre_crop(decode_image(disk.read_bytes(path)), size)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is no picture that can be decoded: {error}") from error

    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as threads:
        for start in range(0, len(files), BATCH):
            yield np.stack(list(threads.map(one, files[start : start + BATCH])))


def image_vectors(model: CLIP, batches: Iterator[np.ndarray], device: torch.device) -> Tensor:
    """Unit vectors NE of BHWC uint8 pictures, in main memory."""
    found = []
    for batch_BHWC in batches:
        pixels_BHWC = torch.from_numpy(np.ascontiguousarray(batch_BHWC)).to(device)
        image_BCHW = augment.normalise(pixels_BHWC, model.config.image_mean, model.config.image_std)
        found.append(model.encode_image(image_BCHW).float().cpu())
    return torch.cat(found)


@functools.lru_cache(maxsize=4)
def _tokenizer(context_length: int) -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(context_length=context_length)


def text_vectors(
    model: CLIP, texts: Sequence[str], device: torch.device, tokenizer: str = "clip"
) -> Tensor:
    """Unit vectors NE of texts, in main memory; what is longer than the model's context ends with the end token."""
    if tokenizer != "clip":
        raise ValueError(f"there is no tokenizer {tokenizer!r}; evaluation knows 'clip'")
    tokens_NT = _tokenizer(model.config.context_length)(list(texts))
    return torch.cat(
        [model.encode_text(part.to(device)).float().cpu() for part in tokens_NT.split(BATCH)]
    )


def class_vectors(
    model: CLIP,
    classes: Sequence[str],
    templates: Sequence[str],
    device: torch.device,
    tokenizer: str = "clip",
) -> Tensor:
    """Unit vectors CE: the mean over the templates of unit vectors, scaled to length 1 again."""
    prompts = [template.replace("{}", name) for name in classes for template in templates]
    vectors_NE = text_vectors(model, prompts, device, tokenizer)
    return l2_normalise(vectors_NE.view(len(classes), len(templates), -1).mean(dim=1))


# --- metrics -------------------------------------------------------------------------------------------------------


def classify(
    image_NE: Tensor, class_CE: Tensor, labels: Sequence[int], scale: float
) -> tuple[dict[str, Any], Metrics]:
    """Columns of the predictions, and accuracy, accuracy5 and mean_class_accuracy (each class weighs the same)."""
    logits_NC = scale * image_NE @ class_CE.T
    label_N = torch.as_tensor(labels)
    top_values, top = logits_NC.topk(min(5, logits_NC.shape[1]), dim=1)
    correct_N, correct5_N = top[:, 0] == label_N, (top == label_N[:, None]).any(dim=1)
    columns = {
        "label": label_N.int().numpy(),
        "predicted": top[:, 0].int().numpy(),
        "correct": correct_N.numpy(),
        "correct5": correct5_N.numpy(),
        "score": (top_values[:, 0] - top_values[:, 1]).float().numpy(),
    }
    per_class = [correct_N[label_N == c].double().mean().item() for c in range(logits_NC.shape[1])]
    return columns, {
        "accuracy": correct_N.double().mean().item(),
        "accuracy5": correct5_N.double().mean().item(),
        "mean_class_accuracy": float(np.mean(per_class)),
    }


def ranks(query_NE: Tensor, candidate_ME: Tensor, matches: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each query the number of wrong candidates at least as near as its nearest right one; `matches` are (n, m).

    A tie counts against the model, and so does a vector that is not finite. Memory is O(BATCH × M).
    """
    right: list[list[int]] = [[] for _ in range(len(query_NE))]
    for n, m in matches:
        right[n].append(m)
    found = []
    for start in range(0, len(query_NE), BATCH):
        similarity_BM = query_NE[start : start + BATCH] @ candidate_ME.T
        right_BM = torch.zeros_like(similarity_BM, dtype=torch.bool)
        for row, columns in enumerate(right[start : start + BATCH]):
            right_BM[row, columns] = True
        best_B = similarity_BM.masked_fill(~right_BM, -torch.inf).amax(dim=1)
        nearer_BM = ~(similarity_BM < best_B[:, None]) & ~right_BM
        found.append(nearer_BM.sum(dim=1).int().numpy())
    return np.concatenate(found)


def retrieve(image_NE: Tensor, text_ME: Tensor, held: Samples) -> tuple[dict[str, Any], Metrics]:
    """Columns of the predictions, and recall@1/5/10 of each direction (`image_to_text_recall@1`) and their means."""
    by_image = ranks(image_NE, text_ME, held.matches)
    by_text = ranks(text_ME, image_NE, [(m, n) for n, m in held.matches])
    columns = {
        "direction": ["image_to_text"] * len(by_image) + ["text_to_image"] * len(by_text),
        "sample": [*held.files, *held.captions],
        "rank": np.concatenate([by_image, by_text]),
    }
    metrics: Metrics = {}
    for k in RECALLS:
        both = float((by_image < k).mean()), float((by_text < k).mean())
        metrics |= {f"recall@{k}": sum(both) / 2}
        metrics |= {f"image_to_text_recall@{k}": both[0], f"text_to_image_recall@{k}": both[1]}
    return columns, metrics


# --- the whole -----------------------------------------------------------------------------------------------------


def evaluate(
    model: CLIP,
    tasks: Sequence[TaskSpec],
    out: str,
    *,
    tokenizer: str = "clip",
    device: str | torch.device = "cpu",
) -> dict[str, Metrics]:
    """Every task's metrics; out/TASK.parquet gets one row per sample, and them in its footer.

    ValueError for a task whose folder cannot be read. The model is left on `device`, as it was otherwise.
    """
    place, was_training = torch.device(device), model.training
    model.to(place).eval()
    with torch.inference_mode():
        found = {task.name: _evaluate(model, task, out, tokenizer, place) for task in tasks}
    model.train(was_training)
    return found


def _evaluate(
    model: CLIP, task: TaskSpec, out: str, tokenizer: str, device: torch.device
) -> Metrics:
    held = samples(task)
    image_NE = image_vectors(
        model, pictures(task.data, held.files, model.config.height_width), device
    )
    if task.kind == "classification":
        class_CE = class_vectors(model, held.classes, task.templates, device, tokenizer)
        columns, metrics = classify(image_NE, class_CE, held.labels, model.logit_scale.exp().item())
        columns = {"sample": list(held.files), **columns}
    else:
        columns, metrics = retrieve(
            image_NE, text_vectors(model, held.captions, device, tokenizer), held
        )
    notes = {
        "task": task,
        "metrics": metrics,
        "classes": held.classes,
        "data_hash": data_hash(task),
    }
    disk.write_parquet(disk.join(out, f"{task.name}.parquet"), pa.table(columns), notes)
    return metrics


def measured(out: str, task: TaskSpec) -> Metrics | None:
    """The metrics that out/TASK.parquet holds for this task and these pictures; None where they must be computed."""
    path = disk.join(out, f"{task.name}.parquet")
    if not disk.exists(path):
        return None
    notes = disk.read_metadata(path)
    same = notes.get("task") == disk.to_plain(task) and notes.get("data_hash") == data_hash(task)
    return notes["metrics"] if same else None
