"""The code of the page "From Python": what needs no training runs as it stands; the names and
keywords of the rest are those of the library.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
from pathlib import Path

import pytest

import clipmill
from tests.support.exported import exported_pool

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/from_python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
BEFORE_LOOPS = len(re.findall(r"```python\n", PAGE.partition("## You have a training loop")[0]))


def test_the_blocks_for_notebooks_and_pools_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*web"))
    pool = exported_pool(tmp_path / "out/pool")
    names: dict[str, object] = {}
    for block in BLOCKS[:BEFORE_LOOPS]:  # those of loops need a pool of 256 rows and more
        exec(compile(block, "docs/from_python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "+12.1 [+10.6, +13.6]  better" in printed
    assert repr(clipmill.open_pool("out/pool")) in printed
    assert (tmp_path / "out/found/ratios.csv").exists()
    assert Path(pool, "shards").exists()


def test_the_keywords_of_every_call_are_those_of_the_library() -> None:
    calls = [node for block in BLOCKS for node in ast.walk(ast.parse(block))]
    seen = set()
    for call in calls:
        is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if is_call and ast.unparse(call.func).startswith("clipmill."):
            function = getattr(clipmill, call.func.attr)
            keywords = {keyword.arg: None for keyword in call.keywords}
            inspect.signature(function).bind(*call.args, **keywords)
            seen.add(call.func.attr)
    functions = {name for name in clipmill.__all__ if name[0].islower()}
    assert functions - seen == {"compare"}  # of two folders; it is named in a sentence
    assert "`clipmill.compare`" in PAGE


def test_every_name_of_the_library_is_in_its_reference() -> None:
    reference = (ROOT / "docs/reference/library.md").read_text()
    named = re.findall(r"\.\. auto(?:function|class):: clipmill\.(\w+)", reference)
    assert sorted(named) == sorted(clipmill.__all__)
