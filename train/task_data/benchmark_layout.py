"""CLIP_benchmark's webdataset layout, read and written.

DATA/classnames.txt                          one class per line (classification)
DATA/zeroshot_classification_templates.txt   one template per line, with {c} for the class
DATA/dataset_type.txt                        `retrieval`; missing for classification
DATA/SPLIT/nshards.txt                       the number of tars
DATA/SPLIT/0.tar …                           {key}.webp|jpg|png with {key}.cls (a number), or
                                             {key}.txt with one caption per line
"""

from __future__ import annotations

import io
import logging
import tarfile

from manifests import disk
from manifests.schema import TaskSpec
from train.task_data.images import batch_rows, image_suffix
from train.task_data.names import read_lines, read_templates
from train.task_data.samples import RawSamples, Samples
from train.task_data.tars import read_tars

CLASSES_FILE = "classnames.txt"
TEMPLATES_FILE = "zeroshot_classification_templates.txt"
TYPE_FILE, COUNT_FILE = "dataset_type.txt", "nshards.txt"
TAR_SAMPLES = 10_000
logger = logging.getLogger(__name__)


def is_benchmark_layout(data: str, split: str) -> bool:
    """Whether a folder is in this layout, be it complete or not."""
    paths = [CLASSES_FILE, TYPE_FILE, TEMPLATES_FILE, f"{split}/{COUNT_FILE}", f"{split}/0.tar"]
    return any(disk.exists(disk.join(data, path)) for path in paths)


def read_benchmark(task: TaskSpec, data: str, split: str, needs: str) -> RawSamples:
    """A split of a folder in this layout.

    ValueError for a missing nshards.txt or tar, a count that is not that of the tars, and for a
    folder of another type than the task.
    """
    type_path = disk.join(data, TYPE_FILE)
    stated = disk.read_bytes(type_path).decode().strip().lower() if disk.exists(type_path) else ""
    kind = stated or "classification"
    expected = "retrieval" if needs == "caption" else "classification"
    if kind != expected:
        raise ValueError(f"task {task.name!r} is for {expected}, but {type_path} says {kind!r}")
    tars = _tars(task, data, split)
    raw = read_tars(task, tars, f"{data} ({split})", needs)
    if needs == "caption":
        return raw
    own = {name: disk.join(data, name) for name in (CLASSES_FILE, TEMPLATES_FILE)}
    return RawSamples(
        source=raw.source,
        images=raw.images,
        labels=raw.labels,
        groups=raw.groups,
        class_names=read_lines(own[CLASSES_FILE]) if disk.exists(own[CLASSES_FILE]) else None,
        templates=read_templates(own[TEMPLATES_FILE]) if disk.exists(own[TEMPLATES_FILE]) else None,
    )


def _tars(task: TaskSpec, data: str, split: str) -> list[str]:
    folder = disk.join(data, split)
    count_path = disk.join(folder, COUNT_FILE)
    if not disk.exists(folder):
        splits = [name for name in disk.list_names(data) if "." not in name]
        raise ValueError(
            f"task {task.name!r}: {data} has no split {split!r}{disk.did_you_mean(split, splits)} "
            f"(of {', '.join(splits) or 'none'}); set split"
        )
    present = disk.list_names(folder, ".tar")
    if not disk.exists(count_path):
        raise ValueError(
            f"task {task.name!r}: {count_path} is missing; it holds the number of tars "
            f"({len(present)} are there)"
        )
    text = disk.read_bytes(count_path).decode().strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{count_path} says {text!r}; it must hold the number of tars")
    tars = [f"{number}.tar" for number in range(int(text))]
    if sorted(tars) != present:
        wrong = sorted(set(tars) ^ set(present))
        raise ValueError(
            f"task {task.name!r}: {count_path} says {text} tars, but {folder} has {len(present)} "
            f"({wrong[0]} is {'missing' if wrong[0] in tars else 'not counted'}); copy it again"
        )
    return [disk.join(folder, tar) for tar in tars]


# --- writing --------------------------------------------------------------------------------------


def write_benchmark(samples: Samples, out: str, split: str = "test") -> int:
    """Write samples in this layout. Returns the number of images.

    The bytes of the images stay as they are; the keys are s0000000 and so on. nshards.txt is
    written last. ValueError for a folder that is not empty and for images in other formats.
    """
    if disk.list_names(disk.join(out, split)):
        raise ValueError(f"{disk.join(out, split)} exists and is not empty; choose a new folder")
    if samples.captions:
        _write_text(disk.join(out, TYPE_FILE), ["retrieval"])
    else:
        _write_text(disk.join(out, CLASSES_FILE), samples.classes)
        templates = [template.replace("{}", "{c}") for template in samples.templates]
        _write_text(disk.join(out, TEMPLATES_FILE), templates)
    captions_of: list[list[str]] = [[] for _ in samples.files]
    for image, caption in samples.matches:
        captions_of[image].append(samples.captions[caption])
    starts = range(0, len(samples.files), TAR_SAMPLES)
    for number, start in enumerate(starts):
        stop = min(start + TAR_SAMPLES, len(samples.files))
        data = _tar_bytes(samples, captions_of, range(start, stop))
        disk.write_bytes(disk.join(out, split, f"{number}.tar"), data)
    _write_text(disk.join(out, split, COUNT_FILE), [str(len(starts))])
    logger.info("%d images in %d tars: %s", len(samples.files), len(starts), out)
    return len(samples.files)


def _write_text(path: str, lines: list[str] | tuple[str, ...]) -> None:
    for line in lines:
        if "\n" in line or not line.strip():
            raise ValueError(f"{path}: {line!r} is not one line of text")
    disk.write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _tar_bytes(samples: Samples, captions_of: list[list[str]], indices: range) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for rows in batch_rows(len(indices)):
            first, last = indices[rows.start], indices[rows.stop - 1]
            for index, read in enumerate(samples.images.readers(first, last + 1), first):
                data = read()
                try:
                    suffix = image_suffix(data)
                except ValueError as error:
                    raise ValueError(f"{samples.images.path(index)}: {error}") from error
                key = f"s{index:07d}"
                if samples.captions:
                    # A caption with a line break would be read as two.
                    lines = [" ".join(caption.splitlines()) for caption in captions_of[index]]
                    text = (f"{key}.txt", "\n".join(lines).encode())
                else:
                    text = (f"{key}.cls", str(samples.labels[index]).encode())
                for name, content in ((f"{key}.{suffix}", data), text):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()
