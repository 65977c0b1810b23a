"""A filter in a user's file: what it must have, that its text decides the id, docs/extend.md."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from clipmill.filters import check_filters, instances_of, make, user_file
from clipmill.filters.base import Batch, Filter, set_id
from clipmill.manifests import reader
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import score_set_names
from clipmill.manifests.schema import FilterSpec, Recipe
from clipmill.pipeline.audit.explain import explain_lines, explain_row
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import choose_views, column_lines, list_columns
from tests.support import commands
from tests.support.bundles import scores_of
from tests.support.small_pool import Row, make_pool

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
import pyarrow as pa
from clipmill.filters.base import Batch, Columns, Filter

@dataclass(kw_only=True)
class Shout(Filter):
    needs = frozenset({"caption"})
    adds = {"shout": pa.int32(), "shout_most": pa.int32()}
    least: int = 1

    def score(self, batch: Batch) -> Columns:
        counts = [caption.count("!") for caption in batch.captions]
        return {"shout": counts, "shout_most": [max(self.least, n) for n in counts]}
"""


def kind_of(folder: Path, text: str = GOOD, name: str = "Shout") -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return f"{path}:{name}"


def test_a_class_of_a_file_is_a_filter(tmp_path: Path) -> None:
    spec = FilterSpec(name="loud", kind=kind_of(tmp_path), options={"least": 2})
    instance = instances_of([spec])["loud"]
    assert list(instance.columns()) == ["loud", "loud_most"]
    assert isinstance(instance.filter, Filter)
    batch = Batch(captions=["a!", "b!!!"], images=None, rows=None)
    assert instance.filter.score(batch) == {"shout": [1, 3], "shout_most": [2, 3]}
    check_filters(instances_of([spec]))
    with pytest.raises(ValueError, match="loud has no option 'lest'; did you mean 'least'"):
        make(FilterSpec(name="loud", kind=kind_of(tmp_path), options={"lest": 2}))


def test_the_text_decides_the_id_and_the_path_does_not(tmp_path: Path) -> None:
    first = set_id(make(FilterSpec(name="a", kind=kind_of(tmp_path))))
    (tmp_path / "other").mkdir()
    assert set_id(make(FilterSpec(name="b", kind=kind_of(tmp_path / "other")))) == first
    changed = kind_of(tmp_path, GOOD.replace('"!"', '"?"'))
    assert set_id(make(FilterSpec(name="a", kind=changed))) != first


def test_the_text_travels_where_the_path_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "_texts", {})
    kind = f"{tmp_path}/elsewhere.py:Shout"
    with pytest.raises(ValueError, match=r"there is no file .*elsewhere.py; the path is relative"):
        make(FilterSpec(name="loud", kind=kind))
    user_file.provide_text(f"{tmp_path}/elsewhere.py", GOOD)
    assert set_id(make(FilterSpec(name="loud", kind=kind))) == set_id(
        make(FilterSpec(name="loud", kind=kind_of(tmp_path)))
    )


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (GOOD, "Shot", "has no filter class 'Shot'; did you mean 'Shout'?; it has Shout"),
        ("x = 1", "Shout", "has no filter class 'Shout'; it has none. A filter class is a"),
        (GOOD, "Filter", "has no filter class 'Filter'"),
        (GOOD.replace("@dataclass(kw_only=True)", ""), "Shout", "write @dataclass(kw_only=True)"),
        (GOOD.replace("    adds =", "    ads ="), "Shout", "class Shout needs adds"),
        ("def", "Shout", "cannot be executed: it raised SyntaxError: invalid"),
        ("import sys; sys.exit(0)", "Shout", "it called sys.exit(0) (mine.py, line 1)"),
        (
            GOOD.replace("pa.int32()", "'int32'"),
            "Shout",
            "Shout needs adds, the columns with their",
        ),
        (GOOD.replace("def score", "def scores"), "Shout", "class Shout lacks the method score"),
        (GOOD.replace('"caption"})', '"captions"})'), "Shout", "has 'captions'; did you mean 'cap"),
        (GOOD.replace("least: int", "least: Batch"), "Shout", "the type of an option"),
        (GOOD.replace("least: int", "least: Most"), "Shout", "the type of an option of its class"),
        ("raise OSError('no\\nmodel')", "Shout", "it raised OSError: no model (mine.py, line 1)"),
    ],
)
def test_files_that_hold_no_filter(tmp_path: Path, text: str, name: str, message: str) -> None:
    spec = FilterSpec(name="loud", kind=kind_of(tmp_path, text, name))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check_filters(instances_of([spec]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


THUMB = """
from dataclasses import dataclass
import pyarrow as pa
from clipmill.filters.base import Filter

@dataclass(kw_only=True)
class Thumb(Filter):
    needs = ["image"]
    adds = {"thumb": pa.int32()}
    most: int = 8

    def __post_init__(self):
        if self.most < 1:
            raise ValueError(f"most is {self.most}; it must be positive")
        1 / (self.most - 99)

    def score(self, batch):
        for image in batch.images:
            image.thumbnail((self.most, self.most))
        return {"thumb": [image.width for image in batch.images]}
"""


def test_images_that_others_read_are_not_changed(tmp_path: Path) -> None:
    thumb = make(FilterSpec(name="thumb", kind=kind_of(tmp_path, THUMB, "Thumb")))
    image = Image.new("RGB", (40, 20))
    batch = Batch(captions=[""], images=[image], rows=pa.table({}))
    assert isinstance(thumb, Filter)
    assert thumb.score(batch) == {"thumb": [8]}
    assert image.size == (40, 20)


@pytest.mark.parametrize(
    ("most", "message"),
    [
        (0, "^filter thumb: most is 0; it must be positive$|^most is 0; it must be positive$"),
        (99, r"Thumb.__post_init__ raised ZeroDivisionError: .* \(mine\.py, line 15\)"),
    ],
)
def test_an_option_is_refused_by_the_class(tmp_path: Path, most: int, message: str) -> None:
    kind = kind_of(tmp_path, THUMB, "Thumb")
    with pytest.raises(ValueError, match=message):
        make(FilterSpec(name="thumb", kind=kind, options={"most": most}))


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
    (name,) = [each for each in score_set_names(PoolLayout(pool)) if each.startswith("mine@")]
    values = scores_of(pool, name, 0)["mine"].to_pylist()
    assert values == [0, 0, 0, 0]  # the pictures of the pool have one colour each
    recipe = reader.read_manifest(tmp_path / "r.yaml", Recipe)
    assert choose_views(PoolWriter(pool), recipe)["sharp"].kept == 6
    lines = "\n".join(column_lines(list_columns(pool)))
    assert "mean difference of neighbouring pixels" in lines
    told = "\n".join(explain_lines(explain_row(pool, "https://img0.example/0.jpg")))
    assert "mine" in told
    # Another option of one instance, by its name.
    assert commands.score([*words, "--filters", "mine", "--set", "mine.step=1"]) == 0
    assert (
        len([each for each in score_set_names(PoolLayout(pool)) if each.startswith("mine@")]) == 2
    )
