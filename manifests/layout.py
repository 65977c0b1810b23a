"""Every path of a pool, a run and an ablation, spelled once, and the commit record."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmill.manifests import disk

if TYPE_CHECKING:
    import pyarrow as pa

# --------------------------------------------------------------------------------------------------
# Every path of a pool, spelled once; and what both writer and reader must agree on.
#
# Paths are local paths or fsspec URLs. A layout is a view of a folder: it opens nothing.


COMMIT_SUFFIX = "_stats.json"
# A change of the bytes of a tar or of the columns of a sidecar bumps this and the golden test.
SHARD_VERSION = 4
BUNDLE_SHARDS = 1_000  # shards whose score columns or masks share a file
SHARD_NAME = re.compile(r"[0-9]{5,18}")
LARGEST_NUMBER = 1 << 62  # above what a record counts
NOT_STORED = "not_stored"  # a view's outcome of a row whose image was never stored


def shard_name(shard: int | str) -> str:
    """The name of a shard in commit records and file names: five digits or more."""
    return f"{int(shard):05d}"


def bundle_number(shard: int | str) -> int:
    """Which bundle of a score set or a view has the rows of a shard."""
    return int(shard) // BUNDLE_SHARDS


def bundle_name(shard: int | str) -> str:
    """The file that holds the row-aligned columns of a shard and its neighbours."""
    return f"bundle-{bundle_number(shard):05d}.parquet"


def revised_name(shard: int | str, revision: int = 0) -> str:
    """The stem of a shard's tar and sidecar: `00000`, and `00000.r1` after the first repair."""
    return f"{shard_name(shard)}.r{revision}" if revision else shard_name(shard)


def random_view_name(view: str, seed: int | None = None) -> str:
    """The name of a random subset as large as `view`; .seed-N ends it where the seed is given."""
    return f"random_like_{view}" if seed is None else f"random_like_{view}.seed-{seed}"


def part_view_name(view: str, share: float, seed: int) -> str:
    """The name of a random part of a view, with that share of its rows."""
    return f"{view}.part-{share:g}.seed-{seed}"


