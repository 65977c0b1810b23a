#!/usr/bin/env python3
"""Measures tests by mutants: small changes of a kernel that its tests should notice.

Comparisons, arithmetic, boolean operators, numbers, conditions and returned values of a module are
changed one at a time, in a copy of the checkout, and the quick tests of that module run against
each change until one fails. A mutant that lives is a line that only a slow test checks or none, or
a change without effect (a buffer's size, a cache): somebody reads it, and writes a test, or a
reason into mutation_reasons.json. The seed fixes the sample. --table makes the table of
CONTRIBUTING.md from the result.

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
REASONS = ROOT / "benchmarks/mutation_reasons.json"  # kernel: {what `Mutant.shown` is: why}
PAGE = ROOT / "CONTRIBUTING.md"
START, END = "<!-- written by benchmarks/mutation.py --table -->", "<!-- end -->"
# Imported once, before any mutant: each run of tests is a fork of this process.
HEAVY = ("pytest", "hypothesis", "pyarrow.parquet", "duckdb", "torch", "scipy.stats", "aiohttp")
# The module of a kernel, and patterns of the files of its tests: those that notice most come first.
KERNELS = {
    "order": (
        "train/mixture/order.py",
        "tests/train/mixture/test_order.py tests/train/mixture/test_*.py",
    ),
    "wheel": (
        "train/mixture/schedule.py",
        "tests/train/mixture/test_wheel.py tests/train/mixture/test_*.py",
    ),
    "loss": (
        "train/step/loss.py",
        "tests/train/step/test_loss.py tests/train/step/test_*.py",
    ),
    "comparison": (
        "verdict/stats/comparison.py",
        "tests/verdict/stats/test_comparison.py tests/verdict/stats/test_*.py",
    ),
    "model": (
        "verdict/stats/model.py",
        "tests/verdict/stats/test_model.py tests/verdict/stats/test_*.py",
    ),
    "rules": (
        "pipeline/views/rules.py",
        "tests/pipeline/views/test_rule_outcomes.py tests/pipeline/views/test_*.py",
    ),
    "tars": (
        "pipeline/pool/tars.py",
        "tests/pipeline/pool/test_tars.py tests/pipeline/pool/test_*.py",
    ),
    "guard": (
        "pipeline/fetch/guard.py",
        "tests/pipeline/fetch/test_guard.py tests/pipeline/fetch/test_resolver.py",
    ),
    "robots": (
        "pipeline/fetch/sites.py",
        "tests/pipeline/fetch/test_sites.py tests/pipeline/fetch/test_site_files.py "
        "tests/field/test_consent.py tests/pipeline/fetch/test_fetcher.py",
    ),
    "urls": (
        "pipeline/archives/urls.py",
        "tests/pipeline/archives/test_urls.py tests/pipeline/archives/test_row_counts.py",
    ),
    "wat": (
        "pipeline/archives/wat.py",
        "tests/pipeline/archives/test_wat*.py tests/pipeline/archives/test_*.py",
    ),
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
    shown: str  # the same of the first line of its statement that is another one
    node: ast.AST
    fields: dict[str, Any]


def bodies(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every node that runs, and its statement: those of annotations, decorators and `assert` are
    left out.
    """
    todo: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while todo:
        node, statement = todo.pop()
        yield node, statement
        for name, field in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                children = field if isinstance(field, list) else [field]
                todo += [
                    (child, child if isinstance(child, ast.stmt) else statement)
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
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        yield {"value": ast.Constant(0 if is_none else None)}


def first_line(node: ast.AST, fields: dict[str, Any]) -> str:
    """The text of a node with other fields, without the statements in it."""
    shown = copy.copy(node)
    for name, value in fields.items():
        setattr(shown, name, value)
    if isinstance(shown, ast.If | ast.While):
        shown.body, shown.orelse = [ast.Pass()], []
    return ast.unparse(ast.fix_missing_locations(shown)).splitlines()[0]


def differing(old: str, new: str) -> str:
    """Two lines from 60 characters before their first difference to 60 after it."""
    pairs = enumerate(zip(old, new, strict=False))
    first = next((place for place, pair in pairs if pair[0] != pair[1]), 0)
    start = max(0, first - 60)
    return "  ->  ".join(line[start : start + 120].strip() for line in (old, new))


def mutants(tree: ast.Module) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    made = []
    for node, statement in bodies(tree):
        for fields in changes(node):
            change = f"{first_line(node, {})}  ->  {first_line(node, fields)}"
            lines = zip(
                ast.unparse(statement).splitlines(),
                changed_source(statement, node, fields).splitlines(),
                strict=False,
            )
            shown = next(differing(old.strip(), new.strip()) for old, new in lines if old != new)
            made.append(Mutant(getattr(node, "lineno", 0), change, shown, node, fields))
    return sorted(made, key=lambda mutant: (mutant.line, mutant.change))


def changed_source(tree: ast.AST, node: ast.AST, fields: dict[str, Any]) -> str:
    """The text of a tree with other fields of one node. The tree stays as it is."""
    own = {name: getattr(node, name) for name in fields}
    for name, value in fields.items():
        setattr(node, name, value)
    text = ast.unparse(ast.fix_missing_locations(tree))
    for name, value in own.items():
        setattr(node, name, value)
    return text


def checkout(folder: Path) -> None:
    """A copy of the tracked and new files of the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def files_of(tests: str, folder: Path) -> list[str]:
    """The files of a table entry, in its order, each once: pytest sorts those of a folder.

    ValueError: a pattern names no file.
    """
    files: list[str] = []
    for pattern in tests.split():
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
        if not paths:
            raise ValueError(f"there is no {pattern}: the table of kernels is older than the tests")
        files += [path for path in paths if path not in files]
    return files


def start(folder: Path, tests: str, *, compiles: bool = False) -> int:
    """The process id of a fork that runs tests in a copy. Its exit status is pytest's. What one
    `compiles` the others load: half of the time of a mutant that is killed.
    """
    files = files_of(tests, folder)
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
    sys.dont_write_bytecode = not compiles
    status = 1
    try:
        status = int(importlib.import_module("pytest").main([*SETTINGS, *files]))
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


def measure(
    kernel: str, sample: int, seed: int, folder: Path, lived: set[str] | None = None
) -> dict[str, Any]:
    """The row of one kernel: how many mutants there are, were tried and killed, and who lives. With
    `lived`, the survivors of an earlier run of the same sample, the others count as killed.
    """
    module, tests = KERNELS[kernel]
    source = (ROOT / module).read_text()
    tree = ast.parse(source)
    every = mutants(tree)
    drawn = random.Random(f"{seed} {module}").sample(every, min(sample, len(every)))
    begun = time.monotonic()
    if wait(start(folder, tests, compiles=True), 600) != "survived":
        raise ValueError(f"{tests} fails without a mutant:\n{(folder / 'output').read_text()}")
    limit = 10 + 5 * (time.monotonic() - begun)
    reasons = json.loads(REASONS.read_text()).get(kernel, {})
    survivors, without_effect = [], []
    for mutant in sorted(drawn, key=lambda one: (one.line, one.change)):
        if mutant.shown in reasons:
            without_effect.append(f"{mutant.line}: {mutant.shown}: {reasons[mutant.shown]}")
            continue
        if lived is not None and f"{mutant.line}: {mutant.shown}" not in lived:
            continue
        (folder / module).write_text(changed_source(tree, mutant.node, mutant.fields))
        if wait(start(folder, tests), limit) == "survived":
            survivors.append(f"{mutant.line}: {mutant.shown}")
            print(f"{kernel}: lives: {survivors[-1]}", flush=True)
    (folder / module).write_text(source)
    return {
        "command": command_of(kernel, sample, seed),
        "module": module,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "tests": tests,
        "mutants": len(every),
        "tried": len(drawn),
        "killed": len(drawn) - len(survivors) - len(without_effect),
        "without_effect": without_effect,
        "survivors": survivors,
    }


def command_of(kernel: str, sample: int, seed: int) -> str:
    """What measures one kernel."""
    return f"python benchmarks/mutation.py --kernels {kernel} --sample {sample} --seed {seed}"


def lived_before(row: dict[str, Any] | None, kernel: str, args: argparse.Namespace) -> set[str]:
    """The survivors that a result names. ValueError: it is of another module or sample."""
    source = (ROOT / KERNELS[kernel][0]).read_bytes()
    same = {
        "command": command_of(kernel, args.sample, args.seed),
        "sha256": hashlib.sha256(source).hexdigest(),
    }
    if row is None or {key: row[key] for key in same} != same:
        raise ValueError(f"{args.out} has no result of this sample of {kernel}: run it whole")
    return set(row["survivors"])


def table(report: dict[str, Any]) -> str:
    """The rows of all kernels in Markdown."""
    lines = ["| kernel | changes | tried | noticed | without effect | not noticed |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for row in (report[kernel] for kernel in KERNELS if kernel in report):
        cells = [f"`{row['module']}`", row["mutants"], row["tried"], row["killed"]]
        cells += [len(row["without_effect"]), len(row["survivors"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def page_with(text: str, report: dict[str, Any]) -> str:
    """A page whose table says what the report says. ValueError: the page has no place for it."""
    before, mark, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE.name} has no {START} … {END}")
    return f"{before}{mark}\n{table(report)}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kernels", nargs="+", default=[*KERNELS], choices=[*KERNELS])
    parser.add_argument("--sample", type=int, default=40, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="only those that the result in --out names, after tests were added",
    )
    parser.add_argument("--table", action="store_true", help=f"write it into {PAGE.name}, and end")
    args = parser.parse_args()
    if args.table:
        PAGE.write_text(page_with(PAGE.read_text(), json.loads(args.out.read_text())))
        return
    # a mutant leaves no compiled file: a second change within its file's second of modification
    # would be taken for the first
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
            lived = lived_before(report.get(kernel), kernel, args) if args.survivors else None
            row = measure(kernel, args.sample, args.seed, Path(folder), lived)
            print(f"{kernel}: {row['killed']} of {row['tried']} killed", flush=True)
            report[kernel] = row  # those of other kernels stay
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
