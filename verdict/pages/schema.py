"""report.json as frozen dataclasses. Metrics and shares are in 0..1."""

from __future__ import annotations

from dataclasses import dataclass, field

from clipmill.manifests.schema import Ablation, Role
from clipmill.verdict.conclusions import StudyResults, TaskSignals
from clipmill.verdict.stats.analysis import TaskResult
from clipmill.verdict.stats.comparison import Comparison, Verdict
from clipmill.verdict.stats.groups import Attribution
from clipmill.verdict.stats.mixing import BlendChoice
from clipmill.verdict.stats.scales import ScaleDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedValues:
    """A metric over the seeds of an arm; None where no run is finished, no SD for one seed."""

    mean: float | None
    sd: float | None
    values: dict[str, float]  # by seed of the ablation


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """One arm: the size of its data and its scores. `missing`: seeds without a result."""

    arm: str
    role: Role
    view: str
    rows: int
    share: float  # rows of the stored rows of the pools
    drawn: int | None  # samples of one run; None where no run is finished
    repeats: float | None
    metrics: dict[str, SeedValues]  # by task
    missing: tuple[int, ...]
    device_seconds: float | None = None  # of one run, all its ranks; the mean over seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The log of a run: (samples seen, loss, batch accuracy)."""

    arm: str
    seed: int
    points: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Steps with the rows left after each, and the outcomes of the other rows."""

    title: str
    steps: tuple[tuple[str, int], ...]
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts per bin of a column of numbers: stored rows, and the rows that each view keeps.

    divergence: of each view from the stored rows (Kullback-Leibler, in bits; 0: alike).
    sampled_rows: the rows of the shards that were read; None where all were.
    """

    pool: str
    column: str
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]
    marks: dict[str, float]  # view -> its threshold
    divergence: dict[str, float] = field(default_factory=dict)
    sampled_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """Rows by the values of a column of text, the most frequent first. See Histogram.

    values: how many different ones the stored rows have.
    """

    pool: str
    column: str
    values: int
    labels: tuple[str, ...]
    counts: dict[str, tuple[int, ...]]  # "stored" and each view -> rows of each label
    divergence: dict[str, float]
    sampled_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroups:
    """Different images by their number of copies: {"stored" and each view: images of each label}.

    key: what makes two images copies.
    """

    pool: str
    key: str
    labels: tuple[str, ...]
    groups: dict[str, tuple[int, ...]]
    sampled_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyRates:
    """Rows that a column marks: {"stored" and each view: (marked, judged)}."""

    pool: str
    column: str
    meaning: str
    counts: dict[str, tuple[int, int]]
    sampled_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffects:
    """What each rule of a view rejects of its stored rows.

    rules: (rule, rows that it rejects, rows that it alone rejects: they would be kept without it).
    None: not known.
    """

    pool: str
    view: str
    stored: int
    rules: tuple[tuple[str, int | None, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRow:
    """A setting of the runs: its value, or the value of each arm where the arms differ."""

    setting: str
    value: str | None
    by_arm: dict[str, str]
    main: bool  # shown at once; the others are folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What all runs share, and what they do not. config_hash: of what they have to share, None if
    they differ in it. blends: {arm: hash of its blend}; of a random control that of its first seed.
    """

    runs: int
    config_hash: str | None
    rows: tuple[ContractRow, ...]
    blends: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A row with its image as a data URI, its score, and the rule that rejected it."""

    image: str
    caption: str
    score: float | None
    rule: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Random rows of a view."""

    pool: str
    view: str
    kept: tuple[Example, ...]
    near: tuple[Example, ...]  # the rows nearest to the threshold
    rejected: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """The accuracy on a part of the test samples: means over the seeds of the baseline and of an
    arm.

    kind: class, group or cluster, or all. share: its part of the arm's gain over all samples, None
    where that is not clear. low, high: of the difference, for all parts and all arms together; None
    where the noise is not known.
    """

    kind: str
    name: str
    samples: int
    baseline: float
    arm: float
    share: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "not distinguishable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionChange:
    """Samples of a class that were taken for another one: means over the seeds."""

    label: str
    predicted: str
    baseline: float
    arm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A sample that most seeds of one arm have right, and most seeds of the other wrong.

    arm_right, baseline_right: share of the seeds. The answers are the most frequent ones. image:
    a data URI, None where the image cannot be read.
    """

    sample: str
    label: str
    arm_answer: str
    baseline_answer: str
    arm_right: float
    baseline_right: float
    image: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChanges:
    """What an arm changed on a classification task against the baseline, by part and sample.

    whole: over all samples. changes: of each kind of parts the largest gains, then the largest
    losses. parts: how many there are of each kind. gained: samples that most seeds of the arm have
    right and most of the baseline wrong; lost: the reverse. shown: a random part of both, drawn
    with a fixed seed.
    """

    arm: str
    task: str
    whole: PartChange
    parts: dict[str, int]
    changes: tuple[PartChange, ...]
    confusions: tuple[ConfusionChange, ...]
    gained: int
    lost: int
    shown: tuple[Disagreement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One finished run on the primary task; the Wilson interval is over the test samples alone.

    model, batch_size, samples_seen: None where only the predictions are known.
    """

    arm: str
    seed: int
    model: str | None
    batch_size: int | None
    samples_seen: int | None
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The Jaccard index of the rows of each two arms."""

    arms: tuple[str, ...]
    jaccard: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Hashes, versions and the command; and each file that a number comes from with its sha256."""

    facts: dict[str, str]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """report.json: the manifest, results.json, and what the arms and runs were made of.

    samples_seen: of a run; None where all predictions were given. gaps: failed runs, incomplete
    arms, missing views. redesigns: changes of the manifest after the first run; metrics_were_fixed:
    before it, as far as the history shows. looks: which verdicts were seen before this one; empty
    for the first. contract: None where no run was trained here. settings: title -> YAML, of arms,
    rules and training settings. attribution: of the best arm's gain to groups of pairs, where
    mixtures are halves of groups. blend: the best of the sources, where mixtures have drawn shares.
    test_data: {task: hash of its images and annotations}, without tasks of which none is known.
    """

    ablation: Ablation
    results: StudyResults
    samples_seen: int | None
    arms: tuple[ArmReport, ...]
    runs: tuple[RunRow, ...]
    changes: tuple[ArmChanges, ...]
    gaps: tuple[str, ...]
    curves: tuple[Curve, ...]
    funnels: tuple[Funnel, ...]
    histograms: tuple[Histogram, ...]
    gallery: tuple[Examples, ...]
    overlap: Overlap
    null_web: Report | None
    costs: tuple[tuple[str, float], ...]
    settings: dict[str, str]
    provenance: Provenance
    contract: Contract | None = None
    rules: tuple[RuleEffects, ...] = ()
    categories: tuple[Categories, ...] = ()
    duplicates: tuple[DuplicateGroups, ...] = ()
    safety: tuple[SafetyRates, ...] = ()
    signals: tuple[TaskSignals, ...] = ()
    scales: tuple[ScaleDecision, ...] = ()
    looks: str = ""
    redesigns: tuple[str, ...] = ()
    metrics_were_fixed: bool = False
    attribution: Attribution | None = None
    blend: BlendChoice | None = None
    test_data: dict[str, str] = field(default_factory=dict)

    @property
    def primary(self) -> TaskResult:
        """The task that decides."""
        return self.results.tasks[self.ablation.primary]

    @property
    def baseline(self) -> str:
        return self.ablation.baseline

    def difference(self, arm: str, task: str | None = None) -> Comparison | None:
        """The comparison of an arm, a control or the A/A arm with the baseline (A/A: the arm that
        it repeats); on the primary task, or on another one.
        """
        return self.results.comparison(task or self.ablation.primary, arm, self.baseline)
