"""How each view of a run is read, with the reason in one log line: the folder for parts of remote
tars, and whole tars or kept rows by the cost model of `read_modes.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from train.config import TrainConfig
from train.data.view_rows import ViewRows
from train.store import Mode, PartCache, StoreSpeed, choose_mode, measure_speed

READS_AT_ONCE = 32  # of one rank, see READ_THREADS
logger = logging.getLogger(__name__)


class ViewReading:
    """How the views of a run are read; `cache` is where parts of remote tars lie, None for none.

    ValueError for a cache folder that cannot be written to, and for a view without tars of its own
    where the settings ask for these.
    """

    def __init__(self, views: Sequence[ViewRows], config: TrainConfig, share: float) -> None:
        """share: the part of every batch that the ranks of this machine read."""
        self._views, self._config, self._share = views, config, share
        self._is_chosen = False
        for view in views:
            view.use_copy(config.read_mode in ("auto", "materialised"))
            if config.read_mode == "materialised" and view.copy is None:
                raise ValueError(
                    f"read_mode is materialised, but view {view.view!r} of {view.pool} has no tars "
                    f"of its own; run python pipeline/filter.py {view.pool} --materialise "
                    f"{view.view}"
                )
        self.cache: PartCache | None = None
        if config.read_cache is not None:
            self.cache = PartCache(config.read_cache, int(config.read_cache_gb * 1e9))

    def choose(self) -> None:
        """Set `part_mode` of the views, once, and log how each is read and why."""
        if self._is_chosen:
            return
        self._is_chosen = True
        for view in self._views:
            mode = self._mode(view)
            if self.cache is not None and self._fits(view, self.cache, mode):
                view.part_mode = mode
                view.forget_shards()  # those that were read before have no parts

    def _mode(self, view: ViewRows) -> Mode:
        mode: Mode
        if view.copy is not None:
            mode, reason = "materialised", "it has tars of its own"
        elif not view.is_remote:
            return "mask"  # of adopted tars that lie in a store
        elif self._config.read_mode != "auto":
            mode, reason = self._config.read_mode, "read_mode says so"
        elif self.cache is None:
            mode, reason = "ranged", "whole tars need a folder for them, see read_cache"
        else:
            mode, reason = self._cheaper(view)
        logger.info("view %s of %s is read by %s: %s", view.view, view.pool, mode, reason)
        return mode

    def _cheaper(self, view: ViewRows) -> tuple[Mode, str]:
        """The mode that the cost model chooses for the first shard that has kept rows."""
        number = _first_shard(view)
        rows = view.shard(number)
        if self._config.store_speed is not None:
            speed = StoreSpeed.parse(self._config.store_speed)
        else:
            size = int((rows.offset + rows.length).max())
            speed = measure_speed(
                lambda start, length: view.read_range(rows, number, start, length, 0), size
            )
        mode, reason = choose_mode(view.costs(number), speed, READS_AT_ONCE)
        return mode, f"shard {rows.name} by {reason}"

    def _fits(self, view: ViewRows, cache: PartCache, mode: Mode) -> bool:
        """Whether the cache has room for the shards that the lanes draw from at a time.

        In a smaller one parts would be removed before they are used, and fetched again and again.
        """
        if not view.is_remote:
            return True
        lanes = math.ceil(self._config.lanes * self._share)
        # A lane is inside one window, or passes from one to the next.
        shards = min(2 * lanes * self._config.window, int((view.shard_rows > 0).sum()))
        costs = view.costs(_first_shard(view))
        need = shards * costs.get(mode, costs["ranged"]).bytes
        if need <= cache.limit:
            return True
        logger.warning(
            "view %s of %s needs about %.3g GB of read_cache and has %.3g GB: its images are read "
            "without it; raise read_cache_gb",
            view.view,
            view.pool,
            need / 1e9,
            cache.limit / 1e9,
        )
        return False


def _first_shard(view: ViewRows) -> int:
    """The position of the first shard of which the view keeps rows."""
    return int(np.argmax(view.shard_rows > 0))
