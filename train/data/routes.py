"""The ways in which a run reads its samples. ROUTES has the class of each, by `Blend.draws_from`.

    Views    rows that views of finished pools keep, by position
    Live     stored rows of a pool that is still being built, or of such a run again, by position
    Streams  samples of tars that are read from their beginning to their end, as they come

By position, a batch is a function of its step: the same for any number of ranks and threads, and a
run can be resumed. What comes next from a stream is known when it has come.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipmill.manifests.clip_tokenizer import TOKENIZER
from clipmill.manifests.schema import Blend, DrawsFrom
from clipmill.train.config import TrainConfig
from clipmill.train.data import live_rows
from clipmill.train.data.damage import StageTimes
from clipmill.train.data.read_ahead import (
    GROUP_STEPS,
    ReadAhead,
    RunRows,
    StepReads,
    fitting_cache,
)
from clipmill.train.data.tar_streams import StreamOrder, TarStep, TarSteps, check_tars, expand
from clipmill.train.data.view_rows import (
    CaptionCoder,
    RowReader,
    ViewChances,
    ViewNumbers,
    ViewRows,
    open_view,
)
from clipmill.train.mixture.order import Order, SegmentOrder
from clipmill.train.mixture.schedule import blend_sources
from clipmill.train.store import PartCache

if TYPE_CHECKING:
    from clipmill.train.model.open_clip_model import ModelTokenizer

LIVE_STEPS = 4  # that a live run reads together: what is read ahead cannot draw from new shards


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What a rank asks of a route."""

    config: TrainConfig
    rank: int
    world: int
    seed: int  # of the order
    times: StageTimes | None  # where the time of reads is added up
    own: ModelTokenizer | None  # the model's tokenizer, where that is not CLIP's
    coder: CaptionCoder | None  # of views: makes tokens in the place of the stored ones
    columns: tuple[str, ...]  # of views: read beside the images
    out: str | None  # of a live run: its folder
    decides: bool  # of a live run: whether this process decides its segments

    @property
    def positions(self) -> range:
        """The rows of every global batch that the rank serves."""
        share = self.config.batch_size // self.world
        return range(self.rank * share, (self.rank + 1) * share)

    @property
    def cached_shards(self) -> int:
        """Whose columns stay in memory: a lane is in one window, or passes from one to the next."""
        return 2 * self.config.lanes * self.config.window


class _Route:
    """What routes have beside `steps(numbers)`, which begins to read some steps in a row.

    is_resumable: whether a batch is a function of its step. views: of finished pools. token_sets:
    POOL/VIEW -> its tokens.
    """

    is_resumable = True
    views: tuple[ViewRows, ...] = ()
    token_sets: Mapping[str, str] = {}

    def __init__(self, blend: Blend, request: RankRequest) -> None:
        self._blend, self._request = blend, request

    def check_repeats(self, steps: int) -> None:
        """ValueError where so many steps draw rows of a view more often than the blend allows. A
        blend whose rows are not known has no limit.
        """

    def remedy(self, source: str) -> str:
        """What a person does about damaged samples of a source."""
        return f"run clipmill audit verify {self._blend.pools[source.partition('/')[0]]}"


class Views(_Route):
    """Rows that views of finished pools keep. A folder for parts of remote tars is theirs alone."""

    def __init__(self, blend: Blend, request: RankRequest) -> None:
        super().__init__(blend, request)
        config, names, cached = request.config, sorted(blend.views), request.cached_shards
        views = []
        for name in names:
            pool, _, view = name.partition("/")
            texts = tuple(blend.captions.get(name, ()))
            path, tokens = blend.pools[pool], request.coder or config.tokenizer
            views.append(open_view(path, view, tokens, cached, texts, request.columns))
        self.views = tuple(views)
        self.token_sets = {name: view.token_set for name, view in zip(names, views, strict=True)}
        shard_rows = {name: view.shard_rows for name, view in zip(names, views, strict=True)}
        distinct = None if blend.distinct is None else ViewNumbers(views, blend.distinct, cached)
        balance = ViewChances(views, names, blend.balance, cached) if blend.balance else None
        self.order = Order(
            blend_sources(blend, shard_rows),
            config.batch_size,
            config.lanes,
            config.window,
            request.seed,
            distinct=distinct,
            balance=balance,
            captions=blend.captions,
        )
        self.check_repeats(config.steps)
        self._run = RunRows(
            order=self.order, names=names, readers=views, positions=request.positions
        )
        self._cache: PartCache | None = None
        if config.read_cache is not None:
            self._cache = PartCache(config.read_cache, int(config.read_cache_gb * 1e9))

    def steps(self, numbers: range) -> ReadAhead:
        """Read some steps in a row, from the first one on."""
        config, world = self._request.config, self._request.world
        cache = self._cache
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        lanes = math.ceil(config.lanes * min(1.0, local_ranks / world))  # of this machine
        open_cache = None
        if cache is not None:
            open_cache = functools.partial(fitting_cache, cache, self._run, lanes, config.window)
        most = _shards_ahead(self._request) * len(self.views)
        return ReadAhead(self._run, numbers, most, open_cache, GROUP_STEPS, self._request.times)

    def check_repeats(self, steps: int) -> None:
        """As in `_Route`."""
        self.order.check_repeats(steps, self._blend.max_repeats)


