from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from manifests import disk
from manifests.schema import TaskSpec
from tests.support.task_data import images_of, tar_members, task_of, write_tar
from train.eval_data.samples import Samples, read_captioned, read_labelled

CLASSES = ["dark_red", "green", "sky_blue"]


def test_labels_are_numbers_or_texts(coloured: Samples, tmp_path: Path) -> None:
    images = images_of(coloured)
    numbers = tar_members(images, [f"{label}\n" for label in coloured.labels], "cls")
    tar = write_tar(tmp_path / "n.tar", numbers)
    samples = read_labelled(task_of(tar, classes=["r", "g", "b"]))
    assert (samples.labels, images_of(samples)) == (coloured.labels, images)
    assert samples.files[:2] == ("k0000.jpg", "k0001.png")
    assert samples.images.path(1) == f"{tar}:k0001.png"
    texts = tar_members(images, [CLASSES[label] for label in coloured.labels], "cls")
    samples = read_labelled(task_of(write_tar(tmp_path / "t.tar", texts)))
    assert (samples.labels, samples.classes) == (coloured.labels, coloured.classes)


def test_the_shards_of_a_pool_are_read_if_they_are_committed(
    described: Samples, tmp_path: Path
) -> None:
    images, shards = images_of(described), tmp_path / "pool" / "shards"
    write_tar(shards / "00000.tar", tar_members(images[:3], ["a", "b", "c"], "txt"))
    write_tar(shards / "00001.tar", tar_members(images[3:], ["d", "e"], "txt", first=3))
    disk.write_json(shards / "00000_stats.json", {})
    (shards / "00000.parquet").write_bytes(b"the sidecar is not read")
    for data in (shards, tmp_path / "pool"):
        assert read_captioned(task_of(data, "retrieval")).captions == ("a", "b", "c")


def test_labels_and_groups_of_json_and_npy(coloured: Samples, tmp_path: Path) -> None:
    members = []
    for number, (image, label) in enumerate(zip(images_of(coloured), coloured.labels, strict=True)):
        sink = io.BytesIO()
        np.save(sink, np.array([number % 2, 7]))
        suffix = "png" if number % 2 else "jpg"
        members += [(f"{number:02d}.{suffix}", image), (f"{number:02d}.npy", sink.getvalue())]
        members += [(f"{number:02d}.json", json.dumps({"colour": CLASSES[label]}).encode())]
    tar = write_tar(tmp_path / "g.tar", members)
    samples = read_labelled(task_of(tar, columns={"label": "json:colour", "group": "npy:0"}))
    assert samples.labels == coloured.labels
    assert samples.groups == ("0", "1") * 9
    for columns, message in (
        ({"label": "json:color"}, r"sample 00: json:color cannot be read \(KeyError\('color'\)"),
        ({"label": "json:colour", "group": "npy:2"}, r"sample 00: npy:2 cannot be read"),
        ({"label": "json"}, "json cannot be read .*a label is a number or a text"),
        ({"label": "cls"}, r"has no member \.cls \(beside the image: npy, json\)"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labelled(task_of(tar, columns=columns))


def test_a_tar_with_a_fault_is_named(colours: TaskSpec, coloured: Samples, tmp_path: Path) -> None:
    images = images_of(coloured)
    lonely = write_tar(tmp_path / "a.tar", [("x.cls", b"0")])
    with pytest.raises(ValueError, match=r"a\.tar, sample x has no image \(jpg, jpeg"):
        read_labelled(task_of(lonely))
    twice = tar_members(images[:2], ["a", "b"], "cls")
    write_tar(tmp_path / "b" / "0.tar", twice)
    write_tar(tmp_path / "b" / "1.tar", twice)
    with pytest.raises(ValueError, match=r"1\.tar, sample k0000 is there twice"):
        read_labelled(task_of(tmp_path / "b"))
    with pytest.raises(ValueError, match="has no samples"):
        read_labelled(task_of(write_tar(tmp_path / "c.tar", [])))
    whole = Path(write_tar(tmp_path / "d.tar", twice)).read_bytes()
    (tmp_path / "d.tar").write_bytes(whole[: len(images[0]) + 600])
    with pytest.raises(ValueError, match=r"d\.tar is no plain tar, or it is cut"):
        read_labelled(task_of(tmp_path / "d.tar"))
    with tarfile.open(tmp_path / "e.tar", "w:gz") as tar:
        tar.add(colours.data, "x")
    with pytest.raises(ValueError, match=r"e\.tar is no plain tar"):
        read_labelled(task_of(tmp_path / "e.tar"))


def test_a_tar_that_was_written_anew_is_scanned_anew(coloured: Samples, tmp_path: Path) -> None:
    images = images_of(coloured)
    tar = write_tar(tmp_path / "a.tar", tar_members(images[:2], ["a", "b"], "cls"))
    assert len(read_labelled(task_of(tar)).files) == 2
    write_tar(tmp_path / "a.tar", tar_members(images[:9], ["a", "b", "c"] * 3, "cls"))
    assert len(read_labelled(task_of(tar)).files) == 9
