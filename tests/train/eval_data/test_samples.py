from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.task_data import task_of
from train.eval_data.images import ImageFiles
from train.eval_data.samples import RawSamples, captioned_samples, labelled_samples

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