def uids_checksum(uids: pa.ChunkedArray) -> str:
    """sha256 of the uids of a shard, one per line. Row-aligned files (scores, masks) carry it."""
    return hashlib.sha256("\n".join(uids.to_pylist()).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """shards/NNNNN_stats.json, written last: the shard's files with their hashes, and what became
    of its rows.
    """

    shard: str  # its name, see shard_name
    tar: str  # file name inside the pool, or the path or URL of an adopted tar
    tar_bytes: int
    tar_sha256: str
    count: int  # rows, each with one outcome: successes + the sum of reasons
    successes: int
    reasons: dict[str, int]
    failed_to_download: int
    failed_to_resize: int
    retries: int  # rows that retry a row of another shard
    sidecar_bytes: int
    sidecar_file_sha256: str  # of the Parquet file
    sidecar_sha256: str  # of the values without the volatile columns
    task: str
    group: str
    version: int  # SHARD_VERSION when it was written
    duration_s: float
    # Of the sidecar's name, and of the tar's unless it stayed; see revised_name
    revision: int = field(default=0, metadata=disk.OPTIONAL)
    adopted: bool  # the tar was there before the pool
    # Number of the lease under which it was written; None without one
    fence: int | None = field(default=None, metadata=disk.OPTIONAL)
    # Another program that fetched the images
    engine: str | None = field(default=None, metadata=disk.OPTIONAL)
    engine_version: str | None = field(default=None, metadata=disk.OPTIONAL)
    # Adopted: size and time, or what its store said of it
    tar_stamp: dict[str, Any] | None = field(default=None, metadata=disk.OPTIONAL)
    # Adopted: members of the tar that belong to no sample
    strays: int = field(default=0, metadata=disk.OPTIONAL)
    # How its images were asked for (user agent, per_host, deadline …). They may change between the
    # shards of a pool. None of a shard that was adopted.
    manners: dict[str, Any] | None = field(default=None, metadata=disk.OPTIONAL)

    @property
    def sidecar(self) -> str:
        """File name of the sidecar inside the pool."""
        return f"{revised_name(self.shard, self.revision)}.parquet"

    @classmethod
    def from_plain(cls, document: object) -> CommitRecord:
        """The inverse of `disk.to_plain`. Unknown keys are ignored.

        ValueError where a key is missing, or for another version of shards than SHARD_VERSION.
        """
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        known = {}
        for each in dataclasses.fields(cls):
            if each.name in document:
                known[each.name] = document[each.name]
            elif each.default is dataclasses.MISSING:
                raise ValueError(f"it has no {each.name!r}")
        version = known["version"]
        if version != SHARD_VERSION:
            raise ValueError(
                f"it has shard version {version!r}; this clipmill reads version {SHARD_VERSION}"
            )
        record: CommitRecord = disk.from_plain(cls, known)
        record.check_numbers()
        return record

    def check_numbers(self) -> None:
        """ValueError for a number that no column can hold, or that counts less than nothing."""
        if not SHARD_NAME.fullmatch(self.shard):
            raise ValueError(f"shard is {self.shard!r}; it must be a number of five digits or more")
        numbers: dict[str, float] = {}
        for reason, count in self.reasons.items():
            numbers[f"reasons.{reason}"] = count
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, (int, float)):
                numbers[each.name] = value
        for name, number in numbers.items():
            if not 0 <= number < LARGEST_NUMBER:
                shown = str(number)[:20]
                raise ValueError(f"{name} is {shown}; it must lie in 0..{LARGEST_NUMBER - 1:,}")

    @classmethod
    def read(cls, path: str) -> CommitRecord:
        """A commit record from its file. ValueError that names the file where it is none."""
        document = disk.read_json(path)
        try:
            return cls.from_plain(document)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a commit record of clipmill: {error}; to use tars of another "
                "program, name them as a source of kind shards and build into another folder"
            ) from None


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """The files of a pool. As a text it is the folder."""

    root: str

    def __str__(self) -> str:
        return self.root

    @property
    def pool_json(self) -> str:
        return disk.join(self.root, "pool.json")

    @property
    def purge_json(self) -> str:
        """There while rows are being purged, and after a purge that was killed."""
        return disk.join(self.root, "purge.json")

    @property
    def recipe_json(self) -> str:
        return disk.join(self.root, "recipe.json")

    @property
    def drift_json(self) -> str:
        """How a pool that was built from a lock differs from the pool that was locked."""
        return disk.join(self.root, "drift.json")

    @property
    def lease_json(self) -> str:
        """Which process may write into the pool."""
        return disk.join(self.root, "lease.json")

    @property
    def progress_json(self) -> str:
        """What the command that writes into the pool is doing; no part of the pool."""
        return disk.join(self.root, "progress.json")

    def lease_claim(self, fence: int) -> str:
        """The file whose creation decides who gets the lease with this number."""
        return disk.join(self.root, f".lease-{fence:08d}.json")

    def plan_round(self, number: int) -> str:
        """The folder of the plan (0), or of a round of retries."""
        folder = disk.join(self.root, "plan")
        return folder if number == 0 else disk.join(folder, f"retry-{number:03d}")

    @property
    def parts(self) -> str:
        """One row per part of the pairs: its counts, written when crawl ends."""
        return disk.join(self.root, "parts.parquet")

    @property
    def pairs(self) -> str:
        """The folder of the pairs."""
        return disk.join(self.root, "pairs")

    def pairs_part(self, part: int) -> str:
        """Pairs of source `part`, in document order."""
        return disk.join(self.pairs, f"part-{part:05d}.parquet")

    @property
    def extracted(self) -> str:
        """The folder of pairs that are not deduplicated yet. It is removed when crawl ends."""
        return disk.join(self.pairs, ".extracted")

    @property
    def shards(self) -> str:
        """The folder of the shards."""
        return disk.join(self.root, "shards")

    def sidecar(self, shard: int | str, revision: int = 0) -> str:
        """One row per attempt."""
        return disk.join(self.shards, f"{revised_name(shard, revision)}.parquet")

    def commit_record(self, shard: int | str) -> str:
        """The JSON that is written last and makes the shard visible."""
        return disk.join(self.shards, shard_name(shard) + COMMIT_SUFFIX)

    def shard_tar(self, shard: int | str, revision: int = 0) -> str:
        """The tar of a shard that was written here."""
        return disk.join(self.shards, f"{revised_name(shard, revision)}.tar")

    def tar(self, commit_record: CommitRecord) -> str:
        """The tar that a commit record names: inside the pool, or anywhere if it was adopted."""
        return self.named_tar(commit_record.tar)

    def named_tar(self, tar: str) -> str:
        """The tar that a commit record calls `tar`."""
        outside = disk.is_url(tar) or Path(disk.local_path(tar)).is_absolute()
        return tar if outside else disk.join(self.shards, tar)

    @property
    def index(self) -> str:
        """The folder of the index of commit records."""
        return disk.join(self.root, "index")

    @property
    def index_json(self) -> str:
        """Which files make up the index, and whether it is closed."""
        return disk.join(self.index, "index.json")

    @property
    def scores(self) -> str:
        """The folder of the score sets."""
        return disk.join(self.root, "scores")

    def score_set(self, name: str) -> str:
        """The folder of one score set, NAME@ID."""
        return disk.join(self.scores, name)

    def score_set_json(self, name: str) -> str:
        """The JSON that is written last and makes the score set complete."""
        return disk.join(self.score_set(name), "scores.json")

    def score_bundle(self, name: str, shard: int | str) -> str:
        """The file with the columns of a thousand shards, of which `shard` is one."""
        return disk.join(self.score_set(name), bundle_name(shard))

    def score_parts(self, name: str, shard: int | str) -> str:
        """The folder of the columns that wait to be put into the bundle of `shard`."""
        return disk.join(self.score_set(name), f"{bundle_number(shard):05d}")

    def score_part(self, name: str, shard: int | str) -> str:
        """Columns of one shard, aligned with its sidecar, until they are in the bundle."""
        return disk.join(self.score_parts(name, shard), f"{shard_name(shard)}.parquet")

    @property
    def transient(self) -> str:
        """The folder of what tickets leave for each other; it has columns of rows."""
        return disk.join(self.root, ".transient")

    def score_scratch(self, job: str) -> str:
        """What the tickets of a filter that looks at the whole pool leave for each other."""
        return disk.join(self.transient, f"scores-{job}")

    @property
    def views(self) -> str:
        """The folder of the views."""
        return disk.join(self.root, "views")

    def view_json(self, view: str) -> str:
        """The JSON that is written last and makes the view complete."""
        return disk.join(self.views, f"{view}.json")

    def view_rules(self, view: str) -> str:
        """What each rule of a view with several rules rejects."""
        return disk.join(self.views, view, "rules.json")

    def view_bundle(self, view: str, shard: int | str) -> str:
        """Per row of a thousand shards, of which `shard` is one: kept, or the first rule that
        failed."""
        return disk.join(self.views, view, bundle_name(shard))

    def view_shards(self, view: str, file: str) -> str:
        """The rows kept of every shard; the view's document names the file."""
        return disk.join(self.views, view, file)


