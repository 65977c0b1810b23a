"""The layout that the README promises: one name, who imports whom, entry files that only call."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.blocked import BLOCKED

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "manifests": {"manifests"},
    "filters": {"manifests", "filters"},
    "pipeline": {"manifests", "filters", "pipeline"},
    "train": {"manifests", "train"},
    "verdict": {"manifests", "verdict"},
    "study": {"manifests", "train", "verdict", "study"},
    "clipmill/library": {
        "manifests", "filters", "pipeline", "train", "verdict", "study", "library",
    },
    "clipmill/commands": {
        "manifests", "filters", "pipeline", "train", "verdict", "study", "library", "commands",
    },
    "examples": {"manifests", "pipeline", "examples"},
    "benchmarks/trainer": {"manifests", "train", "bench"},
}  # fmt: skip
# The folders of the repository, and the name of each inside of the package clipmill
FOLDERS = {
    folder: "bench" if folder == "benchmarks/trainer" else folder.removeprefix("clipmill/")
    for folder in MAY_IMPORT
}
OWN = {"library", "commands"}  # folders of clipmill/ that are no links
# Files that are the command under another name, for torchrun and Ray jobs.
THIN_ENTRIES = [
    "pipeline/build.py", "pipeline/score.py", "pipeline/filter.py",
    "train/run.py", "train/evaluate.py", "train/ablate.py", "train/report.py",
]  # fmt: skip
# What a command may import beyond its package, inside a function: the demo and the benchmark.
BEYOND = {
    "clipmill/commands/build.py": "examples", "clipmill/commands/train.py": "bench",
} | dict.fromkeys(THIN_ENTRIES, "__main__")  # fmt: skip
# Inside a package a unit (a sub-package, or a module at the top) imports only units listed above
# it.
ORDER = {
    "manifests": [
        "arrays", "late", "text", "installation", "console", "waits", "tls", "columns", "schema",
        "clip_tokenizer", "preprocess", "hub", "ray_runtime", "telemetry", "disk", "metrics",
        "content", "web_page", "hashes", "identity", "layout", "commits", "records", "aligned",
        "pool", "folder_lock", "reader", "__init__",
    ],
    "filters": [
        "base", "columns", "user_file", "text_overlap", "caption",
        "faces", "language", "optout", "page", "picture", "table", "tokens", "clip",
        "captioner", "clusters", "near_hashes", "duplicates", "decontaminate",
        "concepts", "targets", "ranks", "__init__",
    ],
    "pipeline": [
        "progress", "executor", "pool", "database", "shuffle", "table_files", "images",
        "metadata_join", "cross_row", "scoring", "views", "archives", "crawl", "planning", "fetch",
        "external", "audit", "look", "lock", "export", "pair_groups", "recipe_run", "tryout",
        "ablation_run", "build", "score", "filter",
    ],
    "train": [
        "rng", "mixture", "model", "store", "config", "transforms",
        "data", "step", "formats", "parallel", "identity", "sizing", "eval_data", "evaluation",
        "trainer", "run", "evaluate", "ablate", "report",
    ],
    "verdict": [
        "stats", "measurements", "ranges", "rounds", "wording", "conclusions",
        "tables", "pages", "decide",
    ],
    "study": [
        "arms", "runner", "data", "changes", "history", "plan", "results",
        "pair_groups", "influence", "collect", "compare", "child",
    ],
    "clipmill/library": [
        "calls", "answers", "reports", "pools", "builds", "training", "ablations",
    ],
    "clipmill/commands": [
        "app", "build", "pool", "audit", "train", "ablate", "decide", "tryout", "why",
    ],
    "examples": [
        "miniweb", "lightning_loop", "open_clip_loop", "pytorch_loop", "siglip_loop",
        "transformers_trainer",
    ],
}  # fmt: skip


def sources(package: str) -> list[Path]:
    """Every Python file of a package, in its sub-packages too."""
    return sorted((ROOT / package).rglob("*.py"))


def unit_of(dotted: str) -> str:
    """The entry of ORDER that a module belongs to: its sub-package, or the module itself where it
    lies at the top.
    """
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_of(folder: str, path: Path) -> str:
    """The name of a file below `clipmill.`, without `__init__`."""
    inside = path.relative_to(ROOT / folder).with_suffix("").parts
    parts = (FOLDERS[folder], *inside)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed. Most tests below look at all of them."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> set[str]:
    """Names below `clipmill.` of the modules that a file imports, at its top or in functions."""
    modules: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    inside = {name.partition(".")[2] for name in modules if name.startswith("clipmill.")}
    return {name for name in inside if not name.isupper()}  # clipmill.ROOT


def test_no_short_name_is_imported() -> None:
    """A package `train` or a module `filters.py` of a user is never read in the place of ours."""
    short = "|".join(re.escape(name) for name in {*FOLDERS, *FOLDERS.values()})
    may_be = re.compile(rf"^\s*(?:from\s+(?:\.|{short})|import\b.*\b(?:{short}))", re.MULTILINE)
    for folder in ("clipmill", *MAY_IMPORT, "benchmarks", "docs", "tests"):
        for path in sources(folder):
            if not may_be.search(path.read_text()):
                continue
            for node in ast.walk(tree_of(path)):
                names = []
                if isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{path} has a relative import"
                    names = [node.module or ""]
                elif isinstance(node, ast.Import):
                    names = [name.name for name in node.names]
                found = {name.split(".")[0] for name in names} & {*FOLDERS, *FOLDERS.values()}
                assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def test_the_package_has_a_link_to_each_folder() -> None:
    links = {
        path.name: path.resolve().relative_to(ROOT).as_posix()
        for path in (ROOT / "clipmill").iterdir()
        if path.is_symlink()
    }
    assert links == {name: folder for folder, name in FOLDERS.items() if name not in OWN}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_before_it(package: str) -> None:
    for path in sources(package):
        allowed = MAY_IMPORT[package]
        if beyond := BEYOND.get(str(path.relative_to(ROOT))):
            allowed = allowed | {beyond}
        wrong = {name for name in imports(path) if name.split(".")[0] not in allowed}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ORDER)
def test_a_unit_imports_only_units_listed_above_it(package: str) -> None:
    order = ORDER[package]
    units = {unit_of(module_of(package, path)) for path in sources(package)}
    assert units - {"__init__"} <= set(order), (
        f"list {sorted(units - set(order))} where they belong"
    )
    for path in sources(package):
        unit = unit_of(module_of(package, path))
        if unit == "__init__":
            continue
        allowed = set(order[: order.index(unit) + 1])
        own = FOLDERS[package] + "."
        used = {unit_of(name) for name in imports(path) if name.startswith(own)} & units
        assert used <= allowed, (
            f"{path.relative_to(ROOT)} imports {sorted(used - allowed)}, which is listed below it"
        )


@pytest.mark.parametrize("package", ORDER)
def test_no_two_modules_of_a_unit_import_each_other(package: str) -> None:
    files = [path for path in sources(package) if path.stem != "__init__"]
    modules = {module_of(package, path): path for path in files}
    graph = {
        name: {used for used in imports(path) if used in modules} for name, path in modules.items()
    }
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def assert_prints_started(code: str) -> None:
    """Run code in a process of its own, which has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.stdout.strip() == "started", done.stderr


