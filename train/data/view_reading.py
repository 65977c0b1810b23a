"""How each view of a run is read, with the reason in one log line: the folder for parts of remote
tars, and whole tars or kept rows by the cost model of `read_modes.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from train.config import TrainConfig
from train.data.view_rows import ViewRows
from train.store import Mode, PartCache, StoreSpeed, choose_mode, measure_speed

READS_AT_ONCE = 32  # of one rank, see READ_THREADS
logger = logging.getLogger(__name__)


class ViewReading:
    """Sets `part_mode` of the views of a run; `cache` is where their parts lie, None for none.

    ValueError for a cache folder that cannot be written to, a text that is no speed, and a view
    without tars of its own where the settings ask for these.
    """

    def __init__(self, views: Sequence[ViewRows], config: TrainConfig) -> None:
        self.cache: PartCache | None = None
        if config.read_cache is not None:
            self.cache = PartCache(config.read_cache, int(config.read_cache_gb * 1e9))
        for view in views:
            self._set_mode(view, config)

    def _set_mode(self, view: ViewRows, config: TrainConfig) -> None:
        mode: Mode
        if not view.is_remote and view.copy is None and config.read_mode != "materialised":
            view.part_mode = "mask"  # of adopted tars that lie in a store
            return
        if view.copy is not None:
            mode, reason = "materialised", "it has tars of its own"
        elif config.read_mode == "materialised":
            raise ValueError(
                f"read_mode is materialised, but view {view.view!r} of {view.pool} has no tars of "
                f"its own; run python pipeline/filter.py {view.pool} --materialise {view.view}"
            )
        elif config.read_mode != "auto":
            mode, reason = config.read_mode, "read_mode says so"
        elif self.cache is None:
            mode, reason = "ranged", "whole tars need a folder for them, see read_cache"
        else:
            mode, reason = self._cheaper(view, config)
        logger.info("view %s of %s is read by %s: %s", view.view, view.pool, mode, reason)
        view.part_mode = mode if self.cache is not None else None

    def _cheaper(self, view: ViewRows, config: TrainConfig) -> tuple[Mode, str]:
        """The mode that the cost model chooses for the first shard that has kept rows."""
        number = int(np.argmax(view.shard_rows > 0))
        rows = view.shard(number)
        costs = view.costs(number)
        if config.store_speed is not None:
            speed = StoreSpeed.parse(config.store_speed)
        else:
            size = int((rows.offset + rows.length).max())
            speed = measure_speed(
                lambda start, length: view.read_range(rows, number, start, length, 0), size
            )
        view.forget_shards()  # they have no parts yet
        mode, reason = choose_mode(costs, speed, READS_AT_ONCE)
        return mode, f"shard {rows.name} by {reason}"
