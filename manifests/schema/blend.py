"""What a run trains on: views of pools with their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from manifests.schema.fetch import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """What a run draws: views of pools with their weights."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT
    name: str
    pools: dict[str, str]  # name -> folder or URL
    views: dict[str, float]  # "pool/view" -> weight
    seed: int = 0
    max_repeats: float | None = None  # mean repeats of a view's rows above which a run is refused
    # `uid`, or a column with the groups of duplicates: no batch holds one of its values twice
    distinct: str | None = None

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"blend {self.name!r} has no views")
        for name, weight in self.views.items():
            pool, _, view = name.partition("/")
            if not view or pool not in self.pools:
                raise ValueError(
                    f"blend {self.name!r}: "
                    f"{name!r} is not POOL/VIEW with a pool of {sorted(self.pools)}"
                )
            if not 0 < weight < math.inf:
                raise ValueError(
                    f"blend {self.name!r}: the weight of {name!r} is {weight}; it must be above 0"
                )
