"""Labelled photographs: read from folders or a CSV, and divided for training and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.miniweb import labelled_photos
from tests.support.photo_folders import make_folder


def test_the_folder_of_an_image_names_what_it_shows(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 4)
    (root / "apple" / "notes.txt").write_text("no image")
    (root / "above.jpg").write_bytes(b"in no class")
    photos = labelled_photos.read_photos(root, None, seed=1)
    assert [photo.file for photo in photos[:2]] == ["apple/0000.jpg", "apple/0001.jpg"]
    assert len(photos) == 12
    for photo in photos:
        assert photo.caption.endswith(labelled_photos.named(photo.label))
    assert len({photo.caption for photo in photos if photo.label == "apple"}) > 1
    assert photos == labelled_photos.read_photos(root, None, seed=1)
    assert photos != labelled_photos.read_photos(root, None, seed=2)
    assert labelled_photos.named("apple") == "an apple"
    assert labelled_photos.named("fire_truck") == "a fire truck"


def test_a_csv_has_captions_and_perhaps_labels(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 1)
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nsky/0000.jpg,blue above\nfrog/0000.jpg,a green one\n")
    photos = labelled_photos.read_photos(root, table, seed=0)
    assert [(p.file, p.caption, p.label) for p in photos] == [
        ("frog/0000.jpg", "a green one", "a green one"),
        ("sky/0000.jpg", "blue above", "blue above"),
    ]
    table.write_text("file,caption,label\nsky/0000.jpg,blue above,sky\n")
    assert labelled_photos.read_photos(root, table, seed=0)[0].label == "sky"


def test_photographs_are_divided_once_and_for_all(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", 4)
    files = [path.relative_to(root) for path in sorted(root.rglob("*.jpg"))]
    # Files of different folders have the same name.
    rows = [f"{file},{'RED' if 'apple' in str(file) else 'cool'}" for file in files]
    labels = tmp_path / "labels.csv"
    parts = []
    for number, order in enumerate((rows, rows[::-1])):
        labels.write_text("\n".join(["file,label", *order]) + "\n")
        out = tmp_path / f"out{number}"
        with pytest.raises(ValueError, match=r"test is 12; .* names 12 photographs"):
            labelled_photos.divide(root, labels, out, test=12, seed=3)
        assert labelled_photos.divide(root, labels, out, test=5, seed=3) == 7
        parts.append({p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.jpg")})
    assert parts[0] == parts[1]
    assert len(parts[0]) == 12
    assert sum(name.startswith("test/") for name in parts[0]) == 5
    with pytest.raises(ValueError, match="exists already"):
        labelled_photos.divide(root, labels, tmp_path / "out0", test=4, seed=4)
