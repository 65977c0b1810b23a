from __future__ import annotations

import dataclasses

from tests.support.reports import empty_report, given_report, sample_report
from train.ablation import wording
from train.reporting import page, schema


def test_the_arms_data_with_the_blends_and_a_shaded_overlap() -> None:
    html = page.composition(sample_report())
    assert "<code>b1e4d</code>" in html
    assert 'style="--share:30%">0.30' in html
    assert "unique pairs" in html
    many = schema.Overlap(arms=tuple(map(str, range(20))), jaccard=((0.5,) * 20,) * 20)
    folded = page.composition(dataclasses.replace(sample_report(), overlap=many))
    assert "<details><summary>Overlap of the arms" in folded
    assert page.composition(given_report()) == ""


def test_rules_one_by_one_with_unknown_counts() -> None:
    html = page.rules(sample_report())
    assert "<td>words</td>" in html
    assert '<td class="n">40</td><td class="n">50.0</td><td class="n">8</td>' in html
    assert wording.DASH in html
    assert page.rules(empty_report()) == ""


def test_distributions_say_how_far_a_view_is_from_the_stored_rows() -> None:
    html = page.distributions(sample_report())
    assert "Difference of each view from the stored rows" in html
    assert '<td>web/clip30</td><td class="n">1.250</td>' in html
    assert "host &lt;a&gt;" in html
    assert "Of 2,000 rows in shards drawn at random." in html
    assert html.index("<h3>clip_score in web") < html.index("<summary>host of the image in web")
    assert page.distributions(empty_report()) == ""


def test_of_many_views_a_chart_shows_the_first() -> None:
    (histogram,) = sample_report().histograms
    counts = {"stored": (10, 20), **{f"v{number}": (1, 2) for number in range(30)}}
    many = dataclasses.replace(histogram, counts=counts, marks={"v29": 0.1})
    html = page.distributions(dataclasses.replace(sample_report(), histograms=(many,)))
    assert html.count("<polygon") == 1 + page.OUTLINES
    assert "23 more views are in the table of differences." in html


def test_copies_and_harm() -> None:
    html = page.duplicates(sample_report())
    assert "by how often each is there, byte for byte" in html
    assert "copies elsewhere are not seen" in html
    assert '<td class="n">25.0</td>' in page.safety(sample_report())
    for section in (page.duplicates, page.safety):
        assert section(empty_report()) == ""


def test_the_contract_says_what_differs() -> None:
    html = page.contract(sample_report())
    assert "All 9 runs share these settings but lr." in html
    assert '<span class="gap">differs</span> raw: 0.1; clip30: 0.2' in html
    assert "1 more settings and versions" in html
    report = sample_report()
    assert report.contract is not None
    same = dataclasses.replace(report.contract, rows=report.contract.rows[:1])
    html = page.contract(dataclasses.replace(report, contract=same))
    assert "share every setting but the seeds (hash c0ffee)" in html
    assert page.contract(empty_report()) == ""


def test_images_that_are_in_a_pool_too() -> None:
    report = sample_report()
    html = page.evaluation_overlap(report)
    assert '<td class="n">0</td><td class="n">3</td>' in html
    html = page.evaluation_overlap(dataclasses.replace(report, near_evaluation_overlap={}))
    assert '<td class="n">not checked</td>' in html
    assert page.evaluation_overlap(empty_report()) == ""
