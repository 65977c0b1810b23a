"""The format of a task's data, and its samples."""

from __future__ import annotations

import dataclasses

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.benchmark_layout import is_benchmark_layout, read_benchmark
from train.task_data.folders import read_captions, read_class_folders
from train.task_data.samples import RawSamples, Samples, captioned_samples, labelled_samples
from train.task_data.tables import read_tables
from train.task_data.tars import read_tars


def read_raw(task: TaskSpec, data: str, split: str, needs: str) -> RawSamples:
    """What lies at `data`: a tar or a Parquet file, CLIP_benchmark's layout, a folder of tars (such
    as the shards of a pool) or of Parquet files, or folders of images. `needs` is `label` or
    `caption`. ValueError names what is missing.
    """
    if not disk.exists(data):
        raise ValueError(f"task {task.name!r}: there is no folder {data}")
    if data.endswith(".tar"):
        return read_tars(task, [data], data, needs)
    if data.endswith(".parquet"):
        return read_tables(task, [data], data, needs)
    if is_benchmark_layout(data, split):
        return read_benchmark(task, data, split, needs)
    if needs == "caption" and disk.exists(disk.join(data, "captions.csv")):
        return read_captions(task, data)
    for folder in (data, disk.join(data, "shards")):
        if tars := committed_tars(folder):
            return read_tars(task, tars, folder, needs)
    if tables := disk.list_names(data, ".parquet"):
        of_split = [name for name in tables if name.startswith(f"{split}-")]
        files = [disk.join(data, name) for name in of_split or tables]
        return read_tables(task, files, data, needs)
    return read_captions(task, data) if needs == "caption" else read_class_folders(task, data)


def committed_tars(folder: str) -> list[str]:
    """The tars of a folder; if one has a commit record (NAME_stats.json), only those with one."""
    names = disk.list_names(folder)
    tars = [name for name in names if name.endswith(".tar")]
    records = {name.removesuffix("_stats.json") for name in names if name.endswith("_stats.json")}
    if records:
        tars = [name for name in tars if name.removesuffix(".tar") in records]
    return [disk.join(folder, name) for name in tars]


def read_labelled(task: TaskSpec) -> Samples:
    """The samples of a classification task."""
    return labelled_samples(task, read_raw(task, task.data, task.split, "label"))


def read_captioned(task: TaskSpec) -> Samples:
    """The samples of a retrieval task."""
    return captioned_samples(task, read_raw(task, task.data, task.split, "caption"))


def read_probe(task: TaskSpec) -> Samples:
    """The samples of a linear probe: those of the test data, with the training data as `train`.

    Both must have the same classes. ValueError where they do not, and where test and training data
    are the same split of the same folder.
    """
    train_data = task.train_data or task.data
    if (train_data, task.train_split) == (task.data, task.split):
        raise ValueError(
            f"task {task.name!r}: test and training data are both {task.split!r} of {task.data}; "
            "set train_data or train_split"
        )
    test = labelled_samples(task, read_raw(task, task.data, task.split, "label"))
    train = labelled_samples(task, read_raw(task, train_data, task.train_split, "label"))
    if test.classes != train.classes:
        different = sorted(set(test.classes) ^ set(train.classes))
        raise ValueError(
            f"task {task.name!r}: {train_data} has other classes than {task.data} "
            f"({', '.join(different[:5]) or 'another order'})"
        )
    return dataclasses.replace(test, train=train)