@pytest.mark.slow
def test_the_trainer_starts_with_torch_numpy_pyarrow_and_little_else() -> None:
    code = (
        "import sys\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        "import clipmill.commands.train, clipmill.commands.ablate\n"
        "import clipmill.train.trainer.loop, clipmill.train.evaluation.suite\n"
        "import clipmill.train.parallel.checkpoint\n"
        # each takes a second or more, and few commands need them
        "slow = {'torch._dynamo', 'torch.distributed.tensor', 'torch.distributed.fsdp', 'sympy'}\n"
        "print('started', *slow & set(sys.modules))"
    )
    assert_prints_started(code)


@pytest.mark.slow
def test_a_report_starts_without_what_builds_and_trains() -> None:
    """The base installation has the command and the report; the rest are extras."""
    blocked = (
        "torch",
        "ray",
        "duckdb",
        "safetensors",
        "tqdm",
        "aiohttp",
        "open_clip",
        "simplejpeg",
    )
    assert_prints_started(
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import clipmill.commands.app, clipmill.commands.ablate; print('started')"
    )


def test_the_command_starts_without_numpy_and_the_modules_of_its_commands() -> None:
    assert_prints_started(
        "import sys, clipmill.commands.app\n"
        "clipmill.commands.app.root_app()\n"
        "others = {'numpy', 'pyarrow', 'torch', 'ray', 'clipmill.manifests.disk'}\n"
        "others.add('clipmill.commands.train')\n"
        "print('started', *others & set(sys.modules))"
    )


