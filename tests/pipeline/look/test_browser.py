"""The page in a real browser, from a file and from the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clipmill.pipeline.look.page import Bounds, page_data, render
from clipmill.pipeline.look.server import Answers, make_server
from clipmill.pipeline.look.survey import Survey
from tests.study.reporting.page.test_browser import CONTRAST, TOO_WIDE
from tests.support import looked
from tests.support.browser import CHROMIUM, Tab, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
CHOOSE = """
(() => {{ const box = document.getElementById({id!r}); box.value = {value!r};
  box.dispatchEvent(new Event({event!r})); return box.value; }})()
"""
TEXT = "document.getElementById({!r}).textContent"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def path(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "pool.html"
    path.write_text(render(survey, page_data(survey, Bounds())))
    return path


@pytest.fixture
def page(tab: Tab, path: Path) -> Tab:
    tab.requests.clear()
    tab.errors.clear()
    tab.open(path)
    return tab


@pytest.fixture(scope="module")
def url(survey: Survey) -> Iterator[str]:
    answers = Answers(survey)
    with make_server(answers, render(survey, page_data(survey))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def choose(tab: Tab, id: str, value: str, event: str = "change") -> None:
    assert tab.value(CHOOSE.format(id=id, value=value, event=event)) == value


def text(tab: Tab, id: str) -> str:
    return str(tab.value(TEXT.format(id)))


def wait_for(tab: Tab, expression: str) -> Any:
    end = time.monotonic() + 900
    while not (value := tab.value(expression)):
        assert time.monotonic() < end, expression
        time.sleep(0.02)
    return value


def test_it_asks_for_nothing_and_a_caption_is_text(page: Tab, path: Path) -> None:
    assert [one for one in page.requests if not one.startswith("data:")] == [path.as_uri()]
    assert page.errors == []
    assert page.value("document.title") != "1"
    choose(page, "search", "onerror", "input")
    assert text(page, "hits").startswith("1 of the ")
    caption = text(page, "results")
    assert '</script><img src=x onerror="document.title=1"> a new line \\u202e' in caption
    assert page.value("document.querySelectorAll('#results img').length") == 1
    assert page.value("document.querySelectorAll('#results b').length") == 0


def test_the_slider_by_keys(page: Tab, survey: Survey) -> None:
    choose(page, "view", "basic")
    choose(page, "column", "caption_words")
    page.value("document.getElementById('slider').value = 0")
    page.value("document.getElementById('slider').focus()")
    page.press("ArrowRight", 39)
    scope = survey.scope("basic", "caption_words")
    words = survey.rows.table["caption_words"].to_pylist()
    expected = sum(scope[row] and words[row] >= 2 for row in range(60))
    assert text(page, "count") == str(expected)
    assert text(page, "rule") == "- words: caption_words >= 2"
    assert "In place of words. Rows are counted that pass side, shape." in text(page, "others")
    said = page.value("document.getElementById('slider').getAttribute('aria-valuetext')")
    assert said == f"2, keeps {expected} rows"
    choose(page, "side", "below")
    assert text(page, "rule") == "- words: caption_words < 2"
    assert int(text(page, "count")) == int(scope.sum()) - expected


def test_a_typed_threshold_says_what_it_knows(page: Tab) -> None:
    choose(page, "column", "original_width")
    choose(page, "number", "400", "input")
    exact = text(page, "count")
    assert text(page, "typed") == ""
    choose(page, "number", "395", "input")
    assert f"{exact} to " in text(page, "typed") or f" to {exact} " in text(page, "typed")
    choose(page, "number", "nothing", "input")
    assert text(page, "typed") == "This is no number."


def test_images_on_both_sides_of_the_threshold(page: Tab) -> None:
    choose(page, "column", "original_width")
    choose(page, "number", "400", "input")
    numbers = "[...document.querySelectorAll('#{} figcaption b')].map(b => Number(b.textContent))"
    low, high = page.value(numbers.format("low")), page.value(numbers.format("high"))
    assert low == sorted(low, reverse=True)
    assert high == sorted(high)
    assert max(low) < 400 <= min(high)


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_and_scheme(page: Tab, width: int, dark: bool) -> None:
    page.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    choose(page, "view", "basic")
    page.show(width, dark)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(TOO_WIDE) == []
    ratios: list[tuple[float, str]] = page.value(CONTRAST)
    assert ratios[0][0] >= 4.5, ratios


def test_a_table_is_sorted_and_print_shows_all(page: Tab) -> None:
    table = (
        "[...document.querySelectorAll('table')].find(t => t.caption?.textContent === '4 views')"
    )
    page.value(f"{table}.tHead.rows[0].cells[2].querySelector('button').click()")
    kept = page.value(f"[...{table}.tBodies[0].rows].map(r => Number(r.cells[2].textContent))")
    assert kept == sorted(kept)
    page.value("dispatchEvent(new Event('beforeprint'))")
    page.show(760, media="print")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    assert page.value("document.documentElement.scrollWidth") <= 760
    page.show(1000)


def test_everything_has_a_name(page: Tab) -> None:
    nameless = (
        "[...document.querySelectorAll('select,input')].filter("
        "e => !e.labels.length && !e.getAttribute('aria-label')).length"
    )
    assert page.value(nameless) == 0
    assert page.value("[...document.images].filter(i => !i.alt).length") == 0
    assert page.value("[...document.querySelectorAll('svg')].filter("
                      "s => !s.getAttribute('aria-label')).length") == 0  # fmt: skip
    links = "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"
    assert page.value(links)


def test_the_same_counts_from_the_server(tab: Tab, path: Path, url: str) -> None:
    counts = []
    for target in (path, url):
        tab.errors.clear()
        tab.open(target)
        wait_for(tab, "document.getElementById('rule').textContent")
        choose(tab, "view", "basic")
        choose(tab, "column", "original_width")
        choose(tab, "number", "400", "input")
        rule = "document.getElementById('rule').textContent === '- side: original_width >= 400'"
        wait_for(tab, rule)
        counts.append((text(tab, "count"), text(tab, "share"), text(tab, "others")))
        assert tab.errors == []
    assert counts[0] == counts[1]
    loaded = "[...document.querySelectorAll('#high img')].filter(i => i.naturalWidth > 0).length"
    wait_for(tab, loaded)
    choose(tab, "search", looked.HOSTILE[:9], "input")
    wait_for(tab, "document.getElementById('hits').textContent.startsWith('1 of captions')")
    assert all(one.startswith((url, "data:", path.as_uri())) for one in tab.requests)
