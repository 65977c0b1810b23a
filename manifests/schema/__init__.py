"""The nouns: recipes, views, blends, tasks and ablations as frozen dataclasses.

Nothing but the standard library, so that a trainer can import it anywhere.
`manifests/reader.py` reads these from YAML and checks types. What a type cannot say (a share
between 0 and 1, a baseline that is one of the arms) is checked here in `__post_init__`.
"""

from __future__ import annotations

from manifests.schema.ablation import Ablation, Arm, Controls, PoolRef, Scorer, Stop, Weights
from manifests.schema.blend import STORED_ROWS, Balance, Blend, CurriculumStage, TarStream
from manifests.schema.fetch import (
    ADDED_SETTINGS,
    MANNERS,
    ROWS_PER_SHARD_LIMIT,
    STORED_IMAGE_SETTINGS,
    Fetch,
    HostLimit,
    Interpolation,
)
from manifests.schema.miniweb import MINIWEB_FAULTS, Miniweb
from manifests.schema.recipe import FilterSpec, Pair, Recipe, Rule, View
from manifests.schema.source import (
    ADDED_KEYS,
    CAPTION_FILES,
    CLASS_FOLDERS,
    SOURCES,
    Source,
    refuse_unused,
)
from manifests.schema.task import Suite, TaskSpec

__all__ = [
    "ADDED_KEYS",
    "ADDED_SETTINGS",
    "CAPTION_FILES",
    "CLASS_FOLDERS",
    "MANNERS",
    "MINIWEB_FAULTS",
    "ROWS_PER_SHARD_LIMIT",
    "SOURCES",
    "STORED_IMAGE_SETTINGS",
    "STORED_ROWS",
    "Ablation",
    "Arm",
    "Balance",
    "Blend",
    "Controls",
    "CurriculumStage",
    "Fetch",
    "FilterSpec",
    "HostLimit",
    "Interpolation",
    "Miniweb",
    "Pair",
    "PoolRef",
    "Recipe",
    "Rule",
    "Scorer",
    "Source",
    "Stop",
    "Suite",
    "TarStream",
    "TaskSpec",
    "View",
    "Weights",
    "refuse_unused",
]
