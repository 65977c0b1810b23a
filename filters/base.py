"""What a filter is: it reads images and captions and adds columns. It never drops a row.

A filter is a dataclass whose fields are its options. The id of its columns covers everything that
its result depends on: name, version, the options that are not marked FREE, and `identity()` (the
hash of weights that it reads).
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from manifests import disk
from manifests.schema import Recipe

# Metadata of an option that is not part of the id: it changes the speed only, or identity() covers
# it.
FREE: dict[str, Any] = {"free": True}

Columns = dict[str, "Sequence[Any] | np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some stored rows of one shard, in tar order. All parts have the same length.

    captions: never None if the filter needs captions. images: RGB, or None if no filter of the pass
    needs them. rows: the sidecar's columns, for filters that need "row".
    """

    captions: list[str]
    images: list[Image.Image] | None
    rows: pa.Table


class Filter(abc.ABC):
    """One judgement about rows. A worker calls `setup` once and then `score` for each batch."""

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raise it when the same input gives other values
    needs: ClassVar[frozenset[str]]  # of "image", "caption", "row"
    adds: ClassVar[dict[str, pa.DataType]]
    meanings: ClassVar[dict[str, str]]  # one line for each column of `adds`
    device: str = "cpu"  # cpu, cuda, or auto: cuda where there is one

    def identity(self) -> str:
        """A hash or a name of what the filter reads beside its options. It loads no model.

        ValueError if that does not exist.
        """
        return ""

    def check(self) -> None:  # noqa: B027 - most options are checked by the dataclass itself
        """ValueError for options that cannot work together. It loads no weights and needs no
        pool."""

    def setup(self) -> None:  # noqa: B027 - most filters hold nothing
        """Load models and tables."""

    @abc.abstractmethod
    def score(self, batch: Batch) -> Columns:
        """A value per row for each column of `adds`; None or NaN where there is none."""

    def alternatives(self) -> tuple[Filter, ...]:
        """The filter with each option that depends on the machine fixed, one filter for each way
        to fix it."""
        return (self,)

    def resolved(self, *, gpu: bool) -> Filter:
        """That one of `alternatives` which a machine with or without a GPU runs."""
        return self

    @classmethod
    def options_from(cls, recipe: Recipe) -> dict[str, Any]:
        """Options that a recipe decides where its filter list leaves them out."""
        return {}


def set_id(filter_: Filter) -> str:
    """12 hex digits: two filters have the same id exactly if they give the same columns."""
    assert len(filter_.alternatives()) == 1, f"{filter_.name} must be resolved first"
    assert dataclasses.is_dataclass(filter_)
    free = {f.name for f in dataclasses.fields(filter_) if f.metadata.get("free")}
    options = {key: value for key, value in options_of(filter_).items() if key not in free}
    return disk.content_hash([filter_.name, filter_.version, options, filter_.identity()])


def options_of(filter_: Filter) -> dict[str, Any]:
    """All options with their values, defaults too."""
    assert dataclasses.is_dataclass(filter_)
    return {f.name: getattr(filter_, f.name) for f in dataclasses.fields(filter_) if f.init}


def with_options(filter_: Any, **options: Any) -> Any:
    """A copy of a filter with other options. What `setup` loaded is not copied."""
    return type(filter_)(**{**options_of(filter_), **options})


def package_folder(package: str, name: str) -> Path:
    """The folder of an installed package. The package is not imported (open_clip imports torch).

    ValueError for filter `name` if it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"filter {name} needs the package {package}, which is not installed: "
            "pip install -e '.[score]'"
        )
    return Path(spec.submodule_search_locations[0])


def check_options(filter_class: type, options: Mapping[str, Any], name: str) -> None:
    """ValueError for an option that `filter_class` does not have, with the nearest that it has."""
    known = [f.name for f in dataclasses.fields(filter_class) if f.init]
    for option in options:
        if option not in known:
            available = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(
                f"filter {name} has no option {option!r}{disk.did_you_mean(option, known)}; "
                f"{available}"
            )
