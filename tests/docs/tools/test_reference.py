"""The reference is what the code says now, and a key without a meaning is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from clipmill.app import COMMANDS
from docs.tools import code_tables, reference, schema_tables
from filters import FILTERS
from manifests.schema import Fetch
from train.config import PRESETS

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize(
    "path", [p for p in PAGES if "<!-- reference: " in p.read_text()], ids=lambda path: path.stem
)
def test_no_block_of_the_reference_is_old(path: Path) -> None:
    text = path.read_text()
    assert reference.fill(text) == text, "run: .venv/bin/python docs/tools/reference.py"


def test_every_block_that_can_be_made_is_in_one_page() -> None:
    shown = [name for p in PAGES for _, name, _ in reference.BLOCK.findall(p.read_text())]
    assert sorted(shown) == sorted(reference.MAKERS)


def test_the_reference_has_every_command_filter_and_preset() -> None:
    sections = re.findall(r"^## `clipmill (\w+)`", code_tables.command_sections(), re.M)
    assert sections == [name for name, _, _, _ in COMMANDS]
    sections = re.findall(r"^## `(\w+)`", code_tables.filter_sections(), re.M)
    assert sections == list(FILTERS)
    assert re.findall(r"^\| `(\w+)` \|", code_tables.preset_table(), re.M) == list(PRESETS)


def test_a_table_says_type_default_and_meaning() -> None:
    rows = schema_tables.key_table("Fetch").splitlines()
    assert len(rows) == 2 + len(dataclasses.fields(Fetch))
    assert "| `image_size` | `256` | whole number | pixels |" in rows
    assert any(row.startswith('| `optout` | `"respect"` | `respect`, `strict`') for row in rows)
    kinds = schema_tables.source_table()
    assert "| `wat_index` | - | `crawl`, `sample` | `seed`, `base` | all |" in kinds


def test_a_key_without_a_meaning_and_a_meaning_without_a_key_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(schema_tables.MEANINGS, "HostLimit", {"per_host": "x"})
    with pytest.raises(ValueError, match=r"has no HostLimit\.delay_s"):
        schema_tables.key_table("HostLimit")
    monkeypatch.setitem(schema_tables.MEANINGS, "HostLimit", {"per_host": "x", "gone": "x"})
    with pytest.raises(ValueError, match=r"explains \['gone'\] of HostLimit"):
        schema_tables.key_table("HostLimit")


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no block 'keys Nothing'"):
        reference.fill("<!-- reference: keys Nothing -->\n<!-- end -->\n")


def test_a_command_has_a_section_with_its_options_and_its_sub_commands() -> None:
    sections = {}
    for section in re.split(r"^###? ", code_tables.command_sections(), flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        sections[title] = text
    assert {title for title in sections if "`clipmill weights" in title} == {
        "`clipmill weights`",
        "`clipmill weights onnx`",
    }
    build = sections["`clipmill build`"]
    assert "| `--until` | `choose` | `crawl`, `plan`, `fetch`, `score`, `choose` | The" in build
    assert "\nclipmill build manifests/ablations/own_shards.yaml\n" in build
    assert "exit status" not in build
    assert "| `--to` | needed | text | A new folder" in sections["`clipmill weights`"]
    purge = sections["`clipmill audit purge`"]
    assert "| `CRITERIA` | needed | text … | url=URL" in purge
    assert "| `--dry-run` |  |  | Count" in purge
    bench = sections["`clipmill bench`"]
    assert "| `--mode` |  | `infer`, `loader`, `score`, `train` | what is measured |" in bench
    assert "\nclipmill bench --compare a100.json h100.json\n" in bench
    assert "Args:" not in "".join(sections.values())
    for title, text in sections.items():
        assert not re.search(r"\|  \|$", text, re.M), f"{title}: an argument without a meaning"
