"""The layout that the README promises: who imports whom, names that shadow nothing, entry files
that only call.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.blocked import BLOCKED

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "manifests": {"manifests"},
    "filters": {"manifests", "filters"},
    "pipeline": {"manifests", "filters", "pipeline"},
    "train": {"manifests", "train"},
}
# Inside a package a unit (a sub-package, or a module at the top) imports only units listed above
# it.
ORDER = {
    "manifests": [
        "text", "console", "web_page", "columns", "phash", "hamming", "casting", "schema",
        "clip_tokenizer",
        "ray_runtime", "disk", "known_bad", "identity", "pool_layout", "run_layout", "commits",
        "documents", "aligned", "folder_lock", "yaml_forms", "reader", "__init__",
    ],
    "filters": [
        "base", "partitions", "values", "instances", "user_calls", "user_file", "captions",
        "caption", "faces", "language", "optout", "page", "pdq", "picture", "table", "tokens",
        "clip", "captioning", "duplicates", "concepts", "__init__",
    ],
    "pipeline": [
        "progress", "executor", "pool", "images", "foreign_columns", "exchange", "pool_scores",
        "scoring", "views",
        "archives", "crawl",
        "planning", "fetch", "external",
        "accounting", "pool_page", "dataset_lock", "export", "miniweb", "recipe_run",
        "ablation_run", "build", "score", "filter", "audit", "look",
    ],
    "train": [
        "rng", "tokenise", "mixing", "hardware", "model", "store", "config", "pixels", "data",
        "streams",
        "step", "formats", "inference", "dist", "capacity", "task_data", "evaluation", "running",
        "stats", "ablation", "reporting", "benching",
        "run", "evaluate", "export",
        "ablate", "report", "sizing", "bench",
    ],
}  # fmt: skip
ENTRIES = [
    "pipeline/build.py", "pipeline/score.py", "pipeline/filter.py", "pipeline/audit.py",
    "pipeline/look.py",
    "train/run.py", "train/evaluate.py", "train/ablate.py", "train/report.py", "train/export.py",
    "train/sizing.py", "train/bench.py",
]  # fmt: skip


def sources(package: str) -> list[Path]:
    """Every Python file of a package, in its sub-packages too."""
    return sorted((ROOT / package).rglob("*.py"))


def unit_of(dotted: str) -> str:
    """The entry of ORDER that a module belongs to: its sub-package, or the module itself where it
    lies at the top.
    """
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_of(path: Path) -> str:
    """The dotted name of a file, without `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed. Most tests below look at all of them."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> set[str]:
    """Dotted names of the project's own modules that a file imports, at its top or inside
    functions.
    """
    modules: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    return {name for name in modules if name.split(".")[0] in MAY_IMPORT}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_before_it(package: str) -> None:
    for path in sources(package):
        wrong = {name for name in imports(path) if name.split(".")[0] not in MAY_IMPORT[package]}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ORDER)
def test_a_unit_imports_only_units_listed_above_it(package: str) -> None:
    order = ORDER[package]
    units = {unit_of(module_of(path)) for path in sources(package)}
    assert units - {"__init__"} <= set(order), (
        f"list {sorted(units - set(order))} where they belong"
    )
    for path in sources(package):
        unit = unit_of(module_of(path))
        if unit == "__init__":
            continue
        allowed = set(order[: order.index(unit) + 1])
        used = {unit_of(name) for name in imports(path) if name.startswith(package + ".")} & units
        assert used <= allowed, (
            f"{path.relative_to(ROOT)} imports {sorted(used - allowed)}, which is listed below it"
        )


@pytest.mark.parametrize("package", ORDER)
def test_no_two_modules_of_a_unit_import_each_other(package: str) -> None:
    modules = {module_of(path): path for path in sources(package) if path.stem != "__init__"}
    graph = {
        name: {used for used in imports(path) if used in modules} for name, path in modules.items()
    }
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_no_file_name_shadows_the_standard_library_or_a_dependency() -> None:
    taken = set(sys.stdlib_module_names) | set(packages_distributions())
    names = {path.stem for package in MAY_IMPORT for path in sources(package)} - {"__init__"}
    ours = {name for name in names if name in taken and importlib.util.find_spec(name) is not None}
    assert not ours, f"these file names shadow installed modules: {sorted(ours)}"


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_files_hold_no_classes_and_can_be_executed(entry: str) -> None:
    path = ROOT / entry
    tree = ast.parse(path.read_text())
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "remote"]
    assert path.read_text().startswith("#!/usr/bin/env python3\n")
    assert path.stat().st_mode & 0o111
    assert ast.get_docstring(tree)


# Runs scripts with --help as Python does, in copies of a process that has imported the heavy
# libraries once: {path: [exit status, output]}.
HELP_OF_EACH = """
import json, os, runpy, sys, traceback
import pyarrow.parquet, pydantic, torch
answers = {}
for path in sys.argv[1:]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.argv = [path, "--help"]
        sys.path[0] = os.path.dirname(path)
        status = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as output:
        text = output.read()
    answers[path] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text
print(json.dumps(answers))
"""
WITH_HELP = [*ENTRIES, "pipeline/miniweb/small_web.py"]


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status and output of `--help` of every entry, from a folder that is not the checkout."""
    paths = [str(ROOT / entry) for entry in WITH_HELP]
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_EACH, *paths],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("entry", WITH_HELP)
def test_every_entry_has_help_with_an_example_from_any_folder(
    entry: str, helps: dict[str, tuple[int, str]]
) -> None:
    status, output = helps[str(ROOT / entry)]
    assert status == 0, output
    assert "example" in output.lower()
    assert entry in output


def python_files() -> list[Path]:
    return [p for folder in (*MAY_IMPORT, "benchmarks") for p in (ROOT / folder).rglob("*.py")]


@pytest.mark.slow
def test_files_and_functions_stay_short() -> None:
    long = []
    for path in python_files():
        text = path.read_text()
        if text.count("\n") > 450:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(
                        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
                    )
    assert not long, "\n".join(long)


def package_folders() -> list[str]:
    """The folders that have a README of their own: the packages without sub-packages, and every
    sub-package.
    """
    folders = [
        str(path.parent.relative_to(ROOT))
        for package in ORDER
        for path in (ROOT / package).rglob("__init__.py")
    ]
    return sorted(set(folders) - {"pipeline", "train"})


@pytest.mark.parametrize("folder", package_folders())
def test_the_readme_of_a_package_lists_its_files_in_import_order(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    assert text.count("\n") <= 40
    listed = re.findall(r"^\| `(\w+)\.py` \|", text, re.M)
    modules = {path.stem: path for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"}
    assert sorted(listed) == sorted(modules)
    package = folder.replace("/", ".")
    for number, name in enumerate(listed):
        below = {f"{package}.{other}" for other in listed[number + 1 :]}
        assert not imports(modules[name]) & below, (
            f"{name}.py imports a file that is listed below it"
        )


@pytest.mark.parametrize("folder", package_folders())
def test_the_readme_of_a_package_names_what_is_public(folder: str) -> None:
    tree = ast.parse((ROOT / folder / "__init__.py").read_text())
    lists = [
        n.value
        for n in tree.body
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
    ]
    public = [name for value in lists for name in ast.literal_eval(value)]
    text = (ROOT / folder / "README.md").read_text()
    assert not [name for name in public if f"`{name}`" not in text]


@pytest.mark.parametrize("package", ["pipeline", "train"])
def test_other_packages_use_only_the_public_names_of_a_sub_package(package: str) -> None:
    for path in sources(package):
        unit = unit_of(module_of(path))
        for node in ast.walk(tree_of(path)):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith(package + ".")
            ):
                parts = node.module.split(".")
                assert len(parts) < 3 or parts[1] == unit, (
                    f"{path.relative_to(ROOT)} imports from {node.module}"
                )


def assert_prints_started(code: str) -> None:
    """Run code in a process of its own, which has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "started", done.stderr


@pytest.mark.slow
def test_the_trainer_starts_with_torch_numpy_pyarrow_and_little_else() -> None:
    code = (
        "import sys\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        "import train.run, train.running.loop, train.data.loader, train.dist.checkpoint\n"
        "import train.ablate, train.report, train.evaluate\n"
        # each takes a second or more, and few commands need them
        "slow = {'torch._dynamo', 'torch.distributed.tensor', 'torch.distributed.fsdp', 'sympy'}\n"
        "print('started', *slow & set(sys.modules))"
    )
    assert_prints_started(code)


def test_scores_and_views_start_without_what_other_commands_need() -> None:
    code = (
        "import sys\n"
        "import pipeline.score, pipeline.filter\n"
        "others = {'aiohttp', 'faiss', 'fastwarc', 'onnxruntime', 'ray', 'scipy', 'torch'}\n"
        "print('started', *others & set(sys.modules))"
    )
    assert_prints_started(code)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_module_has_a_test_of_its_name(package: str) -> None:
    missing = []
    for path in sources(package):
        module = path.relative_to(ROOT)
        test = ROOT / "tests" / module.parent / f"test_{module.name}"
        if path.stem != "__init__" and not test.exists():
            missing.append(str(test.relative_to(ROOT)))
    assert not missing, "\n".join(missing)


def test_no_folder_is_crowded() -> None:
    folders = Counter(path.parent for package in MAY_IMPORT for path in sources(package))
    crowded = {str(folder.relative_to(ROOT)): n for folder, n in folders.items() if n > 16}
    assert not crowded


@pytest.mark.parametrize("package", ["pipeline", "train"])
def test_the_readme_of_a_package_lists_its_sub_packages_in_import_order(package: str) -> None:
    text = (ROOT / package / "README.md").read_text()
    assert text.count("\n") <= 40
    rows = re.findall(r"^\| (?:\[(\w+)\]\(\1/README\.md\)|`(\w+)\.py`) \|", text, re.M)
    listed = [folder or module for folder, module in rows]
    assert listed == [unit for unit in ORDER[package] if unit in listed]
    entries = {Path(entry).stem for entry in ENTRIES if entry.startswith(package)}
    assert set(ORDER[package]) == set(listed) | entries
    assert not [entry for entry in entries if f"`{entry}.py`" not in text]
