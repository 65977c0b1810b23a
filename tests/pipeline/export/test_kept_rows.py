"""The kept rows of a view with all their columns, and the score sets that are left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.columns import SIDECAR
from manifests.layout import PoolLayout
from pipeline.audit.purge import purge_rows
from pipeline.export import KeptRows
from tests.support.bundles import change_shard
from tests.support.exported import exported_pool, kept_samples
from tests.support.small_pool import rows, write_shard


def test_kept_rows_with_sidecar_and_score_columns(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    kept = KeptRows(pool, "wide")
    table = pa.concat_tables(kept.tables())
    assert table.schema == kept.schema
    assert table.column_names[: len(SIDECAR)] == SIDECAR.names
    assert set(table["uid"].to_pylist()) == kept_samples(pool).keys()
    for row in table.to_pylist():
        assert row["caption_chars"] == len(row["caption"])
    assert next(kept.tables(["uid"])).column_names == ["uid"]
    assert kept.score_columns["caption_chars"][1] == "caption_chars"


def test_a_column_name_that_is_taken_gets_the_id_of_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = exported_pool(tmp_path / "pool")
    names = [*SIDECAR.names[:-1], "caption_chars"]
    monkeypatch.setattr(disk, "read_schema", lambda path: pa.schema([(n, "int8") for n in names]))
    kept = KeptRows(pool, "wide")
    (set_id,) = {document.id for document in kept.score_sets.values()}
    assert f"caption_chars@{set_id}" in kept.score_columns
    assert "caption_words" in kept.score_columns


def test_stale_views_and_scores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = exported_pool(tmp_path / "pool")
    with pytest.raises(ValueError, match="has no view 'wild'; did you mean 'wide'"):
        KeptRows(pool, "wild")
    before = KeptRows(pool, "wide")
    (name,) = before.score_sets
    change_shard(PoolLayout(pool).score_bundle(name, 3), 3, sidecar="f" * 64)
    with pytest.raises(ValueError, match="was scored for other rows"):
        list(before.tables())
    document = disk.read_json(PoolLayout(pool).score_set_json(name))
    old = {**document, "fingerprint": "0" * 12}
    disk.write_json(PoolLayout(pool).score_set_json(name), old, sealed=True)
    assert KeptRows(pool, "wide").score_sets == {}
    assert "of an older state of the pool" in caplog.text
    write_shard(pool, 6, list(enumerate(rows(3), start=48)))
    with pytest.raises(ValueError, match="changed while it was read"):
        before.check_unchanged()
    with pytest.raises(ValueError, match="is stale"):
        KeptRows(pool, "wide")


def test_a_view_whose_rows_were_all_purged(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    purge_rows(pool, {"uid": set(kept_samples(pool))})
    with pytest.raises(ValueError, match="keeps nothing: its rows were purged"):
        KeptRows(pool, "wide")
