"""docs/extend.md: the example works through a recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from filters import user_file
from manifests import reader
from manifests.schema import Recipe
from pipeline.audit.explain import explain_lines, explain_row
from pipeline.scoring.score_sets import score_set_names
from pipeline.views.files import choose_views, column_lines, list_columns
from tests.support import commands
from tests.support.bundles import scores_of
from tests.support.small_pool import Row, make_pool

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "extend.md").read_text()
RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
filters:
  - caption
  - {mine: {my_filters.py:Sharpness: {step: 2}}}
views:
  sharp: [{edges: "mine >= 0 AND caption_words > 1"}]
"""


def example() -> str:
    (code,) = re.findall(r"```python\n# my_filters.py\n(.*?)```", DOCUMENT, re.S)
    return str(code)


def test_a_filter_of_a_user_in_fifteen_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(user_file, "_texts", {})
    code = example()
    inside = code[code.index("@dataclass") :]
    assert sum(1 for line in inside.splitlines() if line.strip()) <= 15
    (tmp_path / "my_filters.py").write_text(code)
    (tmp_path / "r.yaml").write_text(RECIPE)
    pool = make_pool(tmp_path / "pool", [Row(caption="a b") for _ in range(6)], per_shard=4)
    words = [pool, "--recipe", str(tmp_path / "r.yaml"), "--engine", "inline"]
    assert commands.score(words) == 0
    assert "mine@" in capsys.readouterr().out
    (name,) = [each for each in score_set_names(pool) if each.startswith("mine@")]
    values = scores_of(pool, name, 0)["mine"].to_pylist()
    assert values == [0, 0, 0, 0]  # the pictures of the pool have one colour each
    recipe = reader.read_manifest(tmp_path / "r.yaml", Recipe)
    assert choose_views(pool, recipe)["sharp"].kept == 6
    lines = "\n".join(column_lines(list_columns(pool)))
    assert "mean difference of neighbouring pixels" in lines
    told = "\n".join(explain_lines(explain_row(pool, "https://img0.example/0.jpg")))
    assert "mine" in told
    # Another option of one instance, by its name.
    assert commands.score([*words, "--filters", "mine", "--set", "mine.step=1"]) == 0
    assert len([each for each in score_set_names(pool) if each.startswith("mine@")]) == 2
