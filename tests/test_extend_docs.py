"""The code of docs/extend.md works. Its filter is run by tests/filters/test_user_file.py."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from clipmill.manifests.columns import PAIRS
from clipmill.manifests.schema import Source, TaskSpec
from clipmill.train.evaluation import tasks
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from tests.support import pages
from tests.support.photo_folders import make_folder

PAGE = "docs/extend.md"


def code_of(name: str) -> dict[str, Any]:
    """The names that a block of the page defines."""
    (text,) = [text for _, text in pages.blocks(PAGE) if text.startswith(f"# {name}\n")]
    names: dict[str, Any] = {"__name__": name.removesuffix(".py")}
    exec(compile(text, name, "exec"), names)  # our own page
    return names


def test_every_piece_of_code_is_tested() -> None:
    texts = [text for language, text in pages.blocks(PAGE) if language == "python"]
    named = [re.match(r"# (\w+\.py)\n", text)[1] for text in texts]
    mine = ["my_filters.py", "my_models.py", "my_source.py", "my_chart.py", "my_task.py"]
    assert named == [*mine[:4], "preview_chart.py", mine[4]]


def test_a_model_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "ViT-Ti-16", None)  # taken away again at the end
    code_of("my_models.py")
    config = MODELS["ViT-Ti-16"]
    assert (config.vision_layers, config.vision_width, config.patch_size) == (12, 192, 16)
    assert config.vision_width // config.vision_heads == 64
    # 12 blocks, patches, positions, class token, three norms and the projection
    blocks = 12 * (12 * 192**2 + 13 * 192)
    rest = 3 * 16 * 16 * 192 + 197 * 192 + 192 + 4 * 192 + 192 * 192
    counted = sum(p.numel() for name, p in CLIP(config).named_parameters() if "visual" in name)
    assert counted == blocks + rest


def test_a_source_of_lines(tmp_path: Path) -> None:
    reader = code_of("my_source.py")["LINES"]
    path = tmp_path / "list.tsv"
    path.write_text("http://a.example/1.jpg\ta dog\nhttp://a.example/2.jpg\t \nno caption\n")
    source, counts = Source(kind="table", paths=(str(path),)), Counter[str]()
    (batch,) = [
        batch for part in reader.parts(source) for batch in reader.batches(part, source, counts)
    ]
    assert batch.schema.equals(PAIRS)
    assert batch["caption"].to_pylist() == ["a dog"]
    assert counts == {"links": 3, "pairs": 1, "empty_alt": 2}


def test_a_chart() -> None:
    chart = code_of("my_chart.py")["lollipops"]({"raw": 0.25, "a < b": 1.0}, "Shares")
    tree = ET.fromstring(chart)
    circles = [float(each.get("cx", 0)) for each in tree.iter("circle")]
    assert circles == [220.0, 520.0]
    assert "http" not in chart


def test_a_chart_is_seen_in_the_style_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "my_chart", SimpleNamespace(**code_of("my_chart.py")))
    code_of("preview_chart.py")
    page = (tmp_path / "chart.html").read_text()
    assert page.count("<circle") == 2
    assert re.search(r'class="grid"', page)
    assert ".grid { stroke:" in page


def test_a_kind_of_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families = code_of("my_task.py")["FAMILIES"]
    monkeypatch.setitem(tasks.TASKS, "families", families)
    make_folder(tmp_path / "photos", per_class=2)
    # All names begin with one word: every row is right, whatever the model says.
    for names, expected in ((("fruit red", "fruit green", "fruit sky"), 1.0), (None, None)):
        task = TaskSpec(
            name="t", kind="families", data=str(tmp_path / "photos"), classes=names or ()
        )
        metrics = tasks.evaluate(CLIP(MODELS["test"]), [task], str(tmp_path / "eval"))["t"]
        table = pq.read_table(tmp_path / "eval/t.parquet")
        assert metrics["family_accuracy"] == sum(table["correct"].to_pylist()) / 6
        assert expected is None or metrics["family_accuracy"] == expected
    assert families.chance({"classes": ["a b", "a c", "d e"]}, 6) == 0.5
