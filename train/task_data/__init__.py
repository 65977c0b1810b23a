"""The data of evaluation tasks in every format that is read, and CLIP_benchmark's written."""

from __future__ import annotations

from train.task_data.associations import read_associations
from train.task_data.benchmark_layout import write_benchmark
from train.task_data.images import (
    BATCH_SIZE,
    ImageFiles,
    ImageSource,
    batch_rows,
    decoded_batches,
    image_hashes,
    map_images,
)
from train.task_data.samples import Samples
from train.task_data.sources import read_captioned, read_labelled, read_probe

__all__ = [
    "BATCH_SIZE",
    "ImageFiles",
    "ImageSource",
    "Samples",
    "batch_rows",
    "decoded_batches",
    "image_hashes",
    "map_images",
    "read_associations",
    "read_captioned",
    "read_labelled",
    "read_probe",
    "write_benchmark",
]
