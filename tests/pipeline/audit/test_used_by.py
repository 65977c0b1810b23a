"""Runs, ablations and reports that drew from a view are found by their documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from pipeline.audit.purge import find_users


def run(folder: Path, pool: str, view: str, name: str = "blend.json") -> None:
    blend = {"pools": {"web": pool}, "views": {f"web/{view}": 1.0}}
    disk.write_json(folder / name, blend if name == "blend.json" else {"blend": blend})


def test_runs_their_ablations_and_reports(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    run(tmp_path / "study/runs/a/seed-0", pool, "raw")
    run(tmp_path / "study/runs/a/seed-1", pool, "other")
    run(tmp_path / "single", pool, "raw", "run.json")
    run(tmp_path / "elsewhere", "/other/place", "raw")
    disk.write_json(tmp_path / "study/ablation.json", {})
    (tmp_path / "study/report.html").write_text("")
    expected = {
        str(tmp_path / "study/runs/a/seed-0"),
        str(tmp_path / "study"),
        str(tmp_path / "study/report.html"),
        str(tmp_path / "single"),
    }
    assert set(find_users(pool, ["raw"], [])) == expected
    assert set(find_users(pool, ["raw"], [str(tmp_path / "single")])) == {str(tmp_path / "single")}
    assert list(find_users(pool, [], [])) == []
    assert list(find_users(pool, ["raw"], [str(tmp_path / "none")])) == []


def test_pools_hidden_folders_and_damaged_documents_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / "pool"
    run(pool / "shards/00003/deep", str(pool), "raw")
    run(tmp_path / ".hidden", str(pool), "raw")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    disk.write_json(tmp_path / "list/run.json", [1])
    assert list(find_users(str(pool), ["raw"], [])) == []
