"""Score columns of later shards end in bundles, whatever is killed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.aligned import AlignedFiles
from manifests.commits import read_commits
from manifests.layout import PoolLayout
from manifests.schema import FilterSpec
from pipeline.scoring.score_sets import read_score_set, scored_shards, write_bundle
from pipeline.scoring.scorer import score
from tests.support.folders import make_bundles_small
from tests.support.small_pool import make_pool, rows, set_name

SPEC = FilterSpec(name="caption")
NAME = set_name(SPEC)


def columns(pool: str) -> list[dict[str, Any]]:
    files = AlignedFiles.of_scores(pool, NAME)
    values: list[dict[str, Any]] = []
    for shard in read_commits(pool).names():
        values += files.read(shard)[0].to_pylist()
    return values


def test_columns_end_in_bundles_that_show_only_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_pool(tmp_path / "one", rows(15), per_shard=3)
    first = score(one, [SPEC], engine="inline")["sets"][NAME]
    assert disk.list_names(PoolLayout(one).score_set(NAME)) == [
        "bundle-00000.parquet", "scores.json",
    ]  # fmt: skip
    expected = columns(one)
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path / "pool", rows(15), per_shard=3)
    second = score(pool, [SPEC], engine="inline")["sets"][NAME]
    assert disk.list_names(PoolLayout(pool).score_set(NAME)) == [
        "bundle-00000.parquet", "bundle-00001.parquet", "bundle-00002.parquet", "scores.json",
    ]  # fmt: skip
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert columns(pool) == expected
    assert scored_shards(read_commits(pool), NAME).all()


def test_a_kill_while_a_bundle_is_made_costs_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path, rows(18), per_shard=3)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for target in ("publish", "remove"):
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.scoring.score_sets.disk." + target, killed)
            with pytest.raises(KeyboardInterrupt):
                score(pool, [SPEC], engine="inline")
        assert scored_shards(read_commits(pool), NAME).all()
        assert read_score_set(pool, NAME) is None
    assert score(pool, [SPEC], engine="inline")["failed"] == {}
    assert len(columns(pool)) == 18


def test_a_bundle_of_a_shard_without_columns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    with pytest.raises(ValueError, match="there are no columns of shard 4"):
        write_bundle(str(tmp_path), NAME, [4, 5])
