#!/usr/bin/env python3
"""Measures tests by mutants: small changes of a kernel that its tests should notice.

Comparisons, arithmetic, boolean operators, numbers, conditions and returned values of a module are
changed one at a time, in a copy of the checkout, and the quick tests of that module run against
each change until one fails. A mutant that lives is a line that only a slow test checks or none, or
a change without effect (a buffer's size, a cache): somebody reads it. The seed fixes the sample.

example: python benchmarks/mutation.py --kernels order loss --sample 40 --out mutation.json
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks/results/mutation.json"
# Imported once, before any mutant: each run of tests is a fork of this process.
HEAVY = ("pytest", "hypothesis", "pyarrow.parquet", "duckdb", "torch", "scipy.stats", "aiohttp")
# The module of a kernel, and its tests, the quickest first.
KERNELS = {
    "order": ("train/mixture/order.py", "tests/train/mixture"),
    "wheel": ("train/mixture/schedule.py", "tests/train/mixture"),
    "loss": ("train/step/loss.py", "tests/train/step"),
    "comparison": ("verdict/stats/comparison.py", "tests/verdict/stats"),
    "model": ("verdict/stats/model.py", "tests/verdict/stats"),
    "rules": ("pipeline/views/rules.py", "tests/pipeline/views"),
    "tars": ("pipeline/pool/tars.py", "tests/pipeline/pool"),
    "guard": (
        "pipeline/fetch/guard.py",
        "tests/pipeline/fetch/test_guard.py tests/pipeline/fetch/test_resolver.py",
    ),
    "robots": (
        "pipeline/fetch/sites.py",
        "tests/pipeline/fetch/test_sites.py tests/pipeline/fetch/test_site_files.py",
    ),
    "urls": (
        "pipeline/archives/urls.py",
        "tests/pipeline/archives/test_urls.py tests/pipeline/archives/test_row_counts.py",
    ),
    "wat": ("pipeline/archives/wat.py", "tests/pipeline/archives"),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
SETTINGS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not ray",
    "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one node of a parsed module."""

    line: int
    change: str  # what the first line of the node is, and becomes
    node: ast.AST
    fields: dict[str, Any]


def bodies(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs: those of annotations, decorators and `assert` are left out."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name, field in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                children = field if isinstance(field, list) else [field]
                todo += [
                    child
                    for child in children
                    if isinstance(child, ast.AST) and not isinstance(child, ast.Assert)
                ]


def changes(node: ast.AST) -> Iterator[dict[str, Any]]:
    """The fields that a mutant of one node has in place of its own."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield {"ops": [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]}
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        is_text = any(
            isinstance(child, ast.Constant | ast.JoinedStr)
            and not isinstance(getattr(child, "value", ""), int | float)
            for child in ast.iter_child_nodes(node)
        )
        if not is_text:  # "a" + "b" cannot be subtracted: every test would notice
            yield {"op": ARITHMETIC[type(node.op)]()}
    elif isinstance(node, ast.BoolOp):
        yield {"op": ast.Or() if isinstance(node.op, ast.And) else ast.And()}
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield {"value": not node.value}
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield {"value": node.value + 1}
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield {"test": ast.UnaryOp(ast.Not(), node.test)}
    elif isinstance(node, ast.Return) and node.value is not None:
        yield {"value": ast.Constant(None)}


def first_line(node: ast.AST, fields: dict[str, Any]) -> str:
    """The text of a node with other fields, without the statements in it."""
    shown = copy.copy(node)
    for name, value in fields.items():
        setattr(shown, name, value)
    if isinstance(shown, ast.If | ast.While):
        shown.body, shown.orelse = [ast.Pass()], []
    return ast.unparse(ast.fix_missing_locations(shown)).splitlines()[0]


def mutants(tree: ast.Module) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    made = []
    for node in bodies(tree):
        for fields in changes(node):
            change = f"{first_line(node, {})}  ->  {first_line(node, fields)}"
            made.append(Mutant(getattr(node, "lineno", 0), change, node, fields))
    return sorted(made, key=lambda mutant: (mutant.line, mutant.change))


def changed_source(tree: ast.Module, mutant: Mutant) -> str:
    """The text of the module with the change. The tree stays as it is."""
    own = {name: getattr(mutant.node, name) for name in mutant.fields}
    for name, value in mutant.fields.items():
        setattr(mutant.node, name, value)
    text = ast.unparse(ast.fix_missing_locations(tree))
    for name, value in own.items():
        setattr(mutant.node, name, value)
    return text


def checkout(folder: Path) -> None:
    """A copy of the tracked and new files of the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def start(folder: Path, tests: str) -> int:
    """The process id of a fork that runs tests in a copy. Its exit status is pytest's."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.chdir(folder)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    status = 1
    try:
        status = int(importlib.import_module("pytest").main([*SETTINGS, *tests.split()]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, seconds: float) -> str:
    """`killed`, `survived`, or `timeout` after so many seconds; the child and its children end."""
    end = time.monotonic() + seconds
    status = None
    while status is None and time.monotonic() < end:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return "timeout"
    return "survived" if status == 0 else "killed"


def measure(kernel: str, sample: int, seed: int, folder: Path) -> dict[str, Any]:
    """The row of one kernel: how many mutants there are, were tried and killed, and who lives."""
    module, tests = KERNELS[kernel]
    source = (ROOT / module).read_text()
    tree = ast.parse(source)
    every = mutants(tree)
    drawn = random.Random(f"{seed} {module}").sample(every, min(sample, len(every)))
    begun = time.monotonic()
    if wait(start(folder, tests), 600) != "survived":
        raise ValueError(f"{tests} fails without a mutant:\n{(folder / 'output').read_text()}")
    limit = 10 + 5 * (time.monotonic() - begun)
    survivors = []
    for mutant in sorted(drawn, key=lambda one: (one.line, one.change)):
        (folder / module).write_text(changed_source(tree, mutant))
        if wait(start(folder, tests), limit) == "survived":
            survivors.append(f"{mutant.line}: {mutant.change}")
    (folder / module).write_text(source)
    command = f"python benchmarks/mutation.py --kernels {kernel} --sample {sample} --seed {seed}"
    return {
        "command": command,
        "module": module,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "tests": tests,
        "mutants": len(every),
        "tried": len(drawn),
        "killed": len(drawn) - len(survivors),
        "survivors": survivors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kernels", nargs="+", default=[*KERNELS], choices=[*KERNELS])
    parser.add_argument("--sample", type=int, default=40, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    # a module in a copy is compiled in each run: a second change within its file's second of
    # modification would be taken for the first
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.path = [
        path for path in sys.path if Path(path or ".").resolve() not in (ROOT, ROOT / "benchmarks")
    ]
    for name in HEAVY:
        importlib.import_module(name)
    report = json.loads(args.out.read_text()) if args.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        checkout(Path(folder))
        for kernel in args.kernels:
            row = measure(kernel, args.sample, args.seed, Path(folder))
            print(f"{kernel}: {row['killed']} of {row['tried']} killed", flush=True)
            report[kernel] = row  # those of other kernels stay
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
