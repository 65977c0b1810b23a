"""Filters by name and option, and the id that says whether two sets of columns are the same."""

from __future__ import annotations

from typing import Any

import pytest

from filters import FILTERS, make
from filters.base import check_options, options_of, package_folder, set_id
from manifests.columns import SIDECAR
from manifests.schema import FilterSpec

WEIGHTS = {"model": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}


def spec(name: str, **options: Any) -> FilterSpec:
    return FilterSpec(name=name, options=options)


def test_every_filter_adds_columns_of_its_own() -> None:
    columns = [column for kind in FILTERS.values() for column in kind.adds]
    assert len(columns) == len({*columns, *SIDECAR.names}) - len(SIDECAR.names)
    assert all(kind.name == name for name, kind in FILTERS.items())
    assert all(kind.needs <= {"image", "caption", "row"} for kind in FILTERS.values())


def test_an_unknown_filter_names_the_nearest_and_all() -> None:
    with pytest.raises(
        ValueError, match=r"'captoin'; did you mean 'caption'\?; there are caption, language"
    ):
        make(spec("captoin"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            spec("caption", min_words=3),
            "filter caption has no option 'min_words'; it has no options",
        ),
        (
            spec("clip_score", **WEIGHTS, batchsize=8),
            "no option 'batchsize'; did you mean 'batch_size'",
        ),
        (spec("clip_score", **WEIGHTS, batch_size="many"), "batch_size is 'many'"),
        (spec("clip_score", **WEIGHTS, device="tpu"), "device is 'tpu'"),
        (spec("clip_score"), "filter clip_score needs the option model"),
        (spec("clip_score", **WEIGHTS, loaded=1), "no option 'loaded'"),
        (spec("tokens", tokenizer="words"), "tokenizer is 'words'"),
    ],
)
def test_options_that_are_not_there_or_make_no_sense(asked: FilterSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(asked)


def test_the_id_follows_the_result_and_not_the_speed() -> None:
    plain = set_id(make(spec("clip_score", **WEIGHTS)))
    assert set_id(make(spec("clip_score", **WEIGHTS, batch_size=7, device="cpu"))) == plain
    assert set_id(make(spec("clip_score", **WEIGHTS, precision="bf16"))) != plain
    assert set_id(make(spec("clip_score", model="ViT-B-32", pretrained="laion400m_e32"))) != plain
    assert set_id(make(spec("caption"))) != set_id(make(spec("picture")))
    assert len(plain) == 12


def test_options_are_given_back_with_their_defaults() -> None:
    options = options_of(make(spec("clip_score", **WEIGHTS)))
    assert options == {**WEIGHTS, "batch_size": 256, "device": "auto", "precision": "auto"}
    assert options_of(make(spec("tokens"))) == {"tokenizer": "clip"}


def test_a_package_is_found_without_importing_it() -> None:
    assert (package_folder("pyarrow", "x") / "__init__.py").is_file()
    with pytest.raises(ValueError, match="filter x needs the package no_such_package"):
        package_folder("no_such_package", "x")


def test_options_of_a_kind_without_any() -> None:
    check_options(FILTERS["caption"], {}, "caption")
