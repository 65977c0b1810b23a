"""A pool of the first form becomes one of the second: every row stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.commits import read_commits, read_index_document
from manifests.schema import FilterSpec, Recipe, Rule, Source, View
from pipeline.audit.integrity import verify
from pipeline.audit.repair import migrate, reindex
from pipeline.pool.lease import LeaseLost
from pipeline.scoring.scorer import score
from pipeline.views.files import choose_views
from tests.support.folders import make_folders_small
from tests.support.small_pool import make_pool, rows
from train.data.view_rows import read_columns

VIEW = View(name="long", rules=(Rule(name="words", where="caption_words > 3"),))
FILTERS = (FilterSpec(name="caption"),)
RECIPE = Recipe(
    name="r", source=Source(kind="files", paths=("x.csv",)), filters=FILTERS, views=(VIEW,)
)


def first_form(folder: Path) -> str:
    """Eight shards in one folder, with scores and a view."""
    pool = make_pool(folder, rows(24), per_shard=3)
    score(pool, FILTERS, engine="inline")
    choose_views(pool, RECIPE)
    return pool


def content(pool: str) -> list[Any]:
    shards = read_columns(pool, "long", ["uid", "caption_words"])
    return [(s.shard, s.columns.to_pylist(), s.kept.tolist(), s.rule.to_pylist()) for s in shards]


def test_every_row_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = first_form(tmp_path)
    before, fingerprint = content(pool), read_commits(pool).fingerprint
    make_folders_small(monkeypatch)
    with pytest.raises(ValueError, match=r"keeps shard 0000. in shards/.*clipmill audit migrate "):
        read_commits(pool)
    assert migrate(pool) == 5 * 3 + 5 + 5
    assert len(reindex(pool)) == 8
    assert content(pool) == before
    assert read_commits(pool).fingerprint == fingerprint
    assert verify(pool) == []
    assert migrate(pool) == 0
    assert choose_views(pool, RECIPE)["long"].fingerprint == fingerprint
    assert len(disk.list_names(tmp_path / "shards")) == 9 + 3


def test_nothing_is_moved_after_the_lease_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = first_form(tmp_path)
    make_folders_small(monkeypatch)
    monkeypatch.setattr("pipeline.audit.repair.MOVERS", 1)
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) > 2:
            raise LeaseLost("another command has the lease")

    with pytest.raises(LeaseLost):
        migrate(pool, check)
    assert len(list((tmp_path / "shards").rglob("*_stats.json"))) == 8
    assert len(list((tmp_path / "shards").glob("*/*_stats.json"))) == 2


def test_a_kill_in_between_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = first_form(tmp_path)
    before = content(pool)
    make_folders_small(monkeypatch)
    monkeypatch.setattr("pipeline.audit.repair.MOVERS", 1)
    replace = Path.replace
    moves: list[Path] = []

    def deadly(path: Path, target: Path) -> Path:
        moves.append(path)
        if len(moves) % 4 == 0:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", deadly)
        for _ in range(100):
            try:
                migrate(pool)
            except KeyboardInterrupt:
                continue
            break
    reindex(pool)
    assert len(moves) > 20
    assert content(pool) == before
    assert verify(pool) == []


def test_what_is_no_pool_is_refused(tmp_path: Path) -> None:
    for command in (migrate, reindex):
        with pytest.raises(ValueError, match="has no shards/; is it the folder of a pool"):
            command(str(tmp_path))
    assert read_index_document(str(tmp_path)) is None
