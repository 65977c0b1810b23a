"""A folder of labelled photographs: read with its captions, or divided for training and test."""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
TEMPLATES = (
    "a photo of {}", "a picture of {}", "a small photo of {}", "this is {}", "close-up of {}",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPhoto:
    """A photograph, what it shows, and a caption that is right."""

    file: str  # relative to the folder, with /
    caption: str
    label: str


def read_photos(folder: str | Path, captions: str | Path | None, seed: int) -> list[LabelledPhoto]:
    """The photographs of a folder in the order of their names.

    captions: a CSV with the columns file and caption, and label where it has one; without label,
    images with the same caption show the same. None: the folder of an image names what it shows,
    and the caption is one of TEMPLATES, drawn by (seed, file).
    ValueError where there is no image, or where a file that the CSV names does not exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"photos is {folder}, which is no folder")
    photos = _of_folders(root, seed) if captions is None else _of_csv(root, Path(captions))
    if not photos:
        form = "photos/CLASS/NAME.jpg" if captions is None else f"a row of {captions}"
        raise ValueError(f"{folder} has no images; each must be {form} ({', '.join(SUFFIXES)})")
    return sorted(photos, key=lambda photo: photo.file)


def _of_folders(root: Path, seed: int) -> list[LabelledPhoto]:
    photos = []
    for path in root.rglob("*"):
        file = path.relative_to(root).as_posix()
        if path.suffix.lower() not in SUFFIXES or "/" not in file:
            continue
        label = path.parent.name
        template = random.Random(f"caption/{seed}/{file}").choice(TEMPLATES)
        photos.append(LabelledPhoto(file=file, caption=template.format(named(label)), label=label))
    return photos


def named(label: str) -> str:
    """A label with its article: `an automobile`."""
    words = label.replace("_", " ")
    return f"{'an' if words[:1].lower() in set('aeiou') else 'a'} {words}"


def _of_csv(root: Path, captions: Path) -> list[LabelledPhoto]:
    photos = []
    for row in _rows(captions, ("file", "caption")):
        if not (root / row["file"]).is_file():
            raise ValueError(f"{captions} names {row['file']!r}, which is not in {root}")
        label = row.get("label") or row["caption"]
        photos.append(LabelledPhoto(file=row["file"], caption=row["caption"], label=label))
    return photos


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    with open(path, newline="", encoding="utf-8") as lines:
        table = csv.DictReader(lines)
        for column in columns:
            if column not in (table.fieldnames or ()):
                raise ValueError(f"{path} has no column {column!r}")
        return list(table)


def divide(folder: str | Path, labels: str | Path, out: str | Path, test: int, seed: int) -> int:
    """Copy the photographs that a CSV (file, label) names into OUT/test/LABEL, `test` drawn by the
    seed, and OUT/train/LABEL, the others. Returns how many these are.

    ValueError where fewer than `test` + 1 are named, where one does not exist, or where OUT has
    photographs already: a photograph must not be in both.
    """
    root = Path(folder)
    for part in ("train", "test"):
        if (Path(out) / part).exists():
            raise ValueError(f"{Path(out) / part} exists already; take another --out")
    rows = sorted(_rows(Path(labels), ("file", "label")), key=lambda row: row["file"])
    if not 0 < test < len(rows):
        raise ValueError(f"test is {test}; {labels} names {len(rows)} photographs, some must stay")
    random.Random(f"divide/{seed}").shuffle(rows)
    for number, row in enumerate(rows):
        source = root / row["file"]
        if not source.is_file():
            raise ValueError(f"{labels} names {row['file']!r}, which is not in {root}")
        label = row["label"].strip().lower().replace("/", "_")
        target = Path(out) / ("test" if number < test else "train") / label
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / row["file"].replace("/", "_"))
    return len(rows) - test
