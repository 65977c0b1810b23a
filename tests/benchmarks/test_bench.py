"""`make bench` without its peers: every ending of a photograph's name, and a stage that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.peers import pool_stages, training_stages, web_stages
from benchmarks.peers.environments import Environment
from benchmarks.peers.rows import read_stage, row_of
from benchmarks.peers.web_stages import Context, Measured
from benchmarks.photographs import paths_of
from tests.manifests.test_phash import photograph

NAMES = ("a.JPEG", "b.jpg", "c.JPG", "below/d.jpeg", "e.jfif")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    (folder / "below").mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        photograph(seed).resize((240, 180)).save(folder / name, "JPEG")
    (folder / "notes.txt").write_text("no photograph")
    (folder / "f.jpg").mkdir()
    return folder


def test_photographs_are_found_by_any_ending_of_a_jpeg(photographs: Path) -> None:
    assert [path.relative_to(photographs).as_posix() for path in paths_of(photographs)] == [
        "a.JPEG", "b.jpg", "below/d.jpeg", "c.JPG", "e.jfif",
    ]  # fmt: skip


def test_a_folder_without_photographs_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_text("")
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--photographs", str(tmp_path), "--results", str(tmp_path)])
    assert f"{tmp_path} has no JPEG" in capsys.readouterr().err


def test_a_stage_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Context) -> Measured:
        raise AttributeError("a name that is gone")

    def whole(_: Context) -> Measured:
        return [row_of("a", "b", 1.0, "c", [1.0], [2.0], items=1)], {}

    monkeypatch.setattr(bench, "STAGES", {"crawl": broken, "choose": whole})
    words = ["--stages", "crawl", "choose", "--results", str(tmp_path)]
    assert bench.main(words) == 3
    assert "crawl was not measured: a name that is gone" in capsys.readouterr().err
    assert read_stage(tmp_path / "choose.json").rows[0].ratio == 0.5
    assert not (tmp_path / "crawl.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["loader", "scoring", "dedup"])
def test_stages_that_read_photographs(
    stage: str, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> Environment:
        return Environment(name=name, python=None, version=None, reason="no network")

    for module in (pool_stages, training_stages, web_stages):
        monkeypatch.setattr(module, "environment_of", nowhere)
    words = ["--stages", stage, "--photographs", str(photographs), "--results", str(tmp_path)]
    assert bench.main([*words, "--share", "0.001", "--turns", "1"]) == 0
    results = read_stage(tmp_path / f"{stage}.json")
    assert results.images == "5 photographs"
    assert "--photographs FOLDER --share 0.001 --turns 1" in results.command
    for row in results.rows:
        assert row.ours > 0
        assert row.peer is not None or row.missing == "no network"
