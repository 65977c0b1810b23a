"""pipeline/filter.py as a person calls it."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from manifests import disk
from manifests.schema import FilterSpec
from pipeline import filter as entry
from pipeline.pool import hold_lease, lease
from pipeline.scoring import scorer
from tests.support.small_pool import make_pool, rows

RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
filters: [caption]
views:
  raw: []
  long: [{words: caption_words > 2}]
scales:
  strict: {views: {long: [{words: caption_words > 5}]}}
"""


@pytest.fixture
def pool(tmp_path: Path) -> str:
    (tmp_path / "r.yaml").write_text(RECIPE)
    made = make_pool(tmp_path / "pool", rows(10))
    scorer.score(made, [FilterSpec(name="caption")], engine="inline")
    return made


def test_all_views_and_their_funnels(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([pool, "--recipe", str(tmp_path / "r.yaml")]) == 0
    output = capsys.readouterr().out
    assert "view raw: 8 of 10 rows kept" in output
    assert "view long: 4 of 10 rows kept" in output
    assert [line.split()[:2] for line in output.splitlines() if "words" in line] == [["words", "4"]]


def test_one_view_at_a_scale_as_json(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        pool,
        "--recipe",
        str(tmp_path / "r.yaml"),
        "--views",
        "long",
        "--scale",
        "strict",
        "--json",
    ]
    assert entry.main(words) == 0
    documents = json.loads(capsys.readouterr().out)
    assert {name: document["kept"] for name, document in documents.items()} == {"long": 2}


def test_the_columns_that_a_rule_may_read(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([pool, "--columns"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sidecar:"
    assert any(line.split()[:2] == ["caption_words", "int32"] for line in lines)
    assert entry.main([pool, "--columns", "--json"]) == 0
    columns = {column["name"]: column for column in json.loads(capsys.readouterr().out)}
    assert columns["aspect"]["source"] == "derived"
    assert columns["caption_words"]["source"].startswith("caption@")


def test_a_random_view(pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([pool, "--recipe", str(tmp_path / "r.yaml")]) == 0
    assert entry.main([pool, "--random-like", "long", "--seed", "3", "4"]) == 0
    assert "view random_like_long.seed-4: 4 of 10 rows kept" in capsys.readouterr().out
    document = disk.read_json(disk.join(pool, "views", "random_like_long.seed-3.json"))
    assert document["rules"][0]["seed"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "{}", "--views", "lang"], "has no view 'lang'"),
        (["--recipe", "{}", "--scale", "huge"], "has no scale 'huge'; it has strict"),
        (["--recipe", "{}", "--seed", "1"], "--seed is for --random-like"),
        (["--random-like", "long", "--views", "raw"], "--views and --scale are for --recipe"),
        (["--random-like", "long"], "view 'long' is not in"),
        (["--columns", "--views", "raw"], "--columns takes no --views"),
    ],
)
def test_mistakes_are_one_line_and_2(
    pool: str, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        entry.main([pool, *(word.replace("{}", str(tmp_path / "r.yaml")) for word in words)]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_recipe_or_a_random_view_and_not_neither(pool: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        entry.main([pool])
    assert stopped.value.code == 2


def test_it_waits_for_another_command_and_then_gives_up(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [pool, "--recipe", str(tmp_path / "r.yaml")]
    monkeypatch.setattr(lease, "POLL_S", 0.02)
    monkeypatch.setattr(entry, "WAIT_S", 0.1)
    with hold_lease(pool):
        assert entry.main(words) == 2
        assert f"error: {pool} is being written by `" in capsys.readouterr().err
        assert entry.main([pool, "--columns"]) == 0  # reading needs no lease
    monkeypatch.setattr(entry, "WAIT_S", 30.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_lease(pool))
        timer = threading.Timer(0.3, stack.pop_all().close)
        timer.start()
        assert entry.main(words) == 0
        timer.join()
