"""Evaluation folders of noisy colours, and pools that hold given images."""

from __future__ import annotations

import csv
import hashlib
import io

import numpy as np
import pyarrow as pa
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.hashes import phash
from clipmill.manifests.layout import PoolLayout, uids_checksum
from clipmill.manifests.records import ScoreSetDocument
from clipmill.manifests.schema import TaskSpec
from tests.support.bundles import write_scores
from tests.support.commit_records import write_record

COLOURS = {"dark_red": (150, 20, 30), "green": (20, 160, 40), "sky_blue": (80, 140, 220)}


def draw(path, colour, seed, size=(40, 34)):
    """A noisy image of one colour."""
    noise = np.random.default_rng(seed).integers(-60, 60, size=(*size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(path)


def class_folders(folder):
    """Eighteen noisy images of three classes, PNG and JPEG."""
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(6):
            draw(folder / name / f"{i}.{'png' if i % 2 else 'jpg'}", colour, seed=10 * c + i)
    return TaskSpec(
        name="colours",
        kind="classification",
        data=str(folder),
        templates=("a photo of a {}", "{} in a picture", "one {} thing"),
    )


def captions_folder(folder):
    """Five images: the first has two captions, the last two share one."""
    rows = [
        ("a.png", "red"),
        ("a.png", "a red picture"),
        ("b.png", "green"),
        ("c.png", "blue"),
        ("d/d.png", "grey"),
        ("e.png", "grey"),
    ]
    for i, file in enumerate(dict.fromkeys(file for file, _ in rows)):
        draw(folder / file, list(COLOURS.values())[i % 3], seed=i)
    with open(folder / "captions.csv", "w", newline="") as f:
        csv.writer(f).writerows([("file", "caption"), *rows])
    return TaskSpec(name="captioned", kind="retrieval", data=str(folder))


def changed(task, **changes):
    """The task with other values of some fields."""
    other: TaskSpec = disk.from_plain(TaskSpec, {**disk.to_plain(task), **changes})
    return other


def recompress(data, quality=90):
    """The image as JPEG again."""
    sink = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(sink, "JPEG", quality=quality)
    return sink.getvalue()


def pool_with(folder, images, *, hashed=False):
    """A pool of one shard; None is a row that was not stored. `hashed`: with the column phash."""
    stored = [image is not None for image in images]
    rows = {
        "key": [f"00000{i:04d}" for i in range(len(images))],
        "uid": [f"{i:032x}" for i in range(len(images))],
        "sha256": [hashlib.sha256(image or b"gone").hexdigest() for image in images],
        "image_offset": pa.array([0 if is_stored else None for is_stored in stored], pa.int64()),
    }
    layout, table = PoolLayout(str(folder)), pa.table(rows)
    disk.write_parquet(layout.sidecar(0), table)
    write_record(str(folder), 0, count=len(images), successes=sum(stored), sidecar_sha256="ab" * 32)
    if hashed:
        values = []
        for image in images:
            values.append(None if image is None else phash(Image.open(io.BytesIO(image))))
        write_hashes(layout, pa.table({"phash": pa.array(values, pa.int64())}), table["uid"])
    return str(folder)


def write_hashes(layout, columns, uids):
    """A score set of the filter `picture` with the column phash alone."""
    name, checksum = "picture@0123456789ab", uids_checksum(uids)
    write_scores(layout.root, name, {0: (columns, {"uids": checksum})})
    write_score_set(layout, name, ("phash",), rows=len(columns))


def write_score_set(layout, name, columns, version=1, rows=0, **options):
    """The document of a score set FILTER@ID."""
    document = ScoreSetDocument(
        name=name.partition("@")[0],
        id=name.partition("@")[2],
        version=version,
        options=options,
        identity="",
        columns=columns,
        fingerprint="",
        rows=rows,
        stored=rows,
        scored=rows,
        seconds=0.0,
    )
    disk.write_json(layout.score_set_json(name), document)
