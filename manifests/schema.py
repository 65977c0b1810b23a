"""The nouns: recipes, views, blends and ablations as frozen dataclasses.

Nothing but the standard library, so that a trainer can import it anywhere.
`reader.py` reads these from YAML and checks types. What a type cannot say (a share between 0 and 1,
a baseline that is one of the arms) is checked here in `__post_init__`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from manifests.fetch_settings import ROWS_PER_SHARD_LIMIT, STRICT, Fetch, HostLimit, Interpolation
from manifests.sources import Source

__all__ = [
    "ROWS_PER_SHARD_LIMIT", "Ablation", "Arm", "Blend", "Controls", "Fetch", "FilterSpec",
    "HostLimit", "Interpolation", "Miniweb", "Pair", "PoolRef", "Recipe", "Rule", "Scorer",
    "Source", "Stop", "Suite", "TaskSpec", "View",
]  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """One filter of a recipe and its options: `caption` or `{clip_score: {model: …}}`."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    options: dict[str, Any] = field(default_factory=dict)


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
class Miniweb:
    """The small web on loopback that a demo or a debug run starts first (see
    pipeline/miniweb/small_web.py).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    pairs: int = 6000
    trusted_pairs: int = 1500
    noise: float = 0.4
    near_duplicates: float = 0.1
    faults: float = 0.08
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("noise", "near_duplicates", "faults"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"miniweb {name} is {getattr(self, name)}; it must lie in [0, 1)")
        for name, least in (("pairs", 1), ("trusted_pairs", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"miniweb {name} is {getattr(self, name)}; it must be at least {least}"
                )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What a run draws: views of pools with their weights."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    pools: dict[str, str]  # name -> folder or URL
    views: dict[str, float]  # "pool/view" -> weight
    seed: int = 0
    max_repeats: float | None = None  # mean repeats of a view's rows above which a run is refused

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"blend {self.name!r} has no views")
        for name, weight in self.views.items():
            pool, _, view = name.partition("/")
            if not view or pool not in self.pools:
                raise ValueError(
                    f"blend {self.name!r}: "
                    f"{name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}"
                )
            if not weight > 0:
                raise ValueError(
                    f"blend {self.name!r}: the weight of {name!r} is {weight}; it must be above 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """An evaluation: zero-shot classification, retrieval or a linear probe.

    In a manifest `classes` and `templates` may be a name or a file, which is `classes_from` and
    `templates_from` here.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    kind: Literal["classification", "retrieval", "linear_probe", "association"]
    # Folder, tar or Parquet file (train/task_data/README.md); not needed for given predictions
    data: str = ""
    split: str = "test"  # of CLIP_benchmark's layout
    classes: tuple[str, ...] = ()  # display names, in the order of the labels
    classes_from: str | None = None
    templates: tuple[str, ...] | None = None  # default: the data's own, or "a photo of a {}"
    templates_from: str | None = None
    columns: dict[str, str] = field(default_factory=dict)  # image, label, caption, group
    ignore_groups: tuple[str, ...] = ()  # left out of metrics of the worst group
    train_data: str | None = None  # of a linear probe; default: `data`
    train_split: str = "train"
    metric: str | None = None  # the metric that decides; default: the kind's own
    allow_overlap: bool = False  # an image that a training pool has too is otherwise refused

    def __post_init__(self) -> None:
        for name in ("classes", "templates"):
            if getattr(self, name) and getattr(self, f"{name}_from") is not None:
                raise ValueError(f"task {self.name!r} has {name} and {name}_from; give one of them")
        unknown = sorted(set(self.columns) - {"image", "label", "caption", "group"})
        if unknown:
            raise ValueError(
                f"task {self.name!r}: columns names {unknown[0]!r}; it takes image, label, caption "
                "and group"
            )
        if self.kind != "linear_probe" and self.train_data is not None:
            raise ValueError(
                f"task {self.name!r} has train_data, which only the kind linear_probe uses"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tasks that are evaluated together, and groups of them that are averaged."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    tasks: tuple[TaskSpec, ...]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # group -> names of tasks

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"suite {self.name!r} has two tasks of one name")
        for group, members in self.groups.items():
            unknown = sorted(set(members) - set(names))
            if unknown or not members or len(set(members)) < len(members):
                raise ValueError(
                    f"suite {self.name!r}: group {group!r} must name different tasks of the suite"
                    + (f", not {unknown[0]!r}" if unknown else "")
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRef:
    """A pool of an ablation: its recipe, and where it lies once built (default: inside the
    ablation's folder).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    recipe: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        if self.recipe is None and self.out is None:
            raise ValueError("a pool needs a recipe (to build) or out (where it lies), or both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A CLIP trained before anything is scored (a data filtering network): filters read it as
    local-dir:${SCORER}.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    view: str  # POOL/VIEW
    train: dict[str, Any] = field(default_factory=dict)  # changes to the ablation's own `train`
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Arms that tell an effect from its imitations."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    random_like: tuple[str, ...] = ()  # arms; each seed gets a random subset of the arm's size
    random_seed: int = 0  # added to the seed of a run, it is the seed of that run's random subset
    a_a: str | None = None  # an arm run again from the same weights, with another order
    null_web: str | None = None  # another ablation, on data where no effect is planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Seeds in rounds: an arm gets no more when it is decided, or can hardly be decided."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    decided: bool = True  # the only condition
    at_least: int = 2  # seeds of every arm in the first round
    smallest: float | None = None  # a difference worth more seeds; None: the ablation's equivalence

    def __post_init__(self) -> None:
        if not self.decided:
            raise ValueError("stop.decided is false; leave stop out, and every seed is run")
        if self.at_least < 2:
            raise ValueError(f"stop.at_least is {self.at_least}; it must be at least 2")
        if self.smallest is not None and not self.smallest > 0:
            raise ValueError(f"stop.smallest is {self.smallest}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm is: a view or a blend to train on, or predictions that exist. Exactly one.

    view: POOL/VIEW, in a manifest also the plain text. blend: the path of a blend's file. views: a
    blend as POOL/VIEW -> weight. train: the setting that differs from the ablation's (see `vary`).
    predictions: the path of a Parquet file per run, with {seed} and, for several tasks, {task}; its
    columns are `sample`, `label`, `predicted` and `correct`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    view: str | None = None
    blend: str | None = None
    views: dict[str, float] | None = None
    predictions: str | None = None
    train: dict[str, Any] = field(default_factory=dict)
    ranks: int | None = None  # None: the ablation's

    def __post_init__(self) -> None:
        given = [self.view, self.blend, self.views, self.predictions]
        if sum(each is not None for each in given) != 1:
            raise ValueError(
                "an arm is POOL/VIEW, {blend: FILE.yaml}, {views: {POOL/VIEW: WEIGHT}} or "
                '{predictions: "FOLDER/seed-{seed}/{task}.parquet"}'
            )
        if self.predictions is not None and (self.train or self.ranks):
            raise ValueError("an arm of predictions is not trained: it has no train and no ranks")
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks is {self.ranks}; it must be at least 1")
        if self.predictions is not None and "{seed}" not in self.predictions:
            raise ValueError(
                f"predictions is {self.predictions!r}; the place of the seed must be written as "
                "{seed}, because every seed has a file of its own"
            )

    def split_view(self) -> tuple[str, str]:
        """(pool, view) of POOL/VIEW; both are empty where the arm is something else."""
        pool, _, view = (self.view or "").partition("/")
        return (pool, view) if view else ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Arms × seeds under one training preset."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    question: str
    arms: dict[str, Arm]
    baseline: str
    seeds: tuple[int, ...]
    evaluate: tuple[TaskSpec, ...]
    primary: str  # the task that the verdict is about
    pools: dict[str, PoolRef] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # one setting that arms differ in
    controls: Controls = field(default_factory=Controls)
    scorer: Scorer | None = None
    miniweb: Miniweb | None = None
    # Differences inside ± this are practically equal (a share: 0.005 = 0.5 points)
    equivalence: float = 0.005
    jobs: int = 1  # runs at a time on one machine
    ranks: int = 1  # processes that train one run together; a GPU each where there are GPUs
    hardware: str | None = None  # a device of train/sizing.py; None: that of the machine
    limit_hours: float | None = None  # more hours of training, all runs together, are refused
    ledger: bool = True  # ablations in folders beside this one tell how much runs vary
    stop: Stop | None = None  # None: every arm is run with every seed

    def __post_init__(self) -> None:
        for name in ("jobs", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if len(self.vary) > 1:
            raise ValueError(
                f"vary names {' and '.join(self.vary)}; one setting varies, all others are equal"
            )
        if self.limit_hours is not None and not self.limit_hours > 0:
            raise ValueError(f"limit_hours is {self.limit_hours}; it must be above 0")
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline {self.baseline!r} is not one of the arms {sorted(self.arms)}"
            )
        if len(self.seeds) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"seeds are {list(self.seeds)}; "
                "at least two different ones are needed for an interval"
            )
        if self.stop is not None:
            least, seeds = self.stop.at_least, len(self.seeds)
            if least > seeds:
                raise ValueError(f"stop.at_least is {least}, but there are {seeds} seeds")
        if self.primary not in {t.name for t in self.evaluate}:
            raise ValueError(
                f"primary {self.primary!r} is not one of the tasks "
                f"{[t.name for t in self.evaluate]}"
            )
        for arm in (
            *self.controls.random_like,
            *([self.controls.a_a] if self.controls.a_a else []),
        ):
            if arm not in self.arms:
                raise ValueError(
                    f"control of unknown arm {arm!r}; the arms are {sorted(self.arms)}"
                )

        trained = sorted(name for name, arm in self.arms.items() if arm.predictions is None)
        if trained and not self.train:
            raise ValueError(f"arm {trained[0]!r} is trained, but there are no settings in train")
        self._check_predictions(trained)

    def _check_predictions(self, trained: list[str]) -> None:
        """ValueError for tasks without data that a model is evaluated on, and for controls of
        predictions.
        """
        for task in self.evaluate:
            if trained and not task.data:
                raise ValueError(
                    f"task {task.name!r} has no data, but arm {trained[0]!r} is evaluated on it"
                )
        for control in (*self.controls.random_like, self.controls.a_a):
            if control is not None and self.arms[control].predictions is not None:
                raise ValueError(
                    f"arm {control!r} is predictions that exist; only an arm that is trained has "
                    "controls"
                )
        for name, arm in self.arms.items():
            several = len(self.evaluate) > 1 and arm.predictions is not None
            if several and "{task}" not in str(arm.predictions):
                raise ValueError(
                    f"arm {name!r}: predictions is {arm.predictions!r}; with {len(self.evaluate)} "
                    "tasks the place of the task must be written as {task}"
                )

    def random_draw(self, seed: int) -> int:
        """The seed of the random subsets that the runs of a seed train on."""
        return self.controls.random_seed + seed

    def pool_folder(self, out: str, pool: str) -> str:
        """Where a pool lies: its own `out`, or pools/NAME inside the ablation's folder `out`."""
        return self.pools[pool].out or f"{out.rstrip('/')}/pools/{pool}"
