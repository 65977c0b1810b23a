"""All stored rows of a pool that is still being built, and the segments in which a run draws them.

A view is chosen at the end of a build, so a live run draws every stored row; captions are tokenised
as their shard is read. Rank 0 decides each segment (`train/mixture/order.py`) and writes it into
the run's folder before any rank draws from it; the others wait for the file. A resumed run and a
replay from the finished pool read the same files, so they draw the same rows.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from clipmill.manifests import disk, waits
from clipmill.manifests.clip_tokenizer import CaptionTokenizer
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout, RunLayout, shard_name
from clipmill.manifests.records import PoolDocument, SegmentDocument, read_document
from clipmill.train.data.view_rows import ShardRows, one_array
from clipmill.train.mixture.order import Segment, next_segment
from clipmill.train.store import read_with_retries

if TYPE_CHECKING:
    from clipmill.train.model.open_clip_model import ModelTokenizer

POLL_S = 1.0  # between two looks for a shard, or for a segment of rank 0
REMIND_S = 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShard:
    """A committed shard: its number, stored rows, files, and the hash of its sidecar."""

    shard: int
    rows: int
    tar: str
    sidecar: str
    sha256: str


# What is committed at this moment, by the numbers of the shards, and whether no more will come.
Committed = Callable[[], tuple[dict[int, FoundShard], bool]]


def committed_shards(pool: str) -> tuple[dict[int, FoundShard], bool]:
    """{number: shard} of a pool, and whether no more will come: the build has counted them."""
    columns = ["tar", "successes", "sidecar_sha256"]
    commits = read_with_retries(lambda: read_commits(pool, columns), pool)
    shards = commits.shards.tolist()
    rows = commits.column("successes").to_pylist()
    hashes = commits.column("sidecar_sha256").to_pylist()
    committed = {}
    for shard, stored, sha256 in zip(shards, rows, hashes, strict=True):
        committed[shard] = FoundShard(
            shard=shard,
            rows=stored,
            tar=commits.tar(shard),
            sidecar=commits.sidecar(shard),
            sha256=sha256.hex() if isinstance(sha256, bytes) else str(sha256),
        )
    path = PoolLayout(pool).pool_json
    counted = disk.exists(path) and read_document(path, PoolDocument).fingerprint
    return committed, counted == commits.fingerprint


class LivePool:
    """The shards that a run has found, in the order in which it found them, and its segments: from
    its folder; on rank 0 of a live run new ones are decided.

    folder: of the run that has them; None: they are kept in memory. decides: False for the other
    ranks and for a replay. replay: a segment that is missing is a mistake, and is not waited for.
    """

    def __init__(
        self,
        pool: str,
        committed: Committed,
        batch_size: int,
        folder: str | None,
        *,
        decides: bool,
        replay: bool = False,
        own: ModelTokenizer | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.pool, self._find, self._batch_size = pool, committed, batch_size
        self._layout = None if folder is None else RunLayout(folder)
        self._decides, self._replay, self._sleep = decides, replay, sleep
        self._lock = threading.Lock()
        self._committed: dict[int, FoundShard] = {}  # when a segment was read last
        self.segments: list[Segment] = []
        self.found: list[FoundShard] = []
        # CLIP's is made with the first shard, in 0.3 s.
        self._coder: CaptionTokenizer | ModelTokenizer | None = own
        self._encoding = threading.Lock()

    def rows(self) -> list[int]:
        """Stored rows of the shards found so far."""
        return [shard.rows for shard in self.found]

    def read(self, number: int) -> ShardRows:
        """The stored rows of a shard that was found, with the tokens of their captions."""
        shard = self.found[number]
        columns = ["key", "caption", "image_offset", "image_length"]
        read = functools.partial(disk.read_parquet, shard.sidecar, columns)
        table = read_with_retries(read, shard.sidecar)
        table = table.filter(pc.is_valid(table["image_offset"]))
        if len(table) != shard.rows:
            raise ValueError(
                f"{shard.sidecar} has {len(table)} stored rows, its commit record {shard.rows}; "
                f"run clipmill audit verify {self.pool}"
            )
        with self._encoding:
            self._coder = self._coder or CaptionTokenizer()
            tokens, ends = self._coder.encode_all(table["caption"], blanks=True)
        return ShardRows(
            name=shard_name(shard.shard),
            tar=shard.tar,
            offset=table["image_offset"].to_numpy(),
            length=table["image_length"].to_numpy(),
            tokens=tokens,
            ends=ends,
            keys=one_array(table["key"]),
        )

    def at(self, step: int) -> Segment:
        """The segment of a step. Waits until there is one."""
        with self._lock:
            reminded = time.monotonic()
            while not self.segments or self.segments[-1].end <= step:
                if self._next(step):
                    continue
                if time.monotonic() - reminded > REMIND_S:
                    logger.info("waiting for the first %d rows of the pool", self._batch_size)
                    reminded = time.monotonic()
                with waits.doing("the first rows of the pool"):
                    self._sleep(POLL_S)
            for segment in reversed(self.segments):
                if segment.first <= step:
                    return segment
        raise AssertionError("the first segment begins at step 0")

    def _next(self, step: int) -> bool:
        """Read or decide the next segment; False where it is not there yet."""
        path = None
        if self._layout is not None:
            path = self._layout.segment(len(self.segments))
            if disk.exists(path):
                self._read(path)
                return True
        if self._replay:
            raise ValueError(
                f"the segments in {path} end before step {step}; replay at most as many steps as "
                "that run had: set samples_seen"
            )
        if not self._decides:
            return False
        committed, complete = self._find()
        known = {shard.shard for shard in self.found}
        new = [committed[shard] for shard in sorted(committed) if shard not in known]
        new = [shard for shard in new if shard.rows]
        rows = self.rows() + [shard.rows for shard in new]
        segment = next_segment(self.segments, rows, self._batch_size, complete)
        if segment is None:
            if complete:
                raise ValueError(
                    f"{self.pool} is complete and has {sum(rows)} stored rows, fewer than "
                    f"a batch of {self._batch_size}; lower batch_size"
                )
            return False
        if path is not None:
            document = SegmentDocument(
                first=segment.first,
                steps=segment.steps,
                start=segment.start,
                shards=tuple(shard.shard for shard in new),
                sidecars=tuple(shard.sha256 for shard in new),
            )
            disk.write_json(path, document)
        self.found.extend(new)
        self.segments.append(segment)
        logger.info("segment %d begins at step %d: %s", segment.number, segment.first, segment)
        return True

    def _read(self, path: str) -> None:
        document = read_document(path, SegmentDocument)
        if not self._committed.keys() >= set(document.shards):
            self._committed, _ = self._find()
        for number, sha256 in zip(document.shards, document.sidecars, strict=True):
            shard = self._committed.get(number)
            if shard is None or shard.sha256 != sha256:
                problem = "is not there" if shard is None else "has changed since"
                raise ValueError(
                    f"shard {shard_name(number)} of {self.pool}, which {path} names, "
                    f"{problem}; the run cannot be repeated from this pool"
                )
            self.found.append(shard)
        self.segments.append(
            Segment(
                number=len(self.segments),
                first=document.first,
                steps=document.steps,
                start=document.start,
                stop=len(self.found),
            )
        )
