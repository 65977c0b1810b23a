"""The report page: everything inside one file, the numbers where they belong, no browser error."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from clipmill.verdict import wording
from clipmill.verdict.pages import charts, page, schema
from clipmill.verdict.pages.charts import ForestRow
from clipmill.verdict.pages.page import render
from clipmill.verdict.rounds import ArmRounds
from clipmill.verdict.wording import MINUS
from tests.support.reports import (
    comparison,
    empty_report,
    given_report,
    sample_report,
    with_results,
    with_task,
)

PART = re.compile('<details class="part"><summary>(.*?)</summary>')
LINK = re.compile(r'<a href="#(s\d+)">(.*?)</a>')


class Outside(HTMLParser):
    """Collects addresses that a browser would ask for, and the links to files beside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.scripts = 0
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        found = [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]
        found = [v for v in found if not v.startswith(("data:", "#"))]
        (self.links if tag == "a" else self.asked).extend(found)


def test_the_page_asks_for_nothing_outside_itself_and_links_to_files_beside_it() -> None:
    html = page.render(sample_report(), links={"a pool.html": "web: the <pool>"})
    parser = Outside()
    parser.feed(html)
    assert parser.asked == []
    assert parser.links == ["a%20pool.html", "runs/raw/seed-0/run.json"]
    assert ">web: the &lt;pool&gt;</a>" in html
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
    assert titles == ["Verdicts", "Data", "Tasks and samples", "How it was computed", "Appendix"]
    assert [name for _, name in LINK.findall(html)] == titles
    assert PART.findall(html) == ["Two single models compared (McNemar)", "Files and versions"]


def test_chance_is_in_the_first_table() -> None:
    html = page.render(sample_report())
    table = html[html.index("<table") : html.index("</table>")]
    assert re.search(r'chance</td><td>.*?</td><td class="n">1.6</td>', table)
    none = sample_report()
    none = replace(with_task(none, chance=None), null_web=None)
    assert ">chance<" not in page.render(none).split("<h2>")[0]


SECTIONS = ["Verdicts", "Data", "Tasks and samples", "Training", "How it was computed", "Appendix"]


def test_five_sections_and_an_appendix_are_linked_from_the_header() -> None:
    html = page.render(sample_report(), datetime.date(2026, 11, 22))
    assert "Written on 2026-11-22." in html
    assert html.count("<h1>") == html.count("<header") == 1
    links = LINK.findall(html)
    assert [name for _, name in links] == SECTIONS
    for target, name in links:
        assert f'<section id="{target}"><h2>{name}</h2>' in html
    appendix = html[html.index("<h2>Appendix</h2>") :]
    assert PART.findall(appendix) == ["Single runs", "Rules and settings", "Files and versions"]
    assert len(PART.findall(html)) == 14


def test_the_first_screen_has_verdicts_chart_checks_and_what_next() -> None:
    html = page.render(sample_report())
    top = html[html.index('<div class="verdict">') : html.index("<section")]
    assert "<p>On objects, better than raw: clip30 +4.1 [+2.9, +5.3] points.</p>" in top
    assert top.count("<table") == 1
    head, arms, controls = (part.split("<tr>")[1:] for part in top.split("<tbody>"))
    assert [row.count("<svg") for row in (*head, *arms, *controls)] == [1] * 5
    assert "random_like_clip30" in controls[1]
    assert 'title="single seeds: 33.1, 34.1, 35.1">34.1 ± 1.0</td>' in arms[1]
    assert '<td class="n">+4.1 [+2.9, +5.3]</td>' in arms[1]
    for text in (
        "The smallest visible difference is 2.9 points",
        "Equal data in another order: not distinguishable.",
        "1 of 1 arm is better than a random subset",
        "0 of 640 test images are in a pool byte for byte, 3 nearly. "
        "Training data show of them: raw 3, clip30 0.",
        "Arms differ in lr too.",
        "See what clip30 keeps: <code>clipmill look POOL --view clip30</code>",
    ):
        assert text in top
    assert "More seeds" not in top, "no arm is open"
    gap = replace(sample_report(), gaps=("x seed 1 ended <badly>",))
    assert '<li class="gap">x seed 1 ended &lt;badly&gt;</li>' in page.render(gap)
    row = comparison("clip30", "raw", "not distinguishable")
    assert "More seeds" in page.render(with_task(sample_report(), comparisons=(row,)))


def test_a_page_of_given_predictions_has_no_word_of_data() -> None:
    html = page.render(given_report())
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == [name for name in SECTIONS if name not in ("Data", "Training")]
    assert PART.findall(html)[-2:] == ["Single runs", "Files and versions"]
    for word in ("pairs", "repeats", "% of stored", "batch", "samples seen"):
        assert word not in html.split("<body>")[1].split("<script>")[0], word


