"""What a filter is: it looks at pictures and captions and adds columns. It never drops a row.

A filter is a dataclass whose fields are its options. What its result depends on becomes the id of its columns: name,
version, the options that are not marked as free, and `identity()` (the hash of weights that it reads).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from PIL import Image

from manifests import disk

FREE: dict[str, Any] = {
    "free": True
}  # metadata of an option that changes the speed, or that identity() covers

Columns = dict[str, "Sequence[Any] | np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some stored rows of one shard, in tar order; all three have the same length.

    captions: never None where the filter needs captions. images: RGB, or None where no filter of the pass needs them.
    rows: the sidecar's columns, for filters that need "row".
    """

    captions: list[str]
    images: list[Image.Image] | None
    rows: pa.Table


class Filter(Protocol):
    """One judgement. `setup` is called once per worker before the first `score`."""

    name: ClassVar[str]
    version: ClassVar[int]  # raise it when the same input gives other values
    needs: ClassVar[frozenset[str]]  # of "image", "caption", "row"
    adds: ClassVar[dict[str, pa.DataType]]

    @property
    def device(self) -> str:
        """cpu, cuda, or auto: cuda where there is one."""

    def identity(self) -> str:
        """What it reads beside its options, as a hash or a name; loads no model. ValueError where that is missing."""

    def check(self) -> None:
        """Asked once before a pass: ValueError for options that only a heavier import can judge."""

    def setup(self) -> None:
        """Loads what is held."""

    def score(self, batch: Batch) -> Columns:
        """A value per row for each column of `adds`; None or NaN where there is none."""


def set_id(judge: Filter) -> str:
    """12 hex digits: two filters have the same id exactly when they give the same columns."""
    options = {k: v for k, v in options_of(judge).items() if k not in _free(judge)}
    return disk.content_hash([judge.name, judge.version, options, judge.identity()])


def options_of(judge: Filter) -> dict[str, Any]:
    """All options with their values, defaults too."""
    assert dataclasses.is_dataclass(judge)
    return {f.name: getattr(judge, f.name) for f in dataclasses.fields(judge) if f.init}


def file_hash(path: str | Path) -> str:
    """sha256 of a local file, hex; read in pieces, so that weights of any size fit."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def package_folder(package: str, name: str) -> Path:
    """Where an installed package lies, without importing it (open_clip brings torch along). ValueError for filter
    `name` where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"filter {name} needs the package {package}, which is not installed: pip install -e '.[score]'"
        )
    return Path(spec.submodule_search_locations[0])


def check_options(kind: type, options: Mapping[str, Any], name: str) -> None:
    """ValueError for an option that `kind` does not have, with the nearest that it has."""
    known = [f.name for f in dataclasses.fields(kind) if f.init]
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(
                f"filter {name} has no option {option!r}{disk.did_you_mean(option, known)}; {has}"
            )


def _free(judge: Filter) -> set[str]:
    assert dataclasses.is_dataclass(judge)
    return {f.name for f in dataclasses.fields(judge) if f.metadata.get("free")}
