"""The views of a pool by name; one that is missing or older than the shards is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.aligned import current_view
from manifests.layout import PoolLayout
from manifests.records import ShardTable, ViewDocument


def write_view(pool: str, name: str, fingerprint: str) -> ViewDocument:
    document = ViewDocument(
        name=name, rules=(), thresholds={}, funnel=(("stored", 1),), kept=1,
        fingerprint=fingerprint, scores={}, shards=ShardTable(file="s.parquet", count=1, sha256=""),
    )  # fmt: skip
    disk.write_json(PoolLayout(pool).view_json(name), document, sealed=True)
    return document


def test_a_missing_and_a_stale_view_are_refused(tmp_path: Path) -> None:
    pool = str(tmp_path)
    with pytest.raises(ValueError, match="has no view 'long'; it has none"):
        current_view(pool, "long", "now", "")
    write_view(pool, "long", "before")
    with pytest.raises(ValueError, match=r"has no view 'lnog'; did you mean 'long'\?; it has long"):
        current_view(pool, "lnog", "now", "")
    with pytest.raises(ValueError, match=r"view 'long' of .* is stale: .*changed; do this$"):
        current_view(pool, "long", "now", "do this")
