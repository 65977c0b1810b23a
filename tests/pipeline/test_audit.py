"""`clipmill audit` as a command: statuses, one line for a mistake, JSON at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.small_pool import Row, make_pool


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return make_pool(tmp_path, [Row(caption="a cat"), Row(caption="a dog", reason="http_4xx")])


def test_counts_end_with_one_json_line(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = commands.audit([pool, "--json"])
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["fetch"]["attempted"] == 2
    assert counts["fetch"]["reasons"] == {"http_4xx": 1}
    assert status == (0 if counts["complete"] and not counts["problems"] else 3)


def test_one_row_is_explained_by_its_key(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.audit(["explain", pool, "000000001"]) == 0
    assert "http_4xx" in capsys.readouterr().out


@pytest.mark.parametrize("row", ["none.jpg", "f" * 32])
def test_a_row_that_is_not_there_is_a_mistake(
    pool: str, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.audit(["explain", pool, row]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_a_folder_that_is_no_pool_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.audit([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "POOL", ""], "ROW is empty; give a uid"),
        (["explain", "POOL", "x", "--engine", "ray"], "Unknown option: --engine"),
        (["POOL", "--engine", "inline"], "Unknown option: --engine"),
        (["lock", "POOL", ""], "parquet"),
    ],
)
def test_no_option_is_ignored(
    pool: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.audit([pool if word == "POOL" else word for word in words]) == 2
    assert message in capsys.readouterr().err
