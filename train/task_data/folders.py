"""Folders of images: one per class, or one with captions.csv."""

from __future__ import annotations

import csv
import io

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import ImageFiles
from train.task_data.samples import RawSamples

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def read_class_folders(task: TaskSpec, data: str) -> RawSamples:
    """Images and labels from DATA/CLASS/IMAGE; the labels are the folders' names.

    ValueError for fewer than two folders.
    """
    files_of = {}
    for folder in disk.list_names(data):
        names = disk.list_names(disk.join(data, folder))
        images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
        if images:
            files_of[folder] = images
    if len(files_of) < 2:
        raise ValueError(
            f"task {task.name!r}: {data} has {len(files_of)} folders of images "
            f"({', '.join(IMAGE_SUFFIXES)}); classification needs one folder per class, "
            "at least two, or tars, Parquet files or CLIP_benchmark's layout"
        )
    files: list[str] = []
    labels: list[str] = []
    for folder, images in files_of.items():
        files += [f"{folder}/{name}" for name in images]
        labels += [folder] * len(images)
    return RawSamples(
        source=f"{data} (folders)", images=ImageFiles(data, tuple(files)), labels=labels
    )


def read_captions(task: TaskSpec, data: str) -> RawSamples:
    """Images and captions from DATA/captions.csv (columns file, caption).

    A file may be repeated with other captions. ValueError names a missing file, column or cell with
    its line.
    """
    path = disk.join(data, "captions.csv")
    if not disk.exists(path):
        raise ValueError(
            f"task {task.name!r}: {path} does not exist; retrieval reads its columns "
            "file and caption, or tars, Parquet files or CLIP_benchmark's layout"
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
    captions: dict[str, list[str]] = {}
    for row in rows:
        if not row["file"] or not row["caption"]:
            raise ValueError(f"{path} line {rows.line_num}: file and caption must both be given")
        captions.setdefault(row["file"], []).append(row["caption"])
    for file in captions:
        if not disk.exists(disk.join(data, file)):
            raise ValueError(f"{path}: image {disk.join(data, file)} does not exist")
    images = ImageFiles(data, tuple(captions))
    return RawSamples(source=path, images=images, captions=list(captions.values()))