def test_the_product_starts_without_the_examples_and_the_benchmarks() -> None:
    modules = ", ".join(f"clipmill.commands.{x}" for x in ORDER["clipmill/commands"])
    assert_prints_started(
        "import sys; sys.modules['clipmill.examples'] = sys.modules['clipmill.bench'] = None\n"
        f"import {modules}; print('started')"
    )


def test_a_help_of_pools_or_results_loads_no_numbers() -> None:
    """Of the commands that a person calls most: what they need is imported when they run."""
    code = (
        "import sys\n"
        "import clipmill.commands.pool, clipmill.commands.decide\n"
        "others = {'numpy', 'pyarrow', 'duckdb', 'yaml', 'pydantic', 'jinja2', 'PIL', 'scipy'}\n"
        "print('started', *others & set(sys.modules))"
    )
    assert_prints_started(code)


def test_scores_and_views_start_without_what_other_commands_need() -> None:
    code = (
        "import sys\n"
        "import clipmill.commands.pool, clipmill.pipeline.views.files\n"
        "import clipmill.pipeline.scoring.scorer, clipmill.manifests.web_page\n"
        "others = {'aiohttp', 'faiss', 'fastwarc', 'onnxruntime', 'ray', 'scipy', 'torch'}\n"
        "print('started', *others & set(sys.modules))"
    )
    assert_prints_started(code)


@pytest.mark.parametrize(
    "package",
    [
        "clipmill", "manifests", "filters", "pipeline", "train", "verdict", "study",
        "examples/miniweb",
        "benchmarks/trainer",
    ],
)  # fmt: skip
def test_the_readme_of_a_package_is_the_map_of_its_files(package: str) -> None:
    tree = (ROOT / package / "README.md").read_text().split("```")[1]
    names = {line.split()[0] for line in tree.splitlines() if line.strip()}
    files = {path.name for path in sources(package)} - {"__init__.py"}
    inits = [path.parent for path in sources(package) if path.name == "__init__.py"]
    rooms = {f"{folder.name}/" for folder in inits if folder != ROOT / package}
    webs = {path.name for path in (ROOT / package).glob("webs/*.yaml")}
    assert names == files | rooms | webs | ({"webs/"} if webs else set())


# What opens a file of rows: of a sidecar, a score set or a view.
OPENED = re.compile(
    r"\b(?:AlignedFiles|Bundle|BundleWriter|BundlesWriter|write_changed)\b"
    r"|\b(?:commits|layout|files|PoolLayout\([^)]*\))\.(?:sidecar|score_bundle|score_part|view_bundle)\("
)
MAY_OPEN = re.compile(
    r"\b(?:AlignedFiles|Bundle|BundleWriter|BundlesWriter|write_changed)\b"
    r"|\.\s*(?:sidecar|score_bundle|score_part|view_bundle)\("
)
# All others ask `Pool`.
OPENS_FILES_OF_ROWS = {
    "pipeline/pool/shard_writer.py": "writes sidecars",
    "pipeline/pool/score_columns.py": "writes score columns",
    "pipeline/scoring/score_sets.py": "puts the score columns of a thousand shards into one file",
    "pipeline/views/files.py": "writes masks",
    "pipeline/audit/purge.py": "writes score columns and masks again, without rows",
    "pipeline/audit/repair.py": "removes damaged columns from files",
    "pipeline/audit/integrity.py": "says of each file what is wrong with it",
    "train/data/live_rows.py": "reads shards that are committed while it reads",
}


def test_files_of_rows_are_opened_by_the_pool_and_by_those_that_write_or_check_them() -> None:
    opening = set()
    for folder in FOLDERS.keys() - {"manifests", "examples", "benchmarks/trainer"}:
        for path in sorted((ROOT / folder).rglob("*.py")):
            # Without comments; what the pattern looks for is in the text too, in one line or not.
            if MAY_OPEN.search(path.read_text()) and OPENED.search(ast.unparse(tree_of(path))):
                opening.add(str(path.relative_to(ROOT)))
    assert opening == OPENS_FILES_OF_ROWS.keys()
