from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from clipmill.manifests import web_page


def rendered(source: str, **values: object) -> str:
    """A template that uses the shared macros."""
    macros = '{% from "macros.html" import bars, cell, chart, chip, details, note, table %}'
    return web_page.page_templates().from_string(macros + source).render(**values).strip()


def test_what_a_template_is_given_is_escaped() -> None:
    assert rendered("{{ chip('#000', name) }}", name="<b>").endswith("</span>&lt;b&gt;</span>")
    assert rendered("{{ note(text) }}", text="1 < 2") == '<p class="note">1 &lt; 2</p>'
    bars = rendered("{{ bars(rows, 'b') }}", rows=[("none", 0, "0"), ("a<b", 2, "2")])
    assert bars.count("<li>") == 2
    assert "width:0.0%" in bars
    assert "a&lt;b" in bars
    assert rendered("{{ chart(svg) }}", svg=web_page.svg(1, 1, [], "x")).count("<svg") == 1
    with pytest.raises(UndefinedError, match="nothing"):
        rendered("{{ nothing }}")


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = []
    for start in (0, 2, 4):
        part = int(digits[start : start + 2], 16) / 255
        parts.append(part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


STYLE = (web_page.TEMPLATES / "page.css").read_text()


@pytest.mark.parametrize("number", [0, 1], ids=["light", "dark"])
def test_every_text_has_enough_contrast(number: int) -> None:
    scheme = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)[number]
    colours = dict(re.findall(r"--(\w+):(#\w+)", scheme))
    for text in ("ink", "soft", "good", "bad"):
        for ground in ("paper", "card"):
            pair = sorted([luminance(colours[text]), luminance(colours[ground])])
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (text, ground)
    for index in range(8):  # graphics need 3:1 (WCAG 1.4.11)
        pair = sorted([luminance(colours[f"c{index}"]), luminance(colours["paper"])])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3.0, index


def test_a_page_has_one_script_and_one_style() -> None:
    base = web_page.page_templates().get_template("base.html")
    html = base.render(title="a < b", body=Markup("<p>x</p>"))
    assert "<title>a &lt; b</title>" in html
    assert html.count("<script>") == html.count("<style>") == html.count("<p>x</p>") == 1
    assert web_page.MARK in html


def test_a_page_links_to_the_pages_of_clipmill_beside_it(tmp_path: Path) -> None:
    for name, title in (("report", "a < b"), ("own", "own"), *((f"z{i}", "z") for i in range(9))):
        page = web_page.page_templates().get_template("base.html").render(title=title, body="")
        (tmp_path / f"{name}.html").write_text(page)
    (tmp_path / "other.html").write_text("<title>of another program</title>")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "bytes.html").write_bytes(b"\xff" * 5000)
    links = web_page.pages_beside(str(tmp_path / "own.html"))
    assert links == {"report.html": "a < b"} | {f"z{i}.html": "z" for i in range(5)}
    assert web_page.pages_beside(str(tmp_path / "none" / "own.html")) == {}


def test_ticks_are_round_and_inside() -> None:
    assert web_page.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert web_page.ticks(-0.13, 0.21, 4) == [-0.1, 0, 0.1, 0.2]
    assert web_page.ticks(3, 3) == [3]
    assert web_page.ticks(-3e-15, 4e-15, 4) == [-2e-15, 0, 2e-15, 4e-15]
    assert web_page.ticks(0, 2.0**600, 3) == [0, 2e180, 4e180]
    assert web_page.number(12_800) == "12.8k"
    assert web_page.number(-0.5) == f"{web_page.MINUS}0.5"
