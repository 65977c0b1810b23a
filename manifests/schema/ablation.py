"""Arms × seeds: an ablation, its arms, controls and rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from manifests.schema.fetch import STRICT
from manifests.schema.miniweb import Miniweb
from manifests.schema.task import TaskSpec


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
    save: Literal["runs", "power"] = "runs"  # what to save where both cannot be had

    def __post_init__(self) -> None:
        if not self.decided:
            raise ValueError("stop.decided is false; leave stop out, and every seed is run")
        if self.at_least < 2:
            raise ValueError(f"stop.at_least is {self.at_least}; it must be at least 2")
        if self.smallest is not None and not self.smallest > 0:
            raise ValueError(f"stop.smallest is {self.smallest}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which weights of a trained run are evaluated; without a key, those after the last step."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    ema: bool = False  # the moving average in its last checkpoint
    average_last: int | None = None  # the mean of its last checkpoints, so many

    def __post_init__(self) -> None:
        if self.ema and self.average_last is not None:
            raise ValueError("it is ema or average_last, not both")
        if self.average_last is not None and self.average_last < 1:
            raise ValueError(f"average_last is {self.average_last}; it must be at least 1")

    @property
    def suffix(self) -> str:
        """What follows the name of a folder of predictions; nothing for the last weights."""
        if self.average_last is not None:
            return f"-average-{self.average_last}"
        return "-ema" if self.ema else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm is: a view or a blend to train on, a model or predictions that exist. Exactly
    one.

    view: POOL/VIEW, in a manifest also the plain text. blend: the path of a blend's file. views: a
    blend as POOL/VIEW -> weight. train: the setting that differs from the ablation's (see `vary`).
    model: what train/evaluate.py evaluates (a run, a folder, open_clip:NAME/TAG); with {seed} one
    for each seed, without one run that has no other seeds.
    predictions: the path of a Parquet file per run, with {seed} and, for several tasks, {task}; its
    columns are `sample`, `label`, `predicted` and `correct`.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    view: str | None = None
    blend: str | None = None
    views: dict[str, float] | None = None
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
        if self.model == "":
            raise ValueError("model is empty; name a run, a folder or open_clip:NAME/TAG")
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks is {self.ranks}; it must be at least 1")
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
    evaluate_weights: Weights = field(default_factory=Weights)  # of the runs that are trained
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

    def random_draw(self, seed: int) -> int:
        """The seed of the random subsets that the runs of a seed train on."""
        return self.controls.random_seed + seed

    def pool_folder(self, out: str, pool: str) -> str:
        """Where a pool lies: its own `out`, or pools/NAME inside the ablation's folder `out`."""
        return self.pools[pool].out or f"{out.rstrip('/')}/pools/{pool}"
