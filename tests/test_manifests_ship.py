"""The manifests that ship: read at every scale, the small ones run; and every path that a text
names exists.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from clipmill import filters
from clipmill.filters import make, normalised
from clipmill.manifests import reader
from clipmill.manifests.metrics import METRICS, deciding_metric
from clipmill.manifests.reader import VARIABLES
from clipmill.manifests.schema import SOURCES, Ablation, Blend, Recipe, Suite, TaskSpec
from clipmill.pipeline import ablation_run
from clipmill.train.config import configure

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "manifests"
OWN = ("USER_AGENT", "WAT", "IMAGES", "SHARDS", "EVAL", "POOLS", "COCO", "PARQUET", "TSV")
OWN_FILES = ("NOUNS", "WNIDS", "ENTRIES", "TARGETS")
SHIPPED = [
    (path, scale)
    for path in sorted([*FOLDER.glob("recipes/*.yaml"), *FOLDER.glob("ablations/*.yaml")])
    for scale in [None, *reader.list_scales(path)]
]


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*VARIABLES, *(f"CLIPMILL_{name}" for name in OWN)]:
        monkeypatch.setenv(name, f"/given/{name.lower()}")
    for name in OWN_FILES:  # filters look whether these exist
        monkeypatch.setenv(f"CLIPMILL_{name}", __file__)


@pytest.mark.parametrize(("path", "scale"), SHIPPED, ids=[f"{p.stem}-{s}" for p, s in SHIPPED])
def test_it_can_be_read(path: Path, scale: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without pydantic, to the same values of the same types."""
    kind = reader.manifest_kind(path)
    manifest = reader.read_manifest(path, kind, scale=scale)
    made = []
    if isinstance(manifest, Recipe):
        assert not SOURCES[manifest.source.kind].needs_user_agent or manifest.fetch.user_agent
        made = [make(spec) for spec in manifest.filters]
        for spec, one in zip(manifest.filters, made, strict=True):
            assert one.name == (normalised(spec).kind or spec.name)
    for module in (reader, filters):
        monkeypatch.setattr(module, "without_pydantic", lambda value, kind: None)
    by_pydantic = reader.read_manifest(path, kind, scale=scale)
    assert repr(manifest) == repr(by_pydantic)
    if isinstance(by_pydantic, Recipe):
        assert [repr(one) for one in made] == [repr(make(spec)) for spec in by_pydantic.filters]
        return
    assert isinstance(manifest, Ablation)
    configure({**manifest.train, "seed": manifest.seeds[0]})
    recipes = ablation_run.read_recipes(manifest, scale)
    for arm in manifest.arms.values():
        for name in arm.views or [arm.view]:
            pool, view = str(name).split("/")
            if manifest.pools[pool].recipe is not None:
                assert recipes[pool].view(view).name == view


@pytest.mark.parametrize("path", sorted(FOLDER.glob("blends/*.yaml")), ids=lambda path: path.stem)
def test_a_blend_draws_views_that_its_recipe_makes(path: Path) -> None:
    blend = reader.read_manifest(path, Blend)
    for pool_view in blend.views:
        pool, _, view = pool_view.partition("/")
        recipe_path = FOLDER / "recipes" / f"{Path(blend.pools[pool]).name}.yaml"
        assert reader.read_manifest(recipe_path, Recipe).view(view).name == view


SUITES = [path for path in sorted(FOLDER.glob("tasks/*.yaml")) if "\ntasks:" in path.read_text()]
TASKS = [path for path in sorted(FOLDER.glob("tasks/*.yaml")) if path not in SUITES]


def test_the_suite_of_datacomp_has_its_tasks_metrics_and_groups() -> None:
    (path,) = SUITES
    suite = reader.read_manifest(path, Suite)
    groups = suite.groups
    sizes = {name: len(tasks) for name, tasks in groups.items()}
    assert sizes == {
        "imagenet": 1, "imagenet_shifts": 6, "vtab": 13, "retrieval": 3, "others": 15,
        "average_38": 38, "clean_33": 33,
    }  # fmt: skip
    parts = ("imagenet", "imagenet_shifts", "vtab", "retrieval", "others")
    assert sorted(task for part in parts for task in groups[part]) == sorted(groups["average_38"])
    assert set(groups["average_38"]) - set(groups["clean_33"]) == {
        "clevr_count_all", "clevr_closest_object_distance", "pcam", "camelyon17",
        "kitti_closest_vehicle_distance",
    }  # fmt: skip
    for task in suite.tasks:
        assert deciding_metric(task) in METRICS
        assert task.data.startswith("/given/eval/")


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_a_task_can_be_read_alone_and_by_an_ablation(path: Path, tmp_path: Path) -> None:
    task = reader.read_manifest(path, TaskSpec)
    assert task.name == path.stem
    text = (FOLDER / "ablations" / "own_shards.yaml").read_text()
    text = re.sub(r"evaluate:\n.*\nprimary: \w+", f"evaluate: [{path}]\nprimary: {task.name}", text)
    text = text.replace("../recipes", str(FOLDER / "recipes"))
    (tmp_path / "a.yaml").write_text(text)
    assert reader.read_manifest(tmp_path / "a.yaml", Ablation).evaluate == (task,)


# --- paths in texts ----------------------------------------------------------------------------


TOP = "clipmill|manifests|docs|tests|pipeline|train|verdict|study|filters|benchmarks|examples"
NAMED = re.compile(rf"(?<![\w./-])((?:{TOP})/[\w./-]*\w\.(?:py|yaml|md|json|csv))(?!\w)")
PLACEHOLDERS = re.compile(r"NAME|[A-Z]{4,}")  # filters/NAME.py stands for a file to write
DOCUMENTS = [
    path
    for folder in (".", "docs", *TOP.split("|"))
    for path in (ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md"))
]


def missing(text: str) -> list[str]:
    """Files of the repository that a text names and that do not exist."""
    named = {path for path in NAMED.findall(text) if not PLACEHOLDERS.search(path)}
    return sorted(path for path in named if not (ROOT / path).exists())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_files_that_exist(path: Path) -> None:
    assert missing(path.read_text()) == []


@pytest.mark.parametrize(
    "package",
    [
        "clipmill",
        "manifests",
        "filters",
        "pipeline",
        "train",
        "verdict",
        "study",
        "examples",
        "benchmarks",
    ],
)
def test_docstrings_and_help_texts_name_files_that_exist(package: str) -> None:
    wrong = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if lost := missing("\n".join(texts)):
            wrong[str(path.relative_to(ROOT))] = lost
    assert wrong == {}


BARE = re.compile(r"(?<![\w.*/-])([a-z_]+\.py)\b")
OF_OTHERS = {"main.py", "params.py", "tokenization_utils_base.py", "my_filters.py"}


def test_comments_and_docstrings_name_modules_that_exist() -> None:
    """Also where the name stands alone. A merge of modules leaves such names behind."""
    files = [path for folder in TOP.split("|") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {path.name for path in files} | OF_OTHERS
    wrong = set()
    for path in files:
        if "tests" in path.parts:  # they make modules of users
            continue
        text = path.read_text()
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        texts = [token.string for token in tokens if token.type == tokenize.COMMENT]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                texts.append(ast.get_docstring(node) or "")
        lost = set(BARE.findall("\n".join(texts))) - names
        wrong |= {f"{path.relative_to(ROOT)} names {name}" for name in lost}
    assert wrong == set()