ALWAYS = {
    "Each comparison in full", "Controls", "Data of the arms", "Tasks", "Files and versions",
    "Two single models compared (McNemar)",
}  # fmt: skip
TITLE = re.compile(r'<details class="part"><summary>(.*?)</summary>|<h3>(.*?)</h3>')


def parts(report: schema.Report) -> dict[str, str]:
    """{title: body} of the folded and the open parts of the sections of a page."""
    html = render(report)
    html = html[html.index("<section") : html.index("<script>")]
    found = list(TITLE.finditer(html))
    ends = [*(each.start() for each in found[1:]), len(html)]
    return {
        each[1] or each[2]: html[each.start() : end] for each, end in zip(found, ends, strict=True)
    }


def changed(report: schema.Report, **changes: Any) -> dict[str, str]:
    return parts(replace(report, **changes))


def test_a_part_without_data_is_absent() -> None:
    full, empty = parts(sample_report()), parts(empty_report())
    assert set(empty) == ALWAYS - {"Controls"}
    assert set(full) - ALWAYS == {
        "What changed", "What is equal", "Signal and noise",
        "Which smaller scale decides as this one", "Cost", "Training curves",
        "Single runs", "Example images",
        "Outcomes of the pairs", "Rules one by one", "Scores, sizes, sources", "Copies of images",
        "People and harm", "Rules and settings",
    }  # fmt: skip


# --- the first screen -----------------------------------------------------------------------------


def test_both_intervals_are_told_in_plain_words() -> None:
    report, row = sample_report(), comparison("clip30", "raw")
    text = render(report)
    assert "Other seeds on this same test set would give between +3.1 and +5.1." in text
    assert "another test set of this size would give between +2.9 and +5.3." in text
    assert "The headline is the wider one, over seeds and samples." in text
    for changes, words in (
        ({"low_samples": None, "high_samples": None}, "Values of single samples are not known"),
        ({"low_seeds": None, "high_seeds": None}, "so there is no interval."),
        ({"low_tasks": -0.01, "high_tasks": 0.09}, "Over other tasks of this kind as well it"),
    ):
        assert words not in text
        assert words in render(with_task(report, comparisons=(replace(row, **changes),)))


def test_noise_and_power_are_in_words() -> None:
    report = sample_report()
    text = render(report)
    assert "one run of an arm differs from another by 0.9 points (standard deviation" in text
    assert "The number of test samples alone leaves 0.4 points" in text
    smallest, half = wording.power_texts(report.primary, 2)
    assert "smallest visible difference is 2.9 points" in smallest
    assert half.startswith("Half of it, 1.")
    assert half.endswith(" points, needs 11 seeds of each arm.")
    power = report.primary.power
    assert power is not None
    never = with_task(report, power=replace(power, seeds_for_half=None))
    assert "any number of seeds up to 1,000" in wording.power_texts(never.primary, 2)[1]


def test_an_incomplete_arm_is_named_and_has_no_difference() -> None:
    report = sample_report()
    nothing = schema.SeedValues(mean=None, sd=None, values={})
    arm = replace(report.arms[1], metrics={"objects": nothing}, missing=(0, 1))
    report = replace(report, arms=(report.arms[0], arm))
    html = render(replace(with_task(report, comparisons=()), null_web=None))
    assert html.count("(without seed 0, 1)") == 1, "in the first table"
    assert "none finished" in html


# --- results and checks ---------------------------------------------------------------------------


def test_controls_are_told_in_full() -> None:
    body = parts(sample_report())["Controls"]
    assert "clip30 is better than random_like_clip30 on objects: +4.1" in body
    assert "a_a is not distinguishable from raw on objects" in body
    assert "null: not distinguishable." in body


def test_losses_come_first_in_the_tasks_of_an_arm() -> None:
    report = sample_report()
    spec = replace(report.ablation.evaluate[0], name="a loss")
    ablation = replace(report.ablation, evaluate=(*report.ablation.evaluate, spec))
    lower = replace(
        comparison("clip30", "raw"), difference=-0.02, low=-0.03, high=-0.01, task="a loss"
    )
    other = replace(report.primary, task="a loss", comparisons=(lower,))
    arms = []
    for arm in report.arms:
        metrics = {**arm.metrics, "a loss": arm.metrics["objects"]}
        arms.append(replace(arm, metrics=metrics))
    report = with_results(report, tasks={"objects": report.primary, "a loss": other})
    report = replace(report, ablation=ablation, arms=tuple(arms), null_web=None)
    shown = parts(report)
    body = shown["Every task"]
    assert body.index("</span>a loss<") < body.index("</span>objects<")
    assert "34.1 ± 1.0 (30.0)" in body, "the score of the baseline in brackets"
    assert "0.01" in shown["Two single models compared (McNemar)"]
    assert "Every task" not in parts(sample_report()), "one task is on the first screen"


