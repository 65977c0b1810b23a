"""The report page: everything inside one file, the numbers where they belong, no browser error."""

from __future__ import annotations

import dataclasses
import datetime
import re
from html.parser import HTMLParser

from tests.support.reports import empty_report, given_report, sample_report, with_task
from train.reporting import page as page

PART = re.compile('<details class="part"><summary>(.*?)</summary>')
LINK = re.compile(r'<a href="#(s\d+)">(.*?)</a>')


class Outside(HTMLParser):
    """Collects addresses that a browser would ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.asked += [
            v
            for k, v in attrs
            if k in ("src", "href", "srcset", "action") and v and not v.startswith(("data:", "#"))
        ]


def test_the_page_asks_for_nothing_outside_itself() -> None:
    html = page.render(sample_report())
    parser = Outside()
    parser.feed(html)
    assert parser.asked == []
    assert parser.scripts == 1, "one script, in the page"
    assert not re.search(r"url\(|@import|https?://", html)
    loud = Outside()
    loud.feed('<img src="http://a/b.png"><script src="x.js"></script>')
    assert loud.asked == ["http://a/b.png", "x.js"]


def test_the_page_shows_the_numbers_it_was_given() -> None:
    html = page.render(sample_report())
    assert "34.1 ± 1.0" in html
    assert "+4.1 [+2.9, +5.3]" in html
    assert '<span class="better">better</span>' in html
    assert "a_a is not distinguishable from raw on objects" in html
    assert "a &lt;red&gt; star &amp; more" in html
    assert "a <red> star" not in html


def test_empty_sections_are_left_out() -> None:
    html = page.render(empty_report())
    assert "Not run" not in html
    assert "Not recorded" not in html
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == ["Results", "Data", "Provenance"]
    assert [name for _, name in LINK.findall(html)] == titles
    assert PART.findall(html) == ["Every task", "Data of the arms", "Files and versions"]


def test_chance_is_in_the_first_tables() -> None:
    html = page.render(sample_report())
    first = html[html.index('<div class="verdict">') : html.index("<h3>Controls</h3>")]
    assert re.search(r'chance</span>.*?<span class="mean note">1.6</span>', first)
    table = html[html.index("<h3>Arms</h3>") :]
    assert 'chance</span></td><td class="n">1.6</td>' in table[: table.index("</table>")]
    none = sample_report()
    none = dataclasses.replace(with_task(none, chance=None), null_web=None)
    assert ">chance<" not in page.render(none)


def test_the_contents_link_to_every_group_and_its_parts_are_folded() -> None:
    html = page.render(sample_report(), datetime.date(2026, 11, 22))
    assert "Written on 2026-11-22." in html
    links = LINK.findall(html)
    assert [name for _, name in links] == ["Results", "Checks", "Runs", "Data", "Provenance"]
    for target, name in links:
        assert f'<section id="{target}"><h2>{name}</h2>' in html
    assert len(PART.findall(html)) == 17


def test_the_verdict_is_one_sentence_and_one_line_per_arm() -> None:
    html = page.render(sample_report())
    top = html[html.index('<div class="verdict">') : html.index("<nav")]
    assert "<p>On objects, better than raw: clip30 +4.1 [+2.9, +5.3] points.</p>" in top
    assert top.count("<li>") == 4, "two arms, chance, a control"
    arms, controls = top.split("<h3>Controls</h3>")
    assert '<span class="difference">+4.1 [+2.9, +5.3] points</span>' in arms
    assert "random_like_clip30" not in arms
    assert "random_like_clip30" in controls
    assert 'aria-label="clip30, single seeds: 33.1, 34.1, 35.1"' in arms
    gap = dataclasses.replace(sample_report(), gaps=("x seed 1 ended <badly>",))
    assert '<li class="gap">x seed 1 ended &lt;badly&gt;</li>' in page.render(gap)


def test_a_page_of_given_predictions_has_no_word_of_data() -> None:
    html = page.render(given_report())
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == ["Results", "Runs", "Provenance"]
    assert PART.findall(html) == ["Every task", "Single runs", "Files and versions"]
    for word in ("pairs", "repeats", "% of stored", "batch", "samples seen"):
        assert word not in html.replace("sort by this column", "").split("<script>")[0], word
