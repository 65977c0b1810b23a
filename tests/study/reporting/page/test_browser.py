"""The page in a real browser: widths, schemes, sorting, print, names, and what it asks for."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clipmill.verdict.pages.page import render
from clipmill.verdict.pages.schema import Report
from tests.support import commands
from tests.support.browser import CHROMIUM, Tab, browser
from tests.support.reports import comparison, sample_report, with_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
LONG = "a_rather_long_name_of_an_arm_" * 4  # 116 letters

# Every text of the page: its contrast with what lies behind it (WCAG 2.1, relative luminance).
CONTRAST = """
(() => {
  const parse = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [numbers[0] * scale, numbers[1] * scale, numbers[2] * scale, numbers[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = colour => {
    const [r, g, b] = colour.map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const worst = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script,title")) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const ground = behind(element);
    const [a, b] = [light(over(ink, ground)), light(ground)];
    worst.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.trim()]);
  }
  return worst.sort((x, y) => x[0] - y[0]).slice(0, 3);
})()
"""
# Texts inside one chart, or two names of one legend, whose boxes overlap.
OVERLAPS = """
[...document.querySelectorAll("svg,.key")].flatMap(box => {
  const parts = [...box.querySelectorAll("text,:scope > span")];
  const found = [];
  parts.forEach((one, i) => parts.slice(i + 1).forEach(other => {
    const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 3) found.push([one.textContent, other.textContent]);
  }));
  return found;
})
"""
# Elements that reach over the right edge of the page and do not scroll inside a box.
TOO_WIDE = """
[...document.querySelectorAll("main *")].filter(e =>
  !e.closest(".scroll,pre") && e.getClientRects().length &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(e => e.tagName + " " + e.textContent.slice(0, 40))
"""
COLUMN = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[{}].textContent)"


def long_report() -> Report:
    """The sample with more runs, twelve arms, and one with a long name that looks like a tag."""
    report = sample_report()
    for number in range(10):
        name = f"clip{number}_and_no_copies"
        arm = dataclasses.replace(report.arms[1], arm=name, view=f"web/{name}", share=number / 10)
        rows = (*report.primary.comparisons, comparison(name, "raw"))
        report = with_task(report, comparisons=rows)
        report = dataclasses.replace(report, arms=(*report.arms, arm))
    name = f"<script>bad()</script>{LONG}"
    arm = dataclasses.replace(report.arms[1], arm=name, view=f"web/{LONG}")
    report = with_task(report, comparisons=(*report.primary.comparisons, comparison(name, "raw")))
    runs = []
    for seed, value in enumerate((0.31, 0.095, 0.4)):
        runs.append(dataclasses.replace(report.runs[0], seed=seed, value=value))
    runs.append(dataclasses.replace(report.runs[0], arm=name, seed=11, value=0.22))
    return dataclasses.replace(report, arms=(*report.arms, arm), runs=tuple(runs))


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(long_report(), datetime.date(2026, 11, 22)))
    return path


@pytest.fixture
def page(tab: Tab, path: Path) -> Tab:
    """The page, freshly loaded at 1,000 pixels in light colours."""
    tab.requests.clear()
    tab.errors.clear()
    tab.open(path)
    tab.value("document.querySelector('table:has(caption)').id")
    tab.value(
        "[...document.querySelectorAll('table')].find("
        "t => t.caption && t.caption.textContent.startsWith('Runs on')).id = 'runs'"
    )
    tab.value("document.getElementById('runs').closest('details').open = true")
    return tab


def test_it_asks_for_nothing_and_runs_without_an_error(
    page: Tab, path: Path, tmp_path: Path
) -> None:
    asked = [url for url in page.requests if not url.startswith("data:")]
    assert asked == [path.as_uri()]
    assert page.errors == []
    bad = tmp_path / "bad.html"
    bad.write_text("<script>nothing_of_that_name()</script><img src='file:///not/there.png'>")
    page.open(bad)
    assert page.errors, "a page with an error must be noticed, or this test says nothing"
    assert "file:///not/there.png" in page.requests


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_part_is_wider_than_the_screen(page: Tab, width: int) -> None:
    page.show(width)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(TOO_WIDE) == []


def test_a_table_that_scrolls_has_a_shadow_where_it_goes_on(page: Tab, tmp_path: Path) -> None:
    page.show(360)
    boxes = "[...document.querySelectorAll('main .scroll')]"
    box = f"{boxes}.find(e => e.scrollWidth > e.clientWidth + 40)"
    shades = []
    for left in (0, 9999):
        page.value(f"{box}.scrollLeft = {left}")
        place: dict[str, float] = page.value(f"{box}.getBoundingClientRect().toJSON()")
        page.screenshot(tmp_path / "shot.png")
        with Image.open(tmp_path / "shot.png") as shot:
            # It is as wide as the page beside its scroll bar, and drawn without that.
            at = shot.width - 3, int(place["y"] + page.value("scrollY")) + 3
            shades.append(shot.convert("L").getpixel(at))
    assert shades[0] < shades[1] - 20, "dark while more follows, gone at the end"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_stands_out(page: Tab, dark: bool) -> None:
    page.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.show(1000, dark)
    ratios: list[tuple[float, str]] = page.value(CONTRAST)
    assert ratios[0][0] >= 4.5, ratios
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert ("251, 250, 247" in ground) != dark, "the other scheme has another ground"


def test_a_table_is_sorted_by_clicks(page: Tab) -> None:
    head = "document.querySelectorAll('#runs th')[1]"
    before: list[str] = page.value(COLUMN.format(1))
    assert before == ["0", "1", "2", "11"]
    page.value(
        f"{head}.querySelector('button').scrollIntoView({{block: 'center', behavior: 'instant'}})"
    )
    box: dict[str, Any] = page.value(
        f"{head}.querySelector('button').getBoundingClientRect().toJSON()"
    )
    page.click(box["x"] + 3, box["y"] + 3)
    assert page.value(f"{head}.getAttribute('aria-sort')") == "ascending"
    page.click(box["x"] + 3, box["y"] + 3)
    assert page.value(f"{head}.getAttribute('aria-sort')") == "descending"
    assert page.value(COLUMN.format(1)) == ["11", "2", "1", "0"], "as numbers, not as texts"


def test_a_table_is_sorted_by_keys(page: Tab) -> None:
    last = "[...document.querySelectorAll('#runs th')].at(-1)"
    page.value(f"{last}.querySelector('button').focus()")
    page.press("Enter", 13, "\r")
    scores: list[str] = page.value(COLUMN.format(5))
    assert [score.split()[0] for score in scores] == ["9.5", "22.0", "31.0", "40.0"]
    assert page.value(f"{last}.getAttribute('aria-sort')") == "ascending"
    page.press(" ", 32, " ")
    assert page.value(f"{last}.getAttribute('aria-sort')") == "descending"
    assert page.value("document.querySelectorAll('#runs [aria-sort]').length") == 1


def test_printed_nothing_is_folded_or_cut(page: Tab) -> None:
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    page.show(760, dark=True, media="print")  # A4 less its margins
    cut = "[...document.querySelectorAll('.scroll,pre')].filter(e => e.scrollWidth > 762).length"
    assert page.value(cut) == 0
    assert page.value("document.documentElement.scrollWidth") <= 760
    assert page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    ink = page.value("getComputedStyle(document.body).color")
    assert ink == "rgb(27, 32, 38)", "dark on white paper, whatever the screen has"
    assert page.value("document.querySelectorAll('img[loading=lazy]').length") == 0
    page.show(1000)


@pytest.mark.parametrize("width", [360, 1000])
def test_texts_of_charts_and_legends_do_not_overlap(page: Tab, width: int) -> None:
    page.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.show(width)
    assert page.value(OVERLAPS) == []


def test_a_phone_shows_the_verdict_of_every_arm_beside_its_name(page: Tab) -> None:
    page.show(400)
    lines = "[...document.querySelectorAll('table')][0].tBodies[0].rows"
    rows: list[list[float]] = page.value(
        f"[...{lines}].map(row => [row.cells[0], row.cells[4], row.cells[1]].map("
        "cell => Math.round(cell.getBoundingClientRect().top)))"
    )
    assert len(rows) == 13
    assert all(name == verdict < picture for name, verdict, picture in rows)
    inside = "[...document.querySelectorAll('.scroll')][1]"
    assert page.value(f"{inside}.scrollWidth <= {inside}.clientWidth"), "nothing is scrolled away"


@pytest.mark.parametrize("width", [400, 1400])
def test_a_decision_on_twelve_arms_fits(tab: Tab, tmp_path: Path, width: int) -> None:
    lines = ["arm,seed,task,accuracy"]
    for arm in range(12):
        for seed in range(3):
            value = 0.3 + 0.01 * arm + 0.003 * (seed * arm % 4)
            lines += [f"clip{arm}_and_no_copies,{seed},{task},{value}" for task in ("cars", "pets")]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    target = tmp_path / "decided.html"
    assert commands.decide([str(tmp_path / "runs.csv"), "--page", str(target)]) == 0
    tab.errors.clear()
    tab.open(target, width)
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(TOO_WIDE) == []
    assert tab.value(OVERLAPS) == []
    assert tab.value("document.querySelectorAll('.differences tbody tr').length") == 12
    assert tab.errors == []


def test_every_link_of_the_contents_leads_to_its_section(page: Tab) -> None:
    links: list[list[str]] = page.value(
        "[...document.querySelectorAll('nav a')].map(a => [a.textContent, "
        "document.getElementById(a.hash.slice(1)).querySelector('h2').textContent])"
    )
    assert len(links) == 6
    assert all(name == title for name, title in links)
    page.value("document.querySelectorAll('nav a')[3].click()")
    assert page.value("location.hash") == "#s4"


def test_charts_boxes_and_images_have_names(page: Tab) -> None:
    charts: list[list[str]] = page.value(
        "[...document.querySelectorAll('svg:not([aria-hidden])')].map("
        "s => [s.getAttribute('role'), s.getAttribute('aria-label') || ''])"
    )
    assert len(charts) == 6
    assert all(role == "img" and len(name) > 3 for role, name in charts)
    assert page.value("document.querySelectorAll('main .scroll:not([aria-label])').length") == 0
    assert page.value("[...document.images].filter(i => !i.alt).length") == 0
    assert page.value("document.documentElement.lang") == "en"
    heads = "[...document.querySelectorAll('th')].filter(h => h.scope !== 'col').length"
    assert page.value(heads) == 0


def test_a_name_that_looks_like_a_tag_is_text(page: Tab) -> None:
    assert page.value("document.querySelectorAll('script').length") == 1
    assert page.value("document.body.textContent.includes('<script>bad()</script>a_rather')")
