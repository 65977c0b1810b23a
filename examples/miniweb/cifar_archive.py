"""CIFAR-10's python archive as folders of PNGs: OUT/train/CLASS/0000.png and OUT/test/CLASS/…,
and OUT/test/captions.csv for retrieval.

Its files are pickles: what they may build is limited to lists, texts and arrays.
"""

from __future__ import annotations

import csv
import io
import pickle
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clipmill.examples.miniweb.labelled_photos import read_photos

SIDE = 32  # pixels
CAPTIONED = 200  # first test photographs of each class, with captions as the small web has them
NAMES = "batches.meta"
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
# What the pickles of the archive call; NumPy has since moved its module
ALLOWED = {
    ("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
}  # fmt: skip


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, and refuses everything else that a pickle may call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise ValueError(f"it calls {module}.{name}, which no array needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def unpack(archive: str | Path, out: str | Path) -> dict[str, int]:
    """Write the images of cifar-10-python.tar.gz, or of the folder that it unpacks to, into `out`.

    Returns the number of images of train and test. ValueError for another archive.
    """
    files = _files(Path(archive))
    if NAMES not in files:
        raise ValueError(f"{archive} is not CIFAR-10's python archive: it has no file {NAMES}")
    classes = [name.decode() for name in _unpickle(files[NAMES], NAMES)[b"label_names"]]
    counts = {}
    for part, names in PARTS.items():
        numbers: Counter[str] = Counter()
        for name in names:
            if name not in files:
                raise ValueError(f"{archive} has no file {name}")
            for label, image in _images(_unpickle(files[name], name)):
                path = Path(out) / part / classes[label] / f"{numbers[classes[label]]:04d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)
                numbers[classes[label]] += 1
        counts[part] = numbers.total()
    write_captions(Path(out) / "test")
    return counts


def write_captions(folder: Path) -> None:
    """FOLDER/captions.csv: the first photographs of each class with a right caption."""
    with open(folder / "captions.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("file", "caption"))
        for photo in read_photos(folder, None, 0):
            if int(Path(photo.file).stem) < CAPTIONED:
                table.writerow((photo.file, photo.caption))


def _files(archive: Path) -> dict[str, bytes]:
    """The files of the archive by name."""
    wanted = {NAMES, *(name for names in PARTS.values() for name in names)}
    if archive.is_dir():
        return {p.name: p.read_bytes() for p in archive.rglob("*") if p.name in wanted}
    if not archive.is_file():
        raise ValueError(f"{archive} does not exist")
    files = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                stream = tar.extractfile(member)
                if name in wanted and stream is not None:
                    files[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{archive} cannot be read as a tar file: {error}") from error
    return files


def _unpickle(data: bytes, name: str) -> dict[bytes, Any]:
    try:
        value = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except (ValueError, pickle.UnpicklingError, EOFError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} cannot be read as a pickle of arrays: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds no table of images")
    return value


def _images(batch: dict[bytes, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """(label, image of height × width × 3) of each row of a batch."""
    for label, pixels in zip(batch[b"labels"], batch[b"data"], strict=True):
        planes = np.asarray(pixels, dtype=np.uint8).reshape(3, SIDE, SIDE)
        yield label, np.ascontiguousarray(planes.transpose(1, 2, 0))
