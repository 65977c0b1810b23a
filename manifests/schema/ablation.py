"""What is compared: blends, arms, seeds and evaluation tasks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Real
from random import Random
from typing import Any, ClassVar, Literal

from clipmill.manifests.schema.recipe import MANY, STRICT, Ranges, check_ranges

# --------------------------------------------------------------------------------------------------
# What a run trains on: views of pools with their weights.


# Keys that came after the first blends; they are written down where they are used.
ADDED_BLEND_KEYS = (
    "distinct",
    "weights",
    "balance",
    "captions",
    "live",
    "segments",
    "streams",
)
STORED_ROWS = "stored"  # the view of a live run
SHOWN_VIEWS = 5  # of a blend, in a message
SEEDS = 2**32  # of a blend and of a run: together they are one number of 64 bits
DrawsFrom = Literal["views", "live", "segments", "streams"]
NO_SEED = -1  # the seed of an arm that is one model: no other run has it, so nothing is paired
A_A = "a_a"
RANDOM_LIKE = "random_like_"
Role = Literal["baseline", "arm", "random", "a_a"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Rows of a view that are drawn with the probability min(1, limit / column)."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"limit": (0, MANY)}
    column: str  # how often the row's entry occurs: a number above 0
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"limit is {self.limit}; it must be a number above 0, like 20000")
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarStream:
    """Tars that other programs made, read from their beginning to their end while a run trains."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"weight": (0, MANY)}
    tars: tuple[str, ...]  # paths, URLs or pipe:COMMAND; web-{000..099}.tar stands for a hundred
    weight: float = 1.0
    caption: str = "txt"  # the member with the caption, or json:KEY
    broken: Literal["stop", "count"] = "stop"  # what a tar that ends too early does

    def __post_init__(self) -> None:
        if not self.tars:
            raise ValueError("tars is empty; name a tar, a URL, or pipe:COMMAND")
        if not self.weight > 0:
            raise ValueError(f"weight is {self.weight}; it must be a number above 0")
        check_ranges(self)
        if self.caption in ("", "json", "json:"):
            raise ValueError(
                f"caption is {self.caption!r}; it must be the name of a member, like txt, or a key "
                "of the json member, like json:caption"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What a run draws: views of pools with their weights."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {
        "views": (0, MANY),
        "seed": (0, MANY),
        "max_repeats": (0, MANY),
        "captions": (0, MANY),
    }
    name: str
    pools: dict[str, str] = field(default_factory=dict)  # name -> folder or URL
    # "pool/view" -> weight
    views: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    max_repeats: float | None = None  # mean repeats of a view's rows above which a run is refused
    # `uid`, or a column with the groups of duplicates: no batch holds one of its values twice
    distinct: str | None = None
    # What a weight is: a share of the samples, or how often each row comes when others come once
    weights: Literal["samples", "repeats"] = "samples"
    balance: dict[str, Balance] = field(default_factory=dict)
    # "pool/view" -> {text column: share}; the column `caption` has stored tokens
    captions: dict[str, dict[str, float]] = field(default_factory=dict)
    live: bool = False  # the pool is still being built: POOL/stored, all stored rows so far
    segments: str | None = None  # a run that was live, whose samples are drawn again
    streams: dict[str, TarStream] = field(default_factory=dict)  # in the place of pools and views

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ValueError(
                f"blend {self.name!r}: seed is {self.seed}; it must lie in [0, 2^32) ({SEEDS:,})"
            )
        if self.streams:
            self._check_streams()
            check_ranges(self)
            return
        if not self.views:
            raise ValueError(f"blend {self.name!r} has no views")
        for name, weight in self.views.items():
            pool, _, view = name.partition("/")
            if not view or pool not in self.pools:
                raise ValueError(
                    f"blend {self.name!r}: "
                    f"{name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}"
                )
            self._check_number("the weight", name, weight)
        for key in ("balance", "captions"):
            self._check_names(key, getattr(self, key))
        self._check_live()
        for name, shares in self.captions.items():
            if not shares:
                raise ValueError(
                    f"blend {self.name!r}: captions of {name!r} is empty; give columns with their "
                    "shares, as in {caption: 0.3, synthetic: 0.7}"
                )
            for column, share in shares.items():
                self._check_number(f"the share of caption column {column!r}", name, share)
        check_ranges(self)

    @property
    def draws_from(self) -> DrawsFrom:
        """Where its samples come from: the key that says it."""
        if self.streams:
            return "streams"
        if self.live:
            return "live"
        return "views" if self.segments is None else "segments"

    def places(self) -> list[tuple[str, str, str]]:
        """(POOL/VIEW, folder of the pool, view) of each of its views."""
        parts = {name: name.partition("/") for name in self.views}
        return [(name, self.pools[pool], view) for name, (pool, _, view) in parts.items()]

    def document(self) -> dict[str, Any]:
        """As values for JSON, without the later keys that have their defaults: blends that do not
        use them keep their hash.
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
        if not (isinstance(value, Real) and value > 0):
            raise ValueError(
                f"blend {self.name!r}: {what} of {view!r} is {value!r}; it must be above 0"
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

    def _check_live(self) -> None:
        key = self.draws_from
        if key == "views":
            return
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


# --------------------------------------------------------------------------------------------------
# What a model is evaluated on: tasks, and suites of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """An evaluation: zero-shot classification, retrieval or a linear probe.

    In a manifest `classes` and `templates` may be a name or a file, which is `classes_from` and
    `templates_from` here.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    kind: Literal["classification", "retrieval", "linear_probe", "association"]
    # Folder, tar or Parquet file (see train/eval_data); not needed for given predictions
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
    # What is done about near duplicates in a view that is trained on
    near_overlap: Literal["list", "refuse"] = "list"

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


