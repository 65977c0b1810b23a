"""A filter under several names: its columns, and names that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from clipmill.filters import FILTERS, check_filters, instances_of
from clipmill.filters.columns import instance_column
from clipmill.manifests.schema import FilterSpec

CLIP = {"model": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}


def test_two_instances_of_a_filter() -> None:
    instances = instances_of(
        [
            FilterSpec(name="clip_score", options=CLIP),
            FilterSpec(name="clip_l14", kind="clip_score", options=CLIP),
            FilterSpec(name="pic2", options={"picture": None}),
        ]
    )
    assert list(instances) == ["clip_score", "clip_l14", "pic2"]
    assert list(instances["clip_l14"].columns()) == ["clip_l14"]
    assert instances["clip_l14"].meanings().keys() == {"clip_l14"}
    assert instances["clip_l14"].column_names() == {"clip_score": "clip_l14"}
    assert "pic2_entropy" in instances["pic2"].columns()
    assert instances["pic2"].kind == "picture"
    assert instances["clip_score"].columns() == FILTERS["clip_score"].adds
    assert instance_column("duplicate", "near", "duplicate_group") == "near_group"
    assert instance_column("caption", "long", "caption_words") == "long_words"


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        (
            "clip_l14", {"clip_scor": {"model": "x"}}, None,
            "there is no filter 'clip_l14' and no filter 'clip_scor'; did you mean 'clip_score'",
        ),
        ("clip_scor", {"model": "x"}, None, "no filter 'clip_scor'; did you mean 'clip_score'"),
        ("near", {}, "duplicat", "no filter 'near' and no filter 'duplicat'"),
        ("status", {}, "caption", "cannot be named 'status', which is a column of every pool"),
        ("width", {}, "caption", "cannot be named 'width', which is a column of every pool"),
        ("caption", {}, "picture", "cannot be named 'caption', which is a column of every pool"),
        ("aspect", {}, "caption", "cannot be named 'aspect'"),
        ("group", {}, "caption", "cannot be named 'group'"),
        ("picture", {}, "caption", "cannot be named 'picture', which is another filter"),
        ("brightness", {}, "caption", "'brightness', which is a column of the filter picture"),
        ("phash", {}, "picture", "'phash', which is a column of the filter picture"),
        ("caf\u00e9", {}, "caption", "cannot be named 'caf\u00e9': use a letter a-z,"),
        ("a@b", {}, "caption", "cannot be named 'a@b'"),
        ("../a", {}, "caption", r"cannot be named '\.\./a'"),
        ("A", {}, "caption", "cannot be named 'A'"),
        ("", {}, "caption", "cannot be named ''"),
        ("a" * 61, {}, "caption", "at most 60 characters"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(
    name: str, options: dict[str, Any], kind: str | None, message: str
) -> None:
    spec = FilterSpec(name=name, options=options, kind=kind)
    with pytest.raises(ValueError, match=message) as error:
        check_filters(instances_of([spec]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("specs", "extra", "message"),
    [
        ([("caption", None), ("caption", None)], (), "filters named twice: caption"),
        (
            [("clip", "picture"), ("clip_phash", "clip_score")], (),
            "filter clip_phash has the column 'clip_phash', which the filter clip has too",
        ),
        ([("image", "caption")], ("image_words",), "'image_words', which the sidecar has too"),
        (
            [("a", "caption"), ("a_words", "clip_score")], (),
            "filter a_words has the column 'a_words', which the filter a has too",
        ),
    ],
)  # fmt: skip
def test_columns_that_clash(
    specs: list[tuple[str, str | None]], extra: tuple[str, ...], message: str
) -> None:
    given = []
    for name, kind in specs:
        options = CLIP if kind == "clip_score" else {}
        given.append(FilterSpec(name=name, kind=kind, options=options))
    with pytest.raises(ValueError, match=message):
        check_filters(instances_of(given, extra), extra)


def test_a_column_that_no_filter_of_the_recipe_gives_is_told_before_any_stage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    balance = FilterSpec(name="balance", options={"t": 3})
    check_filters(instances_of([balance]))
    assert "filter balance reads concept_entries, which no filter of the recipe" in caplog.text
    caplog.clear()
    check_filters(
        instances_of([FilterSpec(name="near", kind="duplicate", options={"on": "sha256"})])
    )
    assert caplog.text == ""
