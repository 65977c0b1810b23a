"""Folders of images that look like photographs of a few classes, for tests of a web of them."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"apple": (200, 40, 30), "frog": (40, 170, 60), "sky": (60, 110, 220)}
Pixels = np.ndarray


def pixels_of(label: str, number: int, side: int = 32) -> Pixels:
    """Noise and light on the colour of a class: no two images are alike."""
    rng = np.random.default_rng([list(COLOURS).index(label), number])
    light = np.linspace(0.5, 1.3, side)[:, None, None] * rng.uniform(0.8, 1.2)
    noise = rng.normal(0, 25, (side, side, 3))
    return np.clip(np.asarray(COLOURS[label]) * light + noise, 0, 255).astype(np.uint8)


def make_folder(root: Path, per_class: int, *, suffix: str = ".jpg", first: int = 0) -> Path:
    """`root`/CLASS/NNNN.jpg of every class."""
    for label in COLOURS:
        (root / label).mkdir(parents=True)
        for number in range(first, first + per_class):
            Image.fromarray(pixels_of(label, number)).save(root / label / f"{number:04d}{suffix}")
    return root


def make_archive(path: Path, per_class: int, *, files: Sequence[str] | None = None) -> Path:
    """An archive in the form of CIFAR-10's: five batches for training, one for the test."""
    labels = list(COLOURS)
    batches: dict[str, dict[bytes, object]] = {
        "batches.meta": {b"label_names": [label.encode() for label in labels]}
    }
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for batch, name in enumerate(names):
        rows, of = [], []
        for number in range(per_class):
            for index, label in enumerate(labels):
                rows.append(pixels_of(label, 100 * batch + number).transpose(2, 0, 1).reshape(-1))
                of.append(index)
        batches[name] = {b"data": np.stack(rows), b"labels": of}
    with tarfile.open(path, "w:gz") as tar:
        for name, batch_data in batches.items():
            if files is not None and name not in files:
                continue
            data = pickle.dumps(batch_data, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