def test_rounds_say_why_an_arm_has_no_more_seeds() -> None:
    rounds = (ArmRounds(arm="clip30", seeds=2, of=5, end="decided", reason="decided: better"),)
    body = parts(with_results(sample_report(), rounds=rounds))["Seeds in rounds"]
    assert "2 of 5" in body
    assert "decided: better" in body


def test_share_kept_needs_arms_of_different_size() -> None:
    report = sample_report()
    raw = replace(report.arms[0], share=1.0)
    body = changed(report, arms=(raw, *report.arms[1:]))["Share kept"]
    assert body.count("<circle") == 3
    assert body.count('class="whisker"') == 1, "only clip30 has a difference"
    assert body.count('class="link"') == 1, "clip30 and its random control"
    assert "Hollow circles are random subsets" in body


def test_changes_show_samples_with_images_and_keep_controls_apart() -> None:
    report = sample_report()
    body = parts(report)["What changed"]
    arm, control = body.split("<h4>The same for controls</h4>")
    assert "12 samples are right in most seeds of clip30" in arm
    assert "red &lt;star&gt;" in arm
    assert arm.count("<figure>") == 1, "a sample without an image is not drawn"
    assert "Intervals hold for all classes, groups and arms together." in arm
    assert '<b>red &lt;star&gt;</b></td><td class="n">16</td>' in arm, "its interval excludes 0"
    assert '<td class="n">+25.0 [+10.0, +40.0]</td><td class="n">15 %</td>' in arm
    assert "random_like_clip30 against raw" in control
    assert "<star>" not in body
    change = replace(report.changes[0], shown=report.changes[0].shown[1:])
    body = changed(report, changes=(change,))["What changed"]
    assert "<figure>" not in body
    assert "<td>star/1.jpg</td>" in body


def test_the_contract_says_what_differs() -> None:
    report = sample_report()
    body = parts(report)["What is equal"]
    assert "All 9 runs share these settings but lr." in body
    assert '<span class="gap">differs</span> raw: 0.1; clip30: 0.2' in body
    assert "1 more settings and versions" in body
    assert report.contract is not None
    same = replace(report.contract, rows=report.contract.rows[:1])
    body = changed(report, contract=same)["What is equal"]
    assert "share every setting but the seeds (hash c0ffee)" in body


def test_metrics_of_a_task_with_the_deciding_one_in_bold() -> None:
    report = sample_report()
    body = parts(report)["Signal and noise"]
    assert "Metrics of objects over 2 arms and 3 seeds" in body
    assert "4.1 [2.0, 9.0]" in body
    assert body.index("accuracy5") < body.index("<b>accuracy</b>")
    silent = replace(report.signals[0].rows[0], ratio=None)
    rows = replace(report.signals[0], rows=(silent,))
    assert wording.DASH in changed(report, signals=(rows,))["Signal and noise"]


def test_tasks_with_chance_and_images_that_are_in_a_pool_too() -> None:
    body = parts(sample_report())["Tasks"]
    assert '<td class="n">640</td><td class="n">1.6 %</td>' in body
    assert '<td class="n">0</td><td class="n">3</td>' in body
    body = parts(with_results(sample_report(), near_overlap={}))["Tasks"]
    assert '<td class="n">not checked</td>' in body
    assert "in a pool" not in parts(empty_report())["Tasks"]


# --- runs -----------------------------------------------------------------------------------------


def test_smaller_scales_have_their_share_and_their_price() -> None:
    body = parts(sample_report())["Which smaller scale decides as this one"]
    assert "as objects, accuracy at 12800 does" in body
    assert "0.83 [0.50, 1.00]" in body
    assert '<td class="n">9 (75.0 %)</td>' in body


def test_cost_is_per_point_of_an_arm_that_is_better() -> None:
    body = parts(sample_report())["Cost"]
    assert f"{82 / 4.1:,.1f}" in body
    assert "random_like_clip30" not in body


def test_single_runs_have_their_interval_and_no_settings_if_unknown() -> None:
    body = parts(sample_report())["Single runs"]
    assert "29.0 [27.0, 31.0]" in body
    assert ">micro<" in body
    assert ">batch<" not in parts(given_report())["Single runs"]


# --- data -----------------------------------------------------------------------------------------


def test_the_arms_data_with_the_blends_and_a_shaded_overlap() -> None:
    body = parts(sample_report())["Data of the arms"]
    assert "<code>b1e4d</code>" in body
    assert 'style="--share:30%">0.30' in body
    many = schema.Overlap(arms=tuple(map(str, range(20))), jaccard=((0.5,) * 20,) * 20)
    body = changed(sample_report(), overlap=many)["Data of the arms"]
    assert "<details><summary>Overlap of the arms" in body
    assert "Data of the arms" not in parts(given_report())


