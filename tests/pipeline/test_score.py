"""`clipmill score` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clipmill.manifests import disk
from tests.support import commands
from tests.support.small_pool import make_pool, rows

RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
filters: [caption, picture]
"""


@pytest.fixture
def pool(tmp_path: Path) -> str:
    (tmp_path / "r.yaml").write_text(RECIPE)
    return make_pool(tmp_path / "pool", rows(10))


def test_the_filters_of_a_recipe(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.score([pool, "--recipe", str(tmp_path / "r.yaml"), "--engine", "inline"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("@")[0] for line in lines] == ["caption", "picture"]
    assert all("8 of 8 stored rows scored" in line for line in lines)


def test_filters_without_a_recipe_and_one_json_line(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [pool, "--filters", "caption", "--engine", "inline", "--json"]
    assert commands.score(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == {}
    assert [state["scored"] for state in report["sets"].values()] == [8]


def test_an_option_from_the_command_line(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [pool, "--filters", "clip_score", "--engine", "inline"]
    for option in ("model=ViT-B-32", "pretrained=x"):
        words += ["--set", f"clip_score.{option}"]
    assert commands.score([*words, "--set", "clip_score.batch_size=0"]) == 2
    assert "batch_size is 0" in capsys.readouterr().err
    assert commands.score([*words, "--set", "clip_score.pretraind=x"]) == 2
    assert "did you mean 'pretrained'" in capsys.readouterr().err


def test_a_shard_without_its_tar_ends_with_3(
    pool: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    disk.remove(disk.join(pool, "shards", "00000.tar"))
    assert commands.score([pool, "--filters", "picture", "--engine", "inline"]) == 3
    assert "error: shard 00000 was not scored: FileNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--filters", "captoin"], "did you mean 'caption'"),
        ([], "there is no filter to score by"),
        (["--filters", "caption", "--scale", "debug"], "--scale picks a block of a recipe"),
        (["--recipe", "nowhere.yaml"], "nowhere.yaml does not exist"),
    ],
)
def test_mistakes_are_one_line_and_2(
    pool: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.score([pool, *words, "--engine", "inline"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
