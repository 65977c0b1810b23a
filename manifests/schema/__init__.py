"""The nouns: recipes, views, blends, tasks and ablations as frozen dataclasses.

Nothing but the standard library, so that a trainer can import it without pydantic or yaml.
`manifests/reader.py` reads these from YAML and checks types. What a type cannot say (a share
between 0 and 1, a baseline that is one of the arms) is checked here in `__post_init__`.

Invariants:

* An impossible value is refused when the object is made (`test_source.py`, `test_ablation.py`).
* Every key has a meaning, which the site shows (`tests/docs/tools/test_reference.py`).
* A manner does not decide a pool (`test_identity.py`); a kind of source refuses the keys that it
  does not use (`test_source.py`).

To add a key: its field and its check here, its meaning in docs/tools/meanings.yaml, a good and a
bad value in the test. A key that decides bytes enters the
identity of a pool by itself; a manner is named in `fetch.py`.
"""

from __future__ import annotations

from clipmill.manifests.schema.ablation import (
    A_A,
    NO_SEED,
    RANDOM_LIKE,
    SEEDS,
    STORED_ROWS,
    Ablation,
    Arm,
    Balance,
    Blend,
    Controls,
    DrawsFrom,
    Mixtures,
    PoolRef,
    Role,
    Scorer,
    Stop,
    Suite,
    TarStream,
    TaskSpec,
)
from clipmill.manifests.schema.recipe import (
    ADDED_KEYS,
    ADDED_SETTINGS,
    CAPTION_BYTES,
    CAPTION_FILES,
    CLASS_FOLDERS,
    MANNERS,
    OPTOUT_POLICIES,
    OPTOUT_SIGNALS,
    ROWS_PER_SHARD_LIMIT,
    SOURCES,
    STORED_IMAGE_SETTINGS,
    TABLE_ENDINGS,
    TABLE_KEYS,
    Fetch,
    FilterSpec,
    Interpolation,
    Pair,
    Recipe,
    Rule,
    Source,
    View,
    refuse_unused,
)
