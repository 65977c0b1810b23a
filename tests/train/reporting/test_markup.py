from __future__ import annotations

import pytest

from train.reporting import markup


def test_names_are_escaped() -> None:
    assert markup.chip("#000", "<b>").endswith("</span>&lt;b&gt;</span>")
    assert markup.details("a < b", "<p>x</p>") == (
        "<details><summary>a &lt; b</summary><p>x</p></details>"
    )
    assert markup.note("1 < 2") == '<p class="note">1 &lt; 2</p>'
    assert markup.verdict_word("<x>") == '<span class="">&lt;x&gt;</span>'


def test_numbers_are_aligned_to_the_right() -> None:
    html = markup.table(["a", "n"], [["x", "1"]], (1,))
    assert html.count('class="n"') == 2
    assert '<td>x</td><td class="n">1</td>' in html


def test_a_cell_that_is_no_text_is_an_error() -> None:
    with pytest.raises(AttributeError):
        markup.chip("#000", None)  # type: ignore[arg-type]
