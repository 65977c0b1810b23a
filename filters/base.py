"""What a filter is: it reads images, captions or columns and adds columns. It never drops a row.

A filter is a dataclass whose fields are its options. There are two kinds. A `Filter` looks at one
row at a time. A `PoolFilter` gives values that need other rows of the pool. The id of the columns
covers everything that the result depends on: name, version, the options that are not marked FREE,
`identity()` (the hash of weights that it reads), and the ids of the columns that it reads.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, Integers
from clipmill.manifests.schema import Recipe

# Metadata of an option that is not part of the id: it changes the speed only, or identity() or the
# ids of the columns that are read cover it.
FREE: dict[str, Any] = {"free": True}
# Metadata of an option that a filter got after pools had been scored by it: at its default it is
# not part of the id, so that those pools stay as they are.
LATER: dict[str, Any] = {"later": True}
# Metadata of the path of a file or a folder: a worker may start in another folder, so it is made
# absolute. The default and a URL stay. The second kind is a file that must be there; its hash, in
# place of the path, is part of the id.
PLACE: dict[str, Any] = {"free": True, "place": True}
FILE: dict[str, Any] = {**PLACE, "file": True}
# Metadata of numbers: the limits that `least`, `above`, `most` and `below` name.
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}
SHARE: dict[str, Any] = {"above": 0, "most": 1}
# Metadata of an option that belongs to one value of the option `on`: {"on": "embedding"}.
BETWEEN_0_AND_1: dict[str, Any] = {"above": 0, "below": 1}
# What `Filter.needs` may have.
NEEDS = frozenset({"image", "caption", "row", "json"})
# The column of `PoolFilter.judge_groups` that names the group of a row.
GROUP = "group"

Columns = dict[str, "Sequence[Any] | Array | pa.Array | pa.ChunkedArray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some stored rows of one shard, in tar order. All parts have the same length.

    captions: never None if the filter needs captions. images: RGB, or None if no filter of the pass
    needs them. rows: the sidecar's columns, for filters that need "row"; for filters that need
    "json", its column `json` has the bytes of each sample's JSON member. columns: the columns of
    the instances that the filter reads (`Filter.reads`), by the names that rules use.
    """

    captions: list[str]
    images: list[Image.Image] | None
    rows: pa.Table
    columns: Mapping[str, pa.Array] = field(default_factory=dict)


class FilterBase(abc.ABC):
    """What both kinds of filters have in common."""

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raise it when the same input gives other values
    adds: ClassVar[dict[str, pa.DataType]]
    meanings: ClassVar[dict[str, str]] = {}  # one line for each column of `adds`
    device: str = "cpu"  # cpu, cuda, or auto: cuda where there is one

    def __post_init__(self) -> None:
        """ValueError for a number beyond the bounds of its option, for a file that is not there,
        and for an option that belongs to another `on`."""
        for option in _options(self):
            value = getattr(self, option.name)
            if value is None or value == option.default:
                continue
            if option.metadata.get("place"):
                value = _absolute(value)
                setattr(self, option.name, value)
            if option.metadata.get("file") and not os.path.isfile(value):
                raise ValueError(f"filter {self.name}: there is no file {value} ({option.name})")
            wanted = option.metadata.get("on")
            if wanted is not None and wanted != getattr(self, "on", None):
                raise ValueError(
                    f"filter {self.name}: {option.name} is {value!r}; it belongs to on: {wanted}"
                )
            bounds = {kind: option.metadata[kind] for kind in BOUNDS if kind in option.metadata}
            if not all(BOUNDS[kind][1](value, bound) for kind, bound in bounds.items()):
                limits = [f"{BOUNDS[kind][0]} {bound}" for kind, bound in bounds.items()]
                raise ValueError(
                    f"filter {self.name}: {option.name} is {value}; it must be "
                    f"{' and '.join(limits)}"
                )

    @property
    def reads(self) -> tuple[str, ...]:
        """What the filter reads of other filters' columns; see the two kinds. A class may set a
        plain tuple instead."""
        return ()

    def columns(self) -> dict[str, pa.DataType]:
        """The columns with their types, by the names of `adds`: for types that depend on options.

        It loads no weights.
        """
        return dict(self.adds)

    def identity(self) -> str:
        """A hash or a name of what the filter reads beside its options: the files that it names.
        It loads no model.

        ValueError if that does not exist.
        """
        paths = [getattr(self, each.name) for each in _options(self) if each.metadata.get("file")]
        return ":".join(disk.file_sha256(path) for path in paths if path is not None)

    def check(self) -> None:  # noqa: B027 - most options are checked by the dataclass itself
        """ValueError for options that cannot work together. It loads no weights and needs no
        pool."""

    def check_reach(self) -> None:  # noqa: B027 - most filters read files, which identity() sees
        """ValueError for weights that `setup` would download and that cannot be. It downloads
        nothing."""

    def note(self) -> str:
        """A line for the log of what was decided where an option was left out, or ""."""
        return ""

    def setup(self) -> None:  # noqa: B027 - most filters hold nothing
        """Load models and tables. A worker calls it once."""

    def alternatives(self) -> tuple[FilterBase, ...]:
        """The filter with each option that depends on the machine fixed, one filter for each way
        to fix it."""
        return (self,)

    def resolved(self, *, gpu: bool) -> FilterBase:
        """That one of `alternatives` which a machine with or without a GPU runs."""
        return self

    @classmethod
    def options_from(cls, recipe: Recipe) -> dict[str, Any]:
        """Options that a recipe decides where its filter list leaves them out."""
        return {}