class Live(_Route):
    """Stored rows of a pool that is still being built (`live`), and those that such a run drew
    (`segments`).
    """

    def __init__(self, blend: Blend, request: RankRequest) -> None:
        super().__init__(blend, request)
        config, own = request.config, request.own
        (name,) = blend.views
        pool = blend.pools[name.partition("/")[0]]
        _refuse_read_cache(config)
        if config.tokenizer != TOKENIZER:
            raise ValueError(
                f"a live run makes tokens of the tokenizer {TOKENIZER}, and the run's is "
                f"{config.tokenizer}; leave tokenizer out, or train on a view of the finished pool"
            )
        replay = blend.segments is not None
        live = live_rows.LivePool(
            pool,
            functools.partial(live_rows.committed_shards, pool),
            config.batch_size,
            blend.segments if replay else request.out,
            decides=request.decides and not replay,
            replay=replay,
            own=own,
        )
        self.order = SegmentOrder(
            name, live, config.batch_size, config.lanes, config.window, request.seed
        )
        self.token_sets = {name: f"live@{own.identity if own else TOKENIZER}"}
        reader = RowReader(pool, request.cached_shards, live.read)
        self._run = RunRows(
            order=self.order, names=[name], readers=[reader], positions=request.positions
        )

    def steps(self, numbers: range) -> ReadAhead:
        """Read some steps in a row. Waits for the first rows of the pool."""
        if numbers:
            self.order.batch(numbers.start, self._request.positions)
        most = _shards_ahead(self._request)
        return ReadAhead(self._run, numbers, most, None, LIVE_STEPS, self._request.times)


class Streams(_Route):
    """Samples of tars that other programs made, as they come."""

    is_resumable = False

    def __init__(self, blend: Blend, request: RankRequest) -> None:
        """ValueError for a local tar that is not there, one that is named twice, fewer tars than
        ranks, and another tokenizer than CLIP's.
        """
        super().__init__(blend, request)
        config = request.config
        _refuse_read_cache(config)
        if config.tokenizer != TOKENIZER:
            raise ValueError(
                f"streams are tokenised with {TOKENIZER}, and the run's tokenizer is "
                f"{config.tokenizer}; leave tokenizer out, or adopt the tars into a pool"
            )
        tars = {}
        for name in sorted(blend.streams):
            tars[name] = expand(name, blend.streams[name].tars)
            check_tars(name, tars[name], request.world)
        self.order = StreamOrder(blend.streams, tars, config.batch_size, request.seed)

    def steps(self, numbers: range) -> TarSteps:
        """Read some steps; the first one is the run's."""
        request = self._request
        return TarSteps(
            self.order,
            request.positions,
            numbers,
            request.rank,
            request.world,
            request.config.threads,
            request.times or StageTimes(),
            request.own,
        )

    def remedy(self, source: str) -> str:
        """As in `_Route`."""
        return f"look at the tars of stream {source!r}"


Steps = ReadAhead | TarSteps
StepSamples = StepReads | TarStep  # what the rows of a rank have at one step
Route = Views | Live | Streams
ROUTES: dict[DrawsFrom, type[Route]] = {
    "views": Views,
    "live": Live,
    "segments": Live,
    "streams": Streams,
}


def _shards_ahead(request: RankRequest) -> int:
    """Shards of a source whose columns are asked for ahead: its cache keeps them."""
    return request.cached_shards * 3 // 4


def _refuse_read_cache(config: TrainConfig) -> None:
    """ValueError for a folder for parts of tars, where nothing is read by parts."""
    if config.read_cache is not None:
        raise ValueError(
            f"read_cache is {config.read_cache}, which is for views of finished pools, and a "
            "live run, its replay and a run on streams read without it; leave read_cache out"
        )