# --------------------------------------------------------------------------------------------------
# Every path of a training run and of an ablation, spelled once.
#
# Paths are local paths or fsspec URLs. A layout is a view of a folder: it opens nothing.


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The files of a training run."""

    root: str

    @property
    def run_json(self) -> str:
        """Written last: the run is whole."""
        return disk.join(self.root, "run.json")

    @property
    def lock(self) -> str:
        """Held by the process that trains the run; of several ranks by rank 0."""
        return disk.join(self.root, ".lock")

    @property
    def log(self) -> str:
        return disk.join(self.root, "log.jsonl")

    @property
    def checkpoints(self) -> str:
        return disk.join(self.root, "checkpoints")

    @property
    def blend_json(self) -> str:
        """The blend as resolved."""
        return disk.join(self.root, "blend.json")

    def checkpoint(self, step: int) -> str:
        """The folder of the checkpoint after `step` steps."""
        return disk.join(self.checkpoints, f"step-{step}")

    @property
    def segments(self) -> str:
        """The folder of what a run on a pool that was being built drew from."""
        return disk.join(self.root, "segments")

    def segment(self, number: int) -> str:
        """One segment of such a run."""
        return disk.join(self.segments, f"{number:05d}.json")

    def nonfinite_json(self, rank: int) -> str:
        """Where a NaN or an infinity appeared on `rank`."""
        return disk.join(self.root, f"nonfinite-{rank}.json")

    @property
    def export(self) -> str:
        """The folder that open_clip loads."""
        return disk.join(self.root, "export")

    @property
    def predictions(self) -> str:
        """The folder with one Parquet file per evaluation task."""
        return disk.join(self.root, "eval")

    def averaged_predictions(self, count: int) -> str:
        """The folder of the predictions of the mean of the last `count` checkpoints."""
        return f"{self.predictions}-average-{count}"

    @property
    def model_json(self) -> str:
        """Of a model that was not trained here: which one its predictions are of."""
        return disk.join(self.root, "model.json")

    def task_predictions(self, task: str) -> str:
        """The predictions on a task, of the weights after the last step."""
        return disk.join(self.predictions, f"{task}.parquet")


@dataclass(frozen=True, slots=True)
class AblationLayout:
    """The files of an ablation."""

    root: str

    @property
    def ablation_json(self) -> str:
        """The ablation as resolved."""
        return disk.join(self.root, "ablation.json")

    @property
    def command_json(self) -> str:
        return disk.join(self.root, "command.json")

    @property
    def costs_json(self) -> str:
        return disk.join(self.root, "costs.json")

    @property
    def results_json(self) -> str:
        return disk.join(self.root, "results.json")

    @property
    def measurements(self) -> str:
        """What each run measured, by every metric: what the results are computed from."""
        return disk.join(self.root, "measurements.parquet")

    @property
    def scales(self) -> str:
        """A folder for each smaller scale that was run before the ablation itself."""
        return disk.join(self.root, "scales")

    @property
    def history(self) -> str:
        """What was asked before the runs and at every verdict, a line each."""
        return disk.join(self.root, "history.jsonl")

    @property
    def lock(self) -> str:
        """Held by the command that runs the ablation."""
        return disk.join(self.root, ".lock")

    @property
    def overlap_json(self) -> str:
        """Every evaluation image that a pool stores too."""
        return disk.join(self.root, "overlap.json")

    @property
    def report_json(self) -> str:
        return disk.join(self.root, "report.json")

    @property
    def report_markdown(self) -> str:
        """The summary of the report for a pull request."""
        return disk.join(self.root, "report.md")

    def recipe_json(self, pool: str) -> str:
        return disk.join(self.root, "recipes", f"{pool}.json")

    def blend_json(self, arm: str) -> str:
        return disk.join(self.root, "blends", f"{arm}.json")

    def run(self, arm: str, seed: int) -> str:
        """The folder of one run."""
        return disk.join(self.root, "runs", arm, f"seed-{seed}")

    def model(self, arm: str) -> str:
        """The folder of an arm that is one model."""
        return disk.join(self.root, "runs", arm, "model")

    @property
    def scorer(self) -> str:
        """The run that trains the scorer."""
        return disk.join(self.root, "scorer")

    @property
    def scorer_evaluation(self) -> str:
        """What the scorer reaches on the primary task."""
        return disk.join(self.scorer, "evaluation")

    @property
    def report(self) -> str:
        """The report as one page of HTML."""
        return disk.join(self.root, "report.html")

    @property
    def null(self) -> str:
        """The ablation on data where no effect is planted."""
        return disk.join(self.root, "null")
