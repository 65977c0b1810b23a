"""The site's reference is made of the code: every table has its place in one page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clipmill.commands.app import COMMANDS
from clipmill.filters import FILTERS
from clipmill.train.config import PRESETS
from clipmill.verdict.stats.comparison import Power
from clipmill.verdict.stats.signals import Interval
from docs.tools import code_tables, reference

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_every_table_that_can_be_made_is_in_one_page() -> None:
    shown = [name for page in PAGES for name in reference.MARKER.findall(page.read_text())]
    assert sorted(shown) == sorted(reference.MAKERS)


def test_a_marker_is_replaced_by_its_table_and_an_unknown_one_is_refused() -> None:
    filled = reference.fill("# Rules\n\n<!-- reference: keys Rule -->\n_Not yet._\n\nEnd.\n")
    assert filled.startswith("# Rules\n\n| key | default | type | what it is |\n|---|")
    assert filled.endswith("|\n\nEnd.\n")
    with pytest.raises(ValueError, match="no block 'keys Rules'; there are "):
        reference.fill("<!-- reference: keys Rules -->")


def test_every_key_has_a_meaning() -> None:
    for name, make in reference.MAKERS.items():
        assert make(), name


def test_the_reference_has_every_command_filter_and_preset() -> None:
    sections = re.findall(r"^## `clipmill (\w+)`", code_tables.command_sections(), re.M)
    assert sections == [name for name, _, _, _ in COMMANDS]
    sections = re.findall(r"^## `(\w+)`", code_tables.filter_sections(), re.M)
    assert sections == list(FILTERS)
    assert re.findall(r"^\| `(\w+)` \|", code_tables.preset_table(), re.M) == list(PRESETS)


def test_the_docstring_of_a_dataclass_is_taken_apart_by_its_fields() -> None:
    text, meanings = code_tables.meanings_of(Power)
    assert text.strip() == "What ablations like one that was run can see."
    assert set(meanings) == {"smallest", "half", "seeds_for_half", "possible"}
    assert meanings["smallest"].startswith("the true difference that 80 % of them")
    text, meanings = code_tables.meanings_of(Interval)
    assert (text, meanings) == ("An estimate with the limits of its interval of 95 %.", {})
