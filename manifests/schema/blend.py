"""What a run trains on: views of pools with their weights, and how their shares change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from manifests.schema.fetch import STRICT

# Keys that came after the first blends; they are written down where they are used.
ADDED_BLEND_KEYS = (
    "distinct",
    "weights",
    "caps",
    "epochs",
    "curriculum",
    "balance",
    "captions",
    "live",
    "segments",
    "streams",
)
STORED_ROWS = "stored"  # the view of a live run
SHOWN_VIEWS = 5  # of a blend, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumStage:
    """Weights that a blend has from a step on, or from a share of the run's samples on."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    views: dict[str, float]
    at: float | None = None  # share of the run, between 0 and 1
    step: int | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.step is None):
            raise ValueError(
                "a stage of a curriculum begins at a share of the run or at a step: give one of "
                "at and step, as in {at: 0.5, views: {web/clip30: 1}}"
            )
        if self.at is not None and not 0 < self.at < 1:
            raise ValueError(
                f"at is {self.at}; it must lie between 0 and 1 (the run begins with `views`)"
            )
        if self.step is not None and self.step < 1:
            raise ValueError(f"step is {self.step}; it must be above 0 (step 0 has `views`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Rows of a view that are drawn with the probability min(1, limit / column)."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    column: str  # how often the row's entry occurs: a number above 0
    limit: float

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise ValueError(f"limit is {self.limit}; it must be a number above 0, like 20000")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarStream:
    """Tars that other programs made, read from their beginning to their end while a run trains."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    tars: tuple[str, ...]  # paths, URLs or pipe:COMMAND; web-{000..099}.tar stands for a hundred
    weight: float = 1.0
    caption: str = "txt"  # the member with the caption, or json:KEY
    broken: Literal["stop", "count"] = "stop"  # what a tar that ends too early does

    def __post_init__(self) -> None:
        if not self.tars:
            raise ValueError("tars is empty; name a tar, a URL, or pipe:COMMAND")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight is {self.weight}; it must be a number above 0")
        if self.caption in ("", "json", "json:"):
            raise ValueError(
                f"caption is {self.caption!r}; it must be the name of a member, like txt, or a key "
                "of the json member, like json:caption"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What a run draws: views of pools with their weights."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    pools: dict[str, str] = field(default_factory=dict)  # name -> folder or URL
    # "pool/view" -> weight; 0: a later stage of the curriculum draws it
    views: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    max_repeats: float | None = None  # mean repeats of a view's rows above which a run is refused
    # `uid`, or a column with the groups of duplicates: no batch holds one of its values twice
    distinct: str | None = None
    # What a weight is: a share of the samples, or how often each row comes when others come once
    weights: Literal["samples", "repeats"] = "samples"
    caps: dict[str, int] = field(default_factory=dict)  # "pool/view" -> most samples of a run
    epochs: dict[str, float] = field(default_factory=dict)  # "pool/view" -> most epochs of it
    curriculum: tuple[CurriculumStage, ...] = ()
    balance: dict[str, Balance] = field(default_factory=dict)
    # "pool/view" -> {text column: share}; the column `caption` has stored tokens
    captions: dict[str, dict[str, float]] = field(default_factory=dict)
    live: bool = False  # the pool is still being built: POOL/stored, all stored rows so far
    segments: str | None = None  # a run that was live, whose samples are drawn again
    streams: dict[str, TarStream] = field(default_factory=dict)  # in the place of pools and views

    def __post_init__(self) -> None:
        if self.streams:
            self._check_streams()
            return
        if not self.views:
            raise ValueError(f"blend {self.name!r} has no views")
        later = {view for stage in self.curriculum for view in stage.views}
        for name, weight in self.views.items():
            pool, _, view = name.partition("/")
            if not view or pool not in self.pools:
                raise ValueError(
                    f"blend {self.name!r}: "
                    f"{name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}"
                )
            if not (weight == 0 and name in later):
                self._check_number("the weight", name, weight)
        if not any(self.views.values()):
            raise ValueError(
                f"blend {self.name!r}: every weight of views is 0, so the run has nothing to begin "
                "with; the first stage of the curriculum belongs into views"
            )
        for key in ("caps", "epochs", "balance", "captions"):
            self._check_names(key, getattr(self, key))
        self._check_curriculum()
        self._check_live()
        for name, cap in self.caps.items():
            self._check_number("caps", name, cap)
        for name, epochs in self.epochs.items():
            self._check_number("epochs", name, epochs)
        for name, shares in self.captions.items():
            if not shares:
                raise ValueError(
                    f"blend {self.name!r}: captions of {name!r} is empty; give columns with their "
                    "shares, as in {caption: 0.3, synthetic: 0.7}"
                )
            for column, share in shares.items():
                self._check_number(f"the share of caption column {column!r}", name, share)

    def document(self) -> dict[str, Any]:
        """As plain values, without the later keys that have their defaults: blends that do not use
        them keep their hash.
        """
        plain = dataclasses.asdict(self)
        for key in ADDED_BLEND_KEYS:
            if not plain[key] or plain[key] == "samples":
                del plain[key]
        return plain

    def _check_streams(self) -> None:
        for other in ("pools", "views", "max_repeats", *ADDED_BLEND_KEYS):
            used = self.weights != "samples" if other == "weights" else bool(getattr(self, other))
            if used and other != "streams":
                raise ValueError(
                    f"blend {self.name!r}: {other} does not go with streams, of which nothing is "
                    f"known before they are read; leave {other} out, or adopt the tars into a pool "
                    "(source: {kind: shards}) and train on its views"
                )

    def _check_number(self, what: str, view: str, value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(
                f"blend {self.name!r}: {what} of {view!r} is {value}; it must be above 0"
            )

    def _check_names(self, key: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.views:
                known = sorted(self.views)
                more = ", …" if len(known) > SHOWN_VIEWS else ""
                raise ValueError(
                    f"blend {self.name!r}: {key} names {name!r}, which is not one of its views "
                    f"({', '.join(known[:SHOWN_VIEWS])}{more})"
                )

    def _check_curriculum(self) -> None:
        for stage in self.curriculum:
            begins = f"at {stage.at}" if stage.step is None else f"at step {stage.step}"
            for name, weight in stage.views.items():
                if name not in self.views:
                    raise ValueError(
                        f"blend {self.name!r}: the stage {begins} of the curriculum draws "
                        f"{name!r}, which views does not name; add {{{name}: 0}} to views"
                    )
                self._check_number(f"the weight {begins}", name, weight)
            if not stage.views:
                raise ValueError(f"blend {self.name!r}: the stage {begins} has no views")
        for key in ("at", "step"):
            begins_at = [getattr(stage, key) for stage in self.curriculum]
            given = [begin for begin in begins_at if begin is not None]
            if given != sorted(set(given)):
                raise ValueError(
                    f"blend {self.name!r}: the stages of the curriculum begin at {key} = {given}; "
                    "they must be in order, each later than the one before"
                )

    def _check_live(self) -> None:
        if not self.live and self.segments is None:
            return
        key = "live" if self.live else "segments"
        if self.live and self.segments is not None:
            raise ValueError(f"blend {self.name!r}: it has live and segments; give one of them")
        for name in self.views:
            pool, _, view = name.partition("/")
            if view != STORED_ROWS or len(self.views) > 1:
                raise ValueError(
                    f"blend {self.name!r}: with {key}, views has one entry, {pool}/{STORED_ROWS} "
                    f"(all stored rows); {name!r} is chosen at the end of the build, so train "
                    f"on it then, without {key}"
                )
        for other in (*ADDED_BLEND_KEYS, "max_repeats"):
            used = self.weights != "samples" if other == "weights" else bool(getattr(self, other))
            if used and other not in ("live", "segments"):
                raise ValueError(
                    f"blend {self.name!r}: {other} does not go with {key}, since what the pool "
                    f"will hold is not known; leave {other} out"
                )
