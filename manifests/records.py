"""The JSON documents of a pool and a run, as frozen dataclasses that writers and readers share.

The commit record of a shard is in `manifests/layout.py`, beside the paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from clipmill.manifests import disk

T = TypeVar("T")


def read_document(path: str | Path, kind: type[T]) -> T:
    """A JSON document as its dataclass.

    FileNotFoundError where there is none. ValueError that names the file where it is no such
    document.
    """
    value = disk.read_json(path)
    try:
        document: T = disk.from_plain(kind, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no {kind.__name__}: {error}") from error
    return document


def read_part(path: str, name: str) -> Any:
    """An object in a JSON file that another form of this program may have written. ValueError
    where there is none.
    """
    document = disk.read_json(path)
    part = document.get(name) if isinstance(document, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"{path} has no {name!r}; move its folder away to run it again")
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What a top(COLUMN, SHARE) of a rule was resolved to."""

    value: float  # an int where the column holds integers
    asked: float  # the share that the rule names
    share: float  # the share that the value keeps, ties included
    kept: int
    rows: int  # stored rows of the pool that have a value


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTable:
    """The file shards-HASH.parquet of a view, see manifests/aligned.py."""

    file: str
    count: int  # of the shards
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRule:
    """A rule of a view, as its document has it. Exactly one of `where`, `sample` and `random_like`
    is set.
    """

    like: str | None = field(default=None, metadata=disk.OPTIONAL)  # hash of that view's rules
    name: str  # "basic.words" if it came from view `basic`
    random_like: str | None = field(default=None, metadata=disk.OPTIONAL)  # a view
    sample: float | None = field(default=None, metadata=disk.OPTIONAL)  # share of the stored rows
    seed: int | None = field(default=None, metadata=disk.OPTIONAL)  # None of a `where`
    # SQL, or words about rows that a program selected
    where: str | None = field(default=None, metadata=disk.OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDocument:
    """views/NAME.json: what a view was made from and what it keeps."""

    name: str
    rules: tuple[ViewRule, ...]  # other views' rules in place
    thresholds: dict[str, Threshold]  # by the call as the rule spells it
    funnel: tuple[tuple[str, int], ...]  # (step, rows that are left after it)
    kept: int
    fingerprint: str  # of the shards that it was chosen from
    scores: dict[str, str]  # filter -> score set (NAME@ID) that its rules read
    # Hash of its rows, see pipeline/shuffle.py. None where nobody asked for it, and after a purge
    # of some of its rows.
    rows_sha256: str | None = field(default=None, metadata=disk.OPTIONAL)
    shards: ShardTable  # rows kept of each
    # True where it stays a view of these shards when others are added to the pool
    frozen: bool | None = field(default=None, metadata=disk.OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """What one rule of a view rejects of the pool's stored rows, whatever the other rules do.

    alone: rows that only this rule rejects: the view would keep them without it. None where a rule
    cannot be evaluated on rows that the rules before it reject.
    """

    rule: str
    rejected: int | None
    alone: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRulesDocument:
    """views/NAME/rules.json: what each rule of a view with several rules rejects."""

    fingerprint: str  # that of the view
    stored: int
    rules: tuple[RuleEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSetDocument:
    """scores/NAME@ID/scores.json: which filter made the columns, and how many rows have a score."""

    name: str
    id: str
    version: int
    options: dict[str, Any]
    identity: str
    columns: tuple[str, ...]
    fingerprint: str
    rows: int
    stored: int
    scored: int
    seconds: float
    # The filter, where `name` is another name of it
    kind: str | None = field(default=None, metadata=disk.OPTIONAL)
    # Instance -> score set (NAME@ID) that the filter read
    reads: dict[str, str] | None = field(default=None, metadata=disk.OPTIONAL)
    # True where a value depends on other rows of the pool: rows that come or go make all columns
    # old, and `fingerprint` is of the rows that they were computed from.
    whole_pool: bool | None = field(default=None, metadata=disk.OPTIONAL)
    # Of the columns of a user's own filter
    meanings: dict[str, str] | None = field(default=None, metadata=disk.OPTIONAL)

    @property
    def filter_kind(self) -> str:
        """The filter: a key of FILTERS, or PATH.py:CLASS."""
        return self.kind or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCounts:
    """Links of all parts: `links` = `pairs` + the sum of `reasons`."""

    parts: int
    links: int
    pairs: int
    reasons: dict[str, int]
    damaged_records: int = 0  # of WAT and WARC files: how many links they had is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCounts:
    """Rows by their newest outcome: a row that was retried counts once."""

    stored: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCounts:
    """Attempts of all committed shards: `attempted` = `stored` + the sum of `reasons`."""

    shards: int
    planned: int
    attempted: int
    retries: int  # attempts that retry a row of another shard
    stored: int
    reasons: dict[str, int]
    classes: dict[str, int]
    final: FinalCounts
    bytes: int
    strays: int = field(default=0, metadata=disk.OPTIONAL)  # members of tars that are of no sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCounts:
    """Rows of a score set; `scored` of the `stored` rows have all its columns."""

    rows: int
    stored: int
    scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCounts:
    """What a view keeps, step by step."""

    kept: int
    funnel: tuple[tuple[str, int], ...]
    thresholds: dict[str, Threshold]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """Counts of every stage of a pool."""

    crawl: CrawlCounts | None
    fetch: FetchCounts
    scores: dict[str, ScoreCounts]
    views: dict[str, ViewCounts]
    complete: bool  # every planned shard is committed
    problems: tuple[str, ...]  # one line for each count that contradicts another


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDocument(PoolCounts):
    """pool.json: the counts, and what the pool was made from."""

    recipe: str
    recipe_hash: str
    source: str
    fingerprint: str
    seconds: dict[str, float]  # wall time by stage, of all builds
    task_seconds: float  # sum over the shards
    versions: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftDocument:
    """drift.json: how the rows of a pool that was built from a lock differ from those of the lock.

    `stored` = `same` + the sum of `drift` + `missing`; `rows` = `stored` + the sum of `not_asked`.
    """

    lock: str  # its id
    name: str  # of the recipe of the lock
    rows: int
    stored: int  # rows that were stored in the pool that was locked
    same: int  # of these, rows that are stored here, with the same bytes
    drift: dict[str, int]  # reason -> how many of these are not stored here
    missing: int  # of these, rows of shards that are not committed
    not_asked: dict[str, int]  # outcome in the lock -> rows that were not asked for
    shards: int
    same_tars: int  # shards whose tar has the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedSamples:
    """Samples that training replaced because they could not be used."""

    count: int
    # The first ones: step, position, source, shard, key, reason
    samples: tuple[dict[str, Any], ...]


class RunIdentity(TypedDict, total=False):
    """Everything that decides the weights of a run. What is not known, or not used, is left out."""

    config: dict[str, Any]  # the settings that decide the weights
    order: dict[str, Any]  # of its samples, with the version of the order
    pixels: int  # version of the crops
    model: dict[str, Any]  # the architecture of open_clip's list or of a file
    initial_files: dict[str, str]  # file -> sha256
    initial_weights: str  # sha256
    blend: dict[str, Any]
    tokens: dict[str, str]  # POOL/VIEW -> score set of its tokens, or the model's own tokenizer
    views: dict[str, str]  # POOL/VIEW -> hash of its document


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """run.json: what a finished run was, and how it went."""

    blend: dict[str, Any]
    blend_hash: str
    config: dict[str, Any]
    config_hash: str
    identity: RunIdentity
    seed: int
    world: int  # ranks of the last start
    device: str
    versions: dict[str, str]
    layout: dict[str, int]  # dp_replicate, dp_shard, tp
    parameters: int
    steps: int
    samples: int
    resumed_at: int  # the step from which the last start continued; 0 where it was the only one
    sources: dict[str, dict[str, Any]]  # POOL/VIEW -> rows, drawn, repeats
    bad: DamagedSamples  # of all ranks and all starts
    samples_per_s: float  # of the last start
    peak_memory_bytes: int
    seconds: dict[str, float]  # start, train, whole; of the last start
    resumable: bool  # False: its samples were streamed from tars
    export: dict[str, str]  # file of export/ -> sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDocument:
    """segments/NNNNN.json of a run on a pool that is being built: which shards it drew from when.

    The shards of all segments, one after another, are those that the run has found. The segment
    draws from number `start` of them to the last that it names itself.
    """

    first: int  # its first step
    steps: int | None  # None: to the end of the run
    start: int
    shards: tuple[int, ...]  # found since the segment before
    sidecars: tuple[str, ...]  # sidecar_sha256 of each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """checkpoints/step-N/state.json: written last, it makes the checkpoint complete."""

    step: int
    identity: RunIdentity  # of the run
    order: str  # fingerprint of the order of training
    config_hash: str
    sha256: dict[str, str]  # file name -> hash
    bad: DamagedSamples  # up to this step
    # dp_replicate, dp_shard, tp of a sharded checkpoint; None of a whole one
    layout: dict[str, int] | None = field(default=None, metadata=disk.OPTIONAL)
