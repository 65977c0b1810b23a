"""Samples of tasks: labels, classes, templates, captions, and lists by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests.schema import TaskSpec
from tests.support.task_data import task_of
from tests.support.tasks import changed, class_folders
from train.eval_data.images import ImageFiles
from train.eval_data.samples import (
    RawSamples,
    Samples,
    captioned_samples,
    labelled_samples,
    read_classes,
    read_probe,
    read_templates,
    write_benchmark,
)

IMAGES = ImageFiles("/d", ("a.png", "b.png", "c.png"))


def raw(**values: Any) -> RawSamples:
    return RawSamples(source="/d", images=IMAGES, **values)


def test_numbers_need_names_and_texts_bring_them() -> None:
    numbers = raw(labels=[1, 0, 1])
    assert labelled_samples(task_of("/d", classes=["x", "y"]), numbers).classes == ("x", "y")
    assert labelled_samples(
        task_of("/d"), raw(labels=[1, 0, 1], class_names=("p", "q"))
    ).labels == (
        1,
        0,
        1,
    )
    texts = labelled_samples(task_of("/d"), raw(labels=["b_c", "a", "b_c"]))
    assert (texts.classes, texts.labels) == (("a", "b c"), (1, 0, 1))


@pytest.mark.parametrize(
    ("changes", "values", "message"),
    [
        ({}, {"labels": [0, 1, 1]}, "labels of /d are numbers, and it names no classes"),
        ({"classes": ["x", "y"]}, {"labels": [0, 1, 2]}, r"label of c\.png is 2, but there are 2"),
        ({"classes": ["x", "y"]}, {"labels": [0, -1, 0]}, r"label of b\.png is -1"),
        ({}, {"labels": ["a", "a", "a"]}, "has 1 classes"),
        ({}, {"labels": ["a", "c", "b"], "class_names": ("a", "b")}, r"label of b\.png is 'c'"),
        (
            {"classes": ["x", "y"]},
            {"labels": [0, 1, 2], "class_names": ("p", "q", "r")},
            "names 2 classes, but /d has 3: p, q, r",
        ),
        ({}, {}, "/d has no labels"),
        ({"classes_from": "imagenets"}, {"labels": [0, 1, 2]}, "task 't': classes is 'imagenets'"),
        ({"templates_from": "openai"}, {"labels": ["a", "b", "b"]}, "templates is 'openai'"),
    ],
)
def test_labels_that_are_no_class_are_refused(
    changes: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        labelled_samples(task_of("/d", **changes), raw(**values))


def test_templates_are_the_tasks_else_the_datas_else_the_usual(tmp_path: Path) -> None:
    own = raw(labels=["a", "b", "b"], templates=("own {}",))
    assert labelled_samples(task_of("/d"), own).templates == ("own {}",)
    assert labelled_samples(task_of("/d", templates=["the {}"]), own).templates == ("the {}",)
    (tmp_path / "t.txt").write_text("a {c}.\n")
    from_file = task_of("/d", templates_from=str(tmp_path / "t.txt"))
    assert labelled_samples(from_file, own).templates == ("a {}.",)
    assert labelled_samples(task_of("/d"), raw(labels=["a", "b", "b"])).templates == (
        "a photo of a {}",
    )


def test_equal_captions_are_texts_of_their_own() -> None:
    samples = captioned_samples(
        task_of("/d", "retrieval"), raw(captions=[["x"], ["y", "x"], ["z"]])
    )
    assert samples.captions == ("x", "y", "x", "z")
    assert samples.matches == ((0, 0), (1, 1), (1, 2), (2, 3))
    with pytest.raises(ValueError, match=r"b\.png of /d has no caption"):
        captioned_samples(task_of("/d", "retrieval"), raw(captions=[["x"], [], ["z"]]))
    with pytest.raises(ValueError, match="/d has no captions"):
        captioned_samples(task_of("/d", "retrieval"), raw())


def test_the_lists_of_open_clip_have_its_names() -> None:
    import open_clip

    assert read_classes("imagenet") == tuple(open_clip.IMAGENET_CLASSNAMES)
    templates = read_templates("openai_imagenet")
    assert len(templates) == 80
    expected = [template("a fox") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert [template.replace("{}", "a fox") for template in templates] == expected
    assert len(read_templates("simple_imagenet")) == 7


def test_files_hold_a_name_per_line_or_a_json_list(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffcat\r\ndog\n\nred fox\n".encode())
    assert read_classes(str(tmp_path / "a.txt")) == ("cat", "dog", "red fox")
    (tmp_path / "a.json").write_text('["a photo of a {c}.", "{}"]')
    assert read_templates(str(tmp_path / "a.json")) == ("a photo of a {}.", "{}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("imagenett", None, r"classes is 'imagenett'; .* did you mean 'imagenet'\?"),
        ("none.txt", None, r"none\.txt does not exist"),
        ("a.json", b'{"a": 1}', "must hold a JSON list of texts"),
        ("a.json", b"[1]", "must hold a JSON list of texts"),
        ("a.json", b"[", "is not JSON"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_what_is_no_list_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = str(tmp_path / name) if "." in name else name
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_classes(path)


def test_a_probe_has_training_data_of_the_same_classes(colours: TaskSpec, tmp_path: Path) -> None:
    class_folders(tmp_path / "more")
    probe = changed(colours, kind="linear_probe", train_data=str(tmp_path / "more"))
    samples = read_probe(probe)
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/more/dark_red/0.jpg"
    assert samples.train.labels == samples.labels
    (tmp_path / "more" / "green").rename(tmp_path / "more" / "grass")
    with pytest.raises(ValueError, match=r"more has other classes than .* \(grass, green\)"):
        read_probe(probe)


def test_a_probe_takes_two_splits_of_one_folder(coloured: Samples, tmp_path: Path) -> None:
    for split in ("test", "train"):
        write_benchmark(coloured, str(tmp_path / "b"), split)
    samples = read_probe(task_of(tmp_path / "b", "linear_probe"))
    assert samples.train is not None
    assert samples.train.images.path(0) == f"{tmp_path}/b/train/0.tar:s0000000.jpg"
    with pytest.raises(ValueError, match="test and training data are both 'test' of"):
        read_probe(task_of(tmp_path / "b", "linear_probe", train_split="test"))
