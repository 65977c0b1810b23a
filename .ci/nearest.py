#!/usr/bin/env python3
"""Prints the test files that what changed since the last commit may concern, nearest first.

A test file that imports a changed module is at distance 1, one that imports an importer at 2, and
so on; a name of a module in a string counts as an import. Those of the whole repository,
tests/*.py, come last, whatever changed. Nothing is printed, and so pytest runs all, where nothing
has changed, where the distance is "all", and where the change is of what every test uses.

example: python .ci/nearest.py 2
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALL_USE = {"pyproject.toml", "tests/conftest.py"}
OWN = ("tests", "benchmarks", "clipmill")  # the other folders are imported as clipmill.FOLDER


def listed(*words: str) -> list[str]:
    """Files that git names and that are there."""
    out = subprocess.check_output(["git", *words, "-z"], cwd=ROOT, text=True)
    return [path for path in out.split("\0") if path and (ROOT / path).is_file()]


def module_of(path: str) -> str:
    """The dotted name under which a Python file of the repository is imported."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] in OWN else ["clipmill", *parts])


def named_in(path: str) -> set[str]:
    """The dotted names that a file imports, anywhere in it, or has as strings."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


@functools.cache
def importers() -> dict[str, set[str]]:
    """The files that import a file, of all files that some import."""
    modules = {
        module_of(path): path for path in listed("ls-files", "-co", "--exclude-standard", "*.py")
    }
    importing = defaultdict(set)
    for path in modules.values():
        for name in named_in(path) & modules.keys():
            importing[modules[name]].add(path)
    return dict(importing)


def test_files(changed: list[str], most: int) -> list[str]:
    """Test files at a distance of at most `most` from the changed files, nearest first."""
    reached, wave = list(changed), changed
    for _ in range(most):
        next_ones = set[str]().union(*(importers().get(path, ()) for path in wave))
        wave = sorted(next_ones - set(reached))
        reached += wave
    everywhere = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/test_*.py"))
    tests = [path for path in reached if Path(path).name.startswith("test_")]
    return [*tests, *(path for path in everywhere if path not in tests)]


def main(distance: str) -> int:
    changed = listed("diff", "--name-only", "HEAD")
    changed += listed("ls-files", "--others", "--exclude-standard")
    if changed and distance != "all" and not ALL_USE & set(changed):
        tests = test_files(changed, int(distance))
        print("\n".join(tests))
        print(
            f"{len(changed)} files have changed: {len(tests)} test files within {distance} imports "
            "of them; make quick NEAR=all runs all",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
