"""The block `stop` of an ablation: seeds in rounds, until every comparison is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manifests.fetch_settings import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When an arm gets no more seeds: its comparison on the primary task is decided, or the seeds
    left would hardly decide it.

    at_least: seeds of every arm in the first round. smallest: the smallest difference that is
    worth more seeds, in the unit of `equivalence`, which it is where it is None.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    decided: bool = True  # the only condition
    at_least: int = 2
    smallest: float | None = None

    def __post_init__(self) -> None:
        if not self.decided:
            raise ValueError("stop.decided is false; leave stop out, and every seed is run")
        if self.at_least < 2:
            raise ValueError(
                f"stop.at_least is {self.at_least}; it must be at least 2, because one seed shows "
                "no noise"
            )
        if self.smallest is not None and not self.smallest > 0:
            raise ValueError(f"stop.smallest is {self.smallest}; it must be above 0")

    def check_design(self, seeds: int, arms: int) -> None:
        """ValueError where the first round needs more seeds than there are, or where no arm is
        compared with the baseline. `arms` includes the baseline.
        """
        if self.at_least > seeds:
            raise ValueError(f"stop.at_least is {self.at_least}, but there are {seeds} seeds")
        if arms < 2:
            raise ValueError("stop needs an arm beside the baseline; there is nothing to decide")
