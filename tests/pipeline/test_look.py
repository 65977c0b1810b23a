"""pipeline/look.py as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import look
from tests.support import small_pool


def test_it_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(10))
    out = tmp_path / "page.html"
    assert look.main([pool, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"bytes": out.stat().st_size, "file": str(out)}
    assert "8 images in 1 shards" in out.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["{}"], "is it the folder of a pool"), (["{}/pool", "--view", "x"], "has no view 'x'")],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    small_pool.make_pool(tmp_path / "pool", small_pool.rows(5))
    words = [word.format(tmp_path) for word in words]
    assert look.main([*words, "--out", str(tmp_path / "page.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
