"""Mutants of kernels: what is changed, the table of kernels, and the page of the result."""

from __future__ import annotations

import ast
import hashlib
import json
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import mutation

MODULE = """
LIMIT = 3


def larger(a: int = 0, *, strict: bool = True) -> int | None:
    assert a != 7
    if a > LIMIT and strict:
        return a * 2
    return None
"""


def test_each_place_that_runs_is_changed_once_and_the_change_is_shown() -> None:
    made = mutation.mutants(ast.parse(MODULE))
    assert Counter(mutant.shown for mutant in made) == {
        "LIMIT = 3  ->  LIMIT = 4": 1,
        "def larger(a: int=0, *, strict: bool=True) -> int | None:  ->  "
        "def larger(a: int=1, *, strict: bool=True) -> int | None:": 1,
        "def larger(a: int=0, *, strict: bool=True) -> int | None:  ->  "
        "def larger(a: int=0, *, strict: bool=False) -> int | None:": 1,
        "if a > LIMIT and strict:  ->  if not (a > LIMIT and strict):": 1,
        "if a > LIMIT and strict:  ->  if a > LIMIT or strict:": 1,
        "if a > LIMIT and strict:  ->  if a >= LIMIT and strict:": 1,
        "return a * 2  ->  return None": 1,
        "return a * 2  ->  return a // 2": 1,
        "return a * 2  ->  return a * 3": 1,
        "return None  ->  return 0": 1,
    }
    assert [mutant.line for mutant in made] == sorted(mutant.line for mutant in made)


def test_a_changed_module_is_another_one_and_the_tree_stays() -> None:
    tree = ast.parse(MODULE)
    whole = ast.unparse(tree)
    for mutant in mutation.mutants(tree):
        assert mutation.changed_source(tree, mutant.node, mutant.fields) != whole
        assert ast.unparse(tree) == whole


@pytest.mark.parametrize("kernel", mutation.KERNELS)
def test_the_modules_and_tests_of_a_kernel_are_there(kernel: str) -> None:
    module, tests = mutation.KERNELS[kernel]
    assert (mutation.ROOT / module).is_file()
    files = mutation.files_of(tests, mutation.ROOT)
    assert len(files) == len(set(files)) >= 2
    assert files[0].startswith(tests.split("*")[0].split(" ")[0])


def test_a_pattern_without_tests_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no tests/nowhere/test_\*\.py"):
        mutation.files_of("tests/nowhere/test_*.py", mutation.ROOT)


def test_a_reason_is_about_one_place_that_is_still_there() -> None:
    """A reason that fits no change, or two, is of an older module."""
    for kernel, reasons in json.loads(mutation.REASONS.read_text()).items():
        tree = ast.parse((mutation.ROOT / mutation.KERNELS[kernel][0]).read_text())
        shown = Counter(mutant.shown for mutant in mutation.mutants(tree))
        assert {change: shown[change] for change in reasons} == dict.fromkeys(reasons, 1), kernel


def test_survivors_are_tried_again_for_the_same_module_and_sample_alone(tmp_path: Path) -> None:
    source = (mutation.ROOT / mutation.KERNELS["loss"][0]).read_bytes()
    row = {
        "command": mutation.command_of("loss", 40, 0),
        "sha256": hashlib.sha256(source).hexdigest(),
        "survivors": ["1: a  ->  b"],
    }
    args = Namespace(sample=40, seed=0, out=tmp_path / "mutation.json")
    assert mutation.lived_before(row, "loss", args) == {"1: a  ->  b"}
    for other in (None, row | {"sha256": "0"}, row | {"command": "another sample"}):
        with pytest.raises(ValueError, match="no result of this sample of loss"):
            mutation.lived_before(other, "loss", args)


def test_the_page_has_the_table_of_the_result() -> None:
    report = json.loads(mutation.RESULT.read_text())
    for row in report.values():
        outcomes = row["killed"] + len(row["survivors"]) + len(row["without_effect"])
        assert row["tried"] == outcomes <= row["mutants"]
    text = mutation.PAGE.read_text()
    assert mutation.page_with(text, report) == text, "run benchmarks/mutation.py --table"
    with pytest.raises(ValueError, match="has no"):
        mutation.page_with("a page without a place", report)
