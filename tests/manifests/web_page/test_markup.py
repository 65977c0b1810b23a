from __future__ import annotations

import re

import pytest

from manifests import web_page


def test_names_are_escaped() -> None:
    assert web_page.chip("#000", "<b>").endswith("</span>&lt;b&gt;</span>")
    assert web_page.details("a < b", "<p>x</p>") == (
        "<details><summary>a &lt; b</summary><p>x</p></details>"
    )
    assert web_page.note("1 < 2") == '<p class="note">1 &lt; 2</p>'
    assert web_page.verdict_word("<x>") == '<span class="">&lt;x&gt;</span>'


def test_numbers_are_aligned_to_the_right() -> None:
    html = web_page.table(["a", "n"], [["x", "1"]], (1,))
    assert html.count('class="n"') == 2
    assert '<td>x</td><td class="n">1</td>' in html


def test_a_cell_that_is_no_text_is_an_error() -> None:
    with pytest.raises(AttributeError):
        web_page.chip("#000", None)  # type: ignore[arg-type]


def test_a_table_has_heads_a_caption_and_can_be_sorted_from_three_rows_on() -> None:
    two = web_page.table(["a", "b"], [["x", "1"], ["y", "2"]], (1,), "A <caption>")
    assert "<caption>A &lt;caption&gt;</caption><thead>" in two
    assert '<th scope="col">a</th><th class="n" scope="col">b</th>' in two
    assert 'tabindex="0" role="group" aria-label="A &lt;caption&gt;"' in two
    assert "sortable" not in two
    assert 'class="sortable"' in web_page.table(["a"], [["x"], ["y"], ["z"]])
    assert web_page.details("nothing", "") == ""


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = []
    for start in (0, 2, 4):
        part = int(digits[start : start + 2], 16) / 255
        parts.append(part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", [web_page.LIGHT, web_page.DARK], ids=["light", "dark"])
def test_every_text_has_enough_contrast(scheme: str) -> None:
    colours = dict(re.findall(r"--(\w+):(#\w+)", scheme))
    for text in ("ink", "soft", "good", "bad"):
        for ground in ("paper", "card"):
            pair = sorted([luminance(colours[text]), luminance(colours[ground])])
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (text, ground)
    for number in range(8):  # graphics need 3:1 (WCAG 1.4.11)
        pair = sorted([luminance(colours[f"c{number}"]), luminance(colours["paper"])])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3.0, number


def test_a_page_has_one_script_and_its_own_style() -> None:
    html = web_page.html_page("a < b", "<p>x</p>", "p { margin:0 }", "let x = 1;")
    assert "<title>a &lt; b</title>" in html
    assert html.count("<script>") == html.count("<style>") == 1
    assert "p { margin:0 }" in html
    assert "let x = 1;" in html
