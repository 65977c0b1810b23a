"""What a pool is built from: a recipe, its filters and its views."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from manifests.schema.fetch import STRICT, Fetch
from manifests.schema.miniweb import Miniweb
from manifests.schema.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One image link: a row of PAIRS."""

    uid: str
    url: str
    caption: str
    title: str | None = None
    anchor: str | None = None
    page_url: str | None = None
    page_lang: str | None = None
    robots: str | None = None
    license: str | None = None
    wat: str | None = None
    warc_offset: int | None = None
    link: int | None = None
    extra: dict[str, Any] | None = None  # the source's extra_columns
    # Of a row of a lock: its outcome in the pool that was locked, and the sha256 that its bytes
    # must have. A row with another outcome than STORED is not asked for.
    locked_outcome: str | None = None
    locked_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """One filter of a recipe and its options: `caption` or `{clip_score: {model: …}}`.

    name: that of the instance, which its columns carry. kind: the filter, where it has another
    name: `{clip_l14: {clip_score: {model: …}}}`, or `{mine: {my_filters.py:Sharpness: {}}}`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str | None = field(default=None, metadata={"omit_none": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One step of a view, one of: an SQL boolean expression, another view's rules, a random subset
    as large as a view, or a share of all rows drawn by xxh3(uid, seed).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    where: str | None = None
    view: str | None = None
    random_like: str | None = None
    sample: float | None = None  # share of the rows, in (0, 1)
    seed: int = 0  # of random_like and sample

    def __post_init__(self) -> None:
        forms = (self.where, self.view, self.random_like, self.sample)
        if sum(form is not None for form in forms) != 1:
            raise ValueError(
                f"rule {self.name!r} must be one of an SQL expression, "
                "a view, random_like or sample"
            )
        if self.sample is not None and not 0 < self.sample < 1:
            raise ValueError(
                f"rule {self.name!r}: sample is {self.sample}; it must lie between 0 and 1, as in "
                "{half: {sample: 0.5, seed: 0}}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rule list over the columns of a pool. The first rule that fails is a row's reason."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to build."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    source: Source
    fetch: Fetch = field(default_factory=Fetch)
    filters: tuple[FilterSpec, ...] = ()
    views: tuple[View, ...] = (View(name="raw"),)
    miniweb: Miniweb | None = None

    def __post_init__(self) -> None:
        doubled = sorted(
            {f.name for f in self.filters if sum(g.name == f.name for g in self.filters) > 1}
        )
        if doubled:
            raise ValueError(f"filters named twice: {', '.join(doubled)}")
        names = [view.name for view in self.views]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"views named twice: {', '.join(twice)}")
        for what, column in (
            ("bbox_column", self.fetch.bbox_column),
            ("verify_hash", (self.fetch.verify_hash or [None])[0]),
        ):
            if column is not None and column not in self.source.extra_columns:
                raise ValueError(
                    f"fetch.{what} names {column!r}, which is not one of source.extra_columns"
                )

    @property
    def sidecar_extra(self) -> dict[str, str]:
        """Columns of this recipe's sidecars beside SIDECAR, with their types by EXTRA_TYPES."""
        columns = dict(self.source.extra_columns)
        if self.fetch.compute_hash != "sha256":
            columns[self.fetch.compute_hash] = "string"
        return columns

    def view(self, name: str) -> View:
        """The view of that name. ValueError with the names there are."""
        for view in self.views:
            if view.name == name:
                return view
        raise ValueError(
            f"recipe {self.name!r} has no view {name!r}; it has "
            f"{', '.join(v.name for v in self.views)}"
        )
