"""The reference is what the code says now, and a key without a meaning is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clipmill.commands.app import COMMANDS
from clipmill.filters import FILTERS
from clipmill.train.config import PRESETS
from docs.tools import code_tables, reference

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