# --------------------------------------------------------------------------------------------------
# Arms × seeds: an ablation, its arms, controls and rounds.


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
    ranges: ClassVar[Ranges] = {"seed": (0, MANY)}
    view: str  # POOL/VIEW
    train: dict[str, Any] = field(default_factory=dict)  # changes to the ablation's own `train`
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Arms that tell an effect from its imitations."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"random_seed": (0, MANY)}
    random_like: tuple[str, ...] = ()  # arms; each seed gets a random subset of the arm's size
    random_seed: int = 0  # added to the seed of a run, it is the seed of that run's random subset
    a_a: str | None = None  # an arm run again from the same weights, with another order
    null_web: str | None = None  # another ablation, on data where no effect is planted

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Seeds in rounds: an arm gets no more when it is decided."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"at_least": (2, 10_000)}
    at_least: int = 2  # seeds of every arm in the first round

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures:
    """Arms mix00, mix01 … of sources: with random shares, which `clipmill mix` fits a law to, or
    random halves of the sources, every row of which comes as often, for `clipmill why`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {
        "number": (2, 10_000),
        "seed": (0, MANY),
        "concentration": (0, MANY),
    }
    sources: tuple[str, ...]  # POOL/VIEW
    number: int
    draw: Literal["shares", "halves"] = "shares"
    concentration: float = 1.0  # of the Dirichlet distribution; 1: every mixture is as likely
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.sources) < 2 or len(set(self.sources)) < len(self.sources):
            raise ValueError(f"sources are {list(self.sources)}; two different ones are needed")
        if not self.concentration > 0:
            raise ValueError(f"concentration is {self.concentration}; it must be above 0")

    def arms(self) -> dict[str, dict[str, Any]]:
        """Name -> an arm of views: a function of these numbers alone."""
        random = Random(self.seed)
        arms: dict[str, dict[str, Any]] = {}
        half: set[str] = set()
        for number in range(self.number):
            if self.draw == "halves":
                # Every second one is what the one before it left out: pairs of sources that work
                # together are then told from what each of them does alone.
                half = set(self.sources) - set(half if number % 2 else ())
                if number % 2 == 0:
                    half = set(random.sample(self.sources, len(self.sources) // 2))
                views = {source: 1.0 for source in self.sources if source in half}
                arms[f"mix{number:02}"] = {"views": views, "weights": "repeats"}
                continue
            draws = [random.gammavariate(self.concentration, 1) for _ in self.sources]
            shares = {}
            for source, draw in zip(self.sources, draws, strict=True):
                if share := round(draw / math.fsum(draws), 4):
                    shares[source] = share
            arms[f"mix{number:02}"] = {"views": shares}
        return arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm is: a view or a blend to train on, a model or predictions that exist. Exactly
    one.

    view: POOL/VIEW, in a manifest also the plain text. blend: the path of a blend's file. views: a
    blend as POOL/VIEW -> weight; weights: what a weight is, as in a blend. train: the setting that
    differs from the ablation's (see `vary`). model: what clipmill evaluate evaluates (a run, a
    folder, open_clip:NAME/TAG); with {seed} one for each seed, without one run that has no other
    seeds. predictions: the path of a Parquet file per run, with {seed} and, for several tasks,
    {task}; its columns are `sample`, `label`, `predicted` and `correct`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {"views": (0, MANY), "ranks": (1, 1_000_000)}
    view: str | None = None
    blend: str | None = None
    views: dict[str, float] | None = None
    weights: Literal["samples", "repeats"] = "samples"
    model: str | None = None
    predictions: str | None = None
    train: dict[str, Any] = field(default_factory=dict)
    ranks: int | None = None  # None: the ablation's

    def __post_init__(self) -> None:
        given = [self.view, self.blend, self.views, self.model, self.predictions]
        if sum(each is not None for each in given) != 1:
            raise ValueError(
                "an arm is POOL/VIEW, {blend: FILE.yaml}, {views: {POOL/VIEW: WEIGHT}}, "
                '{model: "runs/x/seed-{seed}"} or '
                '{predictions: "FOLDER/seed-{seed}/{task}.parquet"}'
            )
        if not self.is_trained and (self.train or self.ranks):
            kind = "predictions" if self.model is None else "a model"
            raise ValueError(f"an arm of {kind} is not trained: it has no train and no ranks")
        if self.views is None and self.weights != "samples":
            raise ValueError(f"weights is {self.weights!r}, which only an arm with views has")
        if self.model == "":
            raise ValueError("model is empty; name a run, a folder or open_clip:NAME/TAG")
        check_ranges(self)
        if self.predictions is not None and "{seed}" not in self.predictions:
            raise ValueError(
                f"predictions is {self.predictions!r}; the place of the seed must be written as "
                "{seed}, because every seed has a file of its own"
            )

    @property
    def is_trained(self) -> bool:
        """Whether its runs are trained here."""
        return self.model is None and self.predictions is None

    @property
    def is_one_model(self) -> bool:
        """Whether it is a single model: its seeds, if it ever had others, are not known."""
        return self.model is not None and "{seed}" not in self.model

    @property
    def view_weights(self) -> dict[str, float]:
        """POOL/VIEW -> weight of what it is trained on; {} where the manifest does not say it."""
        return self.views or ({self.view: 1.0} if self.view else {})

    def split_view(self) -> tuple[str, str]:
        """(pool, view) of POOL/VIEW; both are empty where the arm is something else."""
        pool, _, view = (self.view or "").partition("/")
        return (pool, view) if view else ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Arms × seeds under one training preset."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ranges: ClassVar[Ranges] = {
        "seeds": (0, MANY),
        "part": (0, 1),
        "equivalence": (0, 1),
        "jobs": (1, 10_000),
        "ranks": (1, 1_000_000),
        "limit_hours": (0, 1e9),
    }
    name: str
    question: str
    arms: dict[str, Arm]
    baseline: str
    seeds: tuple[int, ...]
    evaluate: tuple[TaskSpec, ...]
    primary: str  # the task that the verdict is about
    part: float | None = None  # of each view's rows, drawn anew for each seed: for a smaller scale
    pools: dict[str, PoolRef] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # one setting that arms differ in
    mixtures: Mixtures | None = None
    controls: Controls = field(default_factory=Controls)
    scorer: Scorer | None = None
    # Differences inside ± this are practically equal (a share: 0.005 = 0.5 points); None: half a
    # point, less where the metric has little room
    equivalence: float | None = None
    jobs: int = 1  # runs at a time on one machine
    ranks: int = 1  # processes that train one run together; a GPU each where there are GPUs
    hardware: str | None = None  # a device of clipmill size; None: that of the machine
    limit_hours: float | None = None  # more hours of training, all runs together, are refused
    stop: Stop | None = None  # None: every arm is run with every seed

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.vary) > 1:
            raise ValueError(
                f"vary names {' and '.join(self.vary)}; one setting varies, all others are equal"
            )
        if self.vary and self.mixtures is not None:
            raise ValueError("vary and mixtures both make arms; give one of them")
        if self.part is not None and not 0 < self.part < 1:
            raise ValueError(f"part is {self.part}; it must lie between 0 and 1, as in 0.0625")
        if self.limit_hours == 0:
            raise ValueError(f"limit_hours is {self.limit_hours}; it must be above 0")
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline {self.baseline!r} is not one of the arms {sorted(self.arms)}"
            )
        least_seeds = 2 if self.mixtures is None else 1  # a law is fitted over mixtures
        if len(self.seeds) < least_seeds or len(set(self.seeds)) != len(self.seeds):
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

        self._check_arms()

    def _check_arms(self) -> None:
        """ValueError for what an arm needs and the ablation lacks, and for arms that cannot be."""
        trained = sorted(name for name, arm in self.arms.items() if arm.is_trained)
        if trained and not self.train:
            raise ValueError(f"arm {trained[0]!r} is trained, but there are no settings in train")
        evaluated = sorted(name for name, arm in self.arms.items() if arm.predictions is None)
        for task in self.evaluate:
            if evaluated and not task.data:
                raise ValueError(
                    f"task {task.name!r} has no data, but arm {evaluated[0]!r} is evaluated on it"
                )
        for control in (*self.controls.random_like, self.controls.a_a):
            if control is not None and not self.arms[control].is_trained:
                kind = "predictions that exist" if control not in evaluated else "a model"
                raise ValueError(
                    f"arm {control!r} is {kind}; only an arm that is trained has controls"
                )
        for name, arm in self.arms.items():
            several = len(self.evaluate) > 1 and arm.predictions is not None
            if several and "{task}" not in str(arm.predictions):
                raise ValueError(
                    f"arm {name!r}: predictions is {arm.predictions!r}; with {len(self.evaluate)} "
                    "tasks the place of the task must be written as {task}"
                )
        self._check_one_model()
        if self.stop is not None and len(self.arms) < 2:
            raise ValueError(
                f"stop ends seeds when comparisons are decided, but {self.baseline!r} is the only "
                "arm; leave stop out, or name an arm to compare"
            )

    def _check_one_model(self) -> None:
        """ValueError where an arm that is one model stands for what needs several seeds."""
        for name, arm in self.arms.items():
            if not arm.is_one_model:
                continue
            remedy = f"its model is {arm.model!r}: name one for each seed, with {{seed}}"
            if name == self.baseline:
                raise ValueError(
                    f"the baseline {name!r} is one model, which does not show how runs vary; "
                    f"{remedy}, or take an arm with seeds as baseline"
                )
            if self.stop is not None:
                raise ValueError(
                    f"stop runs seeds in rounds, but arm {name!r} is one model without seeds; "
                    f"{remedy}, or leave stop out"
                )

    @property
    def primary_task(self) -> TaskSpec:
        """The task that decides."""
        return next(task for task in self.evaluate if task.name == self.primary)

    @property
    def drawn_arms(self) -> frozenset[str]:
        """Those that `mixtures` draws; none without it."""
        return frozenset(self.mixtures.arms() if self.mixtures is not None else ())

    @property
    def asked_arms(self) -> list[str]:
        """Those that the manifest compares with its baseline: none that `mixtures` draws."""
        others = {self.baseline, *self.drawn_arms}
        return [arm for arm in self.arms if arm not in others]

    @property
    def control_arms(self) -> dict[str, str]:
        """{control: the arm that it is for}: the random subsets, then A/A."""
        controls = {RANDOM_LIKE + arm: arm for arm in self.controls.random_like}
        return controls | ({A_A: self.controls.a_a} if self.controls.a_a else {})

    def role_of(self, arm: str) -> Role:
        """What an arm or a control is for."""
        if arm in self.arms:
            return "baseline" if arm == self.baseline else "arm"
        return "a_a" if arm == A_A else "random"

    def random_draw(self, seed: int) -> int:
        """The seed of the random subsets that the runs of a seed train on."""
        return self.controls.random_seed + seed

    def pool_folder(self, out: str, pool: str) -> str:
        """Where a pool lies: its own `out`, or pools/NAME inside the ablation's folder `out`."""
        return self.pools[pool].out or f"{out.rstrip('/')}/pools/{pool}"