def test_rules_one_by_one_with_unknown_counts() -> None:
    body = parts(sample_report())["Rules one by one"]
    assert "<td>words</td>" in body
    assert '<td class="n">40</td><td class="n">50.0</td><td class="n">8</td>' in body
    assert wording.DASH in body


def test_distributions_say_how_far_a_view_is_from_the_stored_rows() -> None:
    report = sample_report()
    body = parts(report)["Scores, sizes, sources"]
    assert '<td>web/clip30</td><td class="n">1.250</td>' in body
    assert "host &lt;a&gt;" in body
    assert "Of 2,000 rows in shards drawn at random." in body
    assert body.index("<h4>clip_score in web") < body.index("<summary>host of the image in web")
    counts = {"stored": (10, 20), **{f"v{number}": (1, 2) for number in range(30)}}
    many = replace(report.histograms[0], counts=counts, marks={"v29": 0.1})
    body = changed(report, histograms=(many,))["Scores, sizes, sources"]
    assert body.count("<polygon") == 1 + page.OUTLINES
    assert "23 more views are in the table of differences." in body


def test_copies_and_harm() -> None:
    shown = parts(sample_report())
    assert "by how often each is there, byte for byte" in shown["Copies of images"]
    assert "copies elsewhere are not seen" in shown["Copies of images"]
    assert '<td class="n">25.0</td>' in shown["People and harm"]


def test_a_curve_of_an_unknown_arm_is_an_error() -> None:
    with pytest.raises(KeyError, match="raw"):
        render(replace(sample_report(), arms=(), null_web=None))


def test_charts_survive_what_runs_can_log() -> None:
    nothing = charts.band_over_seeds("raw", "#000", [])
    assert "no points were logged" in charts.bands([nothing], "x", "y", "empty")
    holes = [(1.0, 2.0), (2.0, float("nan")), (3.0, 1.0)]
    band = charts.band_over_seeds("raw", "#000", [holes])
    assert "nan" not in charts.bands([band], "x", "y", "holes")
    same = ForestRow(mean=0.0, low=0.0, high=0.0, colour="#000")
    axis = charts.forest([same], 0.0)
    assert "nan" not in axis.head("flat") + axis.row(same)


def test_a_forest_row_has_an_interval_and_a_dot_per_seed() -> None:
    row = ForestRow(mean=-4.0, low=-5.0, high=-3.0, colour="#123", dots=(-5.0, -3.5))
    axis = charts.forest([row], 1.0)
    assert f">{MINUS}4<" in axis.head("t")
    svg = axis.row(row)
    assert svg.count("<circle") == 3, "the mean and two seeds"
    assert svg.count('class="whisker"') == svg.count('class="zone"') == 1
    unknown = ForestRow(mean=0.0, low=None, high=None, colour="#123")
    svg = charts.forest([unknown], 0.0).row(unknown)
    assert 'class="whisker"' not in svg
    assert 'class="zone"' not in svg
    assert svg.count("<circle") == 1
    assert "<circle" not in axis.row(None)


def test_a_histogram_without_a_bin_is_an_error() -> None:
    svg = charts.histogram([0, 1, 2], {"stored": [1, 2]}, {"v": 1.0, "out": 9.0}, {}, "h")
    assert svg.count('class="mark"') == 1, "a threshold outside the axis is not drawn"
    with pytest.raises(IndexError):
        charts.histogram([], {}, {}, {}, "h")


def test_a_band_has_the_mean_and_the_extremes_of_the_seeds() -> None:
    seeds = [[(1.0, 4.0), (2.0, 3.0)], [(1.0, 6.0), (2.0, 5.0), (3.0, 1.0)]]
    band = charts.band_over_seeds("raw", "#000", seeds)
    assert band.points == ((1.0, 5.0, 4.0, 6.0), (2.0, 4.0, 3.0, 5.0))
    svg = charts.bands([band], "x", "y", "t")
    assert svg.count("<polyline") == svg.count("<polygon") == 1, "one line per arm, not per seed"


def test_labels_of_near_thresholds_are_on_lines_of_their_own() -> None:
    marks = {"clip30": 1.0, "basic_and_clip30": 1.01, "out": 9.0}
    svg = charts.histogram([0, 1, 2], {"stored": [1, 2]}, marks, {}, "h")
    heights = [
        float(re.findall(r'y="([\d.]+)"', text)[0])
        for text in re.findall(r"<text[^>]*>(?=clip30|basic)", svg)
    ]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 12