class Filter(FilterBase):
    """A judgement about one row at a time. A worker calls `setup` once and then `score` for each
    batch.

    reads: names of instances of the same recipe whose columns `score` gets as `batch.columns`. They
    stand before this one in the recipe, or the pool has all their columns.
    """

    needs: ClassVar[frozenset[str]] = frozenset()  # of NEEDS

    def prepare(self, image: Image.Image) -> None:
        """Begin with an image that `score` will get, in the thread that decoded it."""

    @abc.abstractmethod
    def score(self, batch: Batch) -> Columns:
        """A value per row for each column of `adds`; None, NaN or infinity where there is none.

        A list, an array of NumPy ((rows, width) for fixed-size lists) or of Arrow.
        """


class PoolFilter(FilterBase):
    """Values of a row that need other rows of the pool.

    The engine (`pipeline/cross_row`) reads the stored rows of every shard: `uid` and the columns
    that `reads` names. It calls `summarise` for each shard and `combine` once. Then `route` sends
    each row to partitions, which fit in memory, and `judge` gives a value to each row of one
    partition. All tables have the columns by the names that rules use.

    With `linked` the rows of a partition give pairs of near rows instead (`links`). The engine
    finds the connected components over all partitions. The group of a row is the smallest uid of
    its component, its own uid if nothing is near. `judge_groups` then gets whole groups.

    A row that `route` sends nowhere gets the values of `default`, NULL if it names none. The result
    must depend neither on the number of partitions nor on the order of the rows of a table that the
    docstring does not promise.
    """

    linked: ClassVar[bool] = False
    default: ClassVar[Mapping[str, Any]] = {}  # column of `adds` -> value of rows without a part
    copies: float = 1.0  # partitions that a row is sent to, on average: memory is planned by it

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the sidecar, columns of other filters, or names of instances, which stand for
        all of their columns; looked for in this order. `uid` is always read."""
        return ()

    @property
    def summarised(self) -> bool:
        """True where `summarise` and `combine` are called: the class has its own `summarise`."""
        return type(self).summarise is not PoolFilter.summarise

    def summarise(self, rows: pa.Table) -> pa.Table | None:
        """What `combine` needs of the stored rows of one shard, in tar order; the same columns for
        every shard."""
        return None

    def merge(self, summaries: pa.Table) -> pa.Table:
        """The summaries of some shards, in their order, as fewer rows that give the same state.

        It is called, with what it gave before among the rows, whenever summaries take more memory
        than they should: a filter whose summaries grow with the pool overrides it.
        """
        return summaries

    def combine(self, summaries: pa.Table) -> pa.Table | None:
        """The state that all later calls get, from the summaries of all shards in their order.

        A table, because it is left in a file of the pool. The state is None where it is not called.
        """
        return None

    def route(self, rows: pa.Table, state: Any, partitions: int) -> tuple[Integers, Integers]:
        """(row numbers, the partition of each, 0 to partitions - 1) of the stored rows of a shard.

        A row may be in no, one or several partitions; without `linked` in one at most.
        """
        raise NotImplementedError(f"{type(self).__name__} has no route")

    def judge(self, rows: pa.Table, state: Any) -> Columns:
        """A value per row of one partition for each column. The rows are sorted by uid."""
        raise NotImplementedError(f"{type(self).__name__} has no judge")

    def links(self, rows: pa.Table, state: Any) -> pa.Table:
        """(uid_a, uid_b) of the near pairs among the rows of one partition, sorted by uid."""
        raise NotImplementedError(f"{type(self).__name__} has no links")

    def judge_groups(self, rows: pa.Table, state: Any) -> Columns:
        """A value per row of some whole groups for each column. The rows have the column `group`
        and are sorted by group and uid."""
        raise NotImplementedError(f"{type(self).__name__} has no judge_groups")


def set_id(filter_: FilterBase, reads: Sequence[str] = ()) -> str:
    """12 hex digits: two filters have the same id exactly if they give the same columns.

    reads: ids of the score sets that it reads, in the order of `filter_.reads`.
    """
    assert len(filter_.alternatives()) == 1, f"{filter_.name} must be resolved first"
    options = options_of(filter_)
    for option in _options(filter_):
        is_default = options.get(option.name) == option.default
        if option.metadata.get("free") or (option.metadata.get("later") and is_default):
            options.pop(option.name, None)
    parts: list[Any] = [filter_.name, filter_.version, options, filter_.identity()]
    source = getattr(type(filter_), "source_sha256", None)  # of a filter by path
    if reads or source:
        parts.append({"reads": list(reads), "source": source})
    return disk.content_hash(parts)


def described(
    **columns: tuple[pa.DataType, str],
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """`adds` and `meanings` of a filter, from (type, meaning) of each column."""
    adds = {name: kind for name, (kind, _) in columns.items()}
    return adds, {name: meaning for name, (_, meaning) in columns.items()}


def options_of(filter_: FilterBase) -> dict[str, Any]:
    """All options with their values, defaults too."""
    return {option.name: getattr(filter_, option.name) for option in _options(filter_)}


def _options(filter_: Any) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(filter_) if each.init]


def _absolute(path: Any) -> Any:
    """A path, or each of several."""
    if isinstance(path, str):
        return path if disk.is_url(path) else os.path.abspath(path)
    return tuple(map(_absolute, path))


def with_options(filter_: Any, **options: Any) -> Any:
    """A copy of a filter with other options. What `setup` loaded is not copied."""
    return type(filter_)(**{**options_of(filter_), **options})


def require(name: str, package: str, extra: str) -> None:
    """ValueError where a package that filter `name` needs is not installed. It is not imported."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"filter {name} needs the package {package}, which is not installed: "
            f"pip install -e '.[{extra}]'"
        )


def package_folder(package: str, name: str) -> Path:
    """The folder of an installed package. The package is not imported (open_clip imports torch).

    ValueError for filter `name` if it is not installed.
    """
    require(name, package, "score")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def read_text(path: str, what: str) -> str:
    """The text of a UTF-8 file. ValueError where it cannot be read; `what` says what it holds."""
    try:
        return Path(disk.local_path(path)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the {what} {path} cannot be read: {error}") from None


def check_options(filter_class: type, options: Mapping[str, object], name: str) -> None:
    """ValueError for an option that `filter_class` does not have, with the nearest that it has."""
    known = [f.name for f in dataclasses.fields(filter_class) if f.init]
    for option in options:
        if option not in known:
            available = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(
                f"filter {name} has no option {option!r}{disk.did_you_mean(option, known)}; "
                f"{available}"
            )
