"""A report as one HTML page: nothing from outside, readable without its script, from disk."""

from __future__ import annotations

import datetime
from html import escape

from manifests.web_page import html_page, note
from train.reporting.page import data_sections, evidence, sections, signals
from train.reporting.page.overview import first_screen
from train.reporting.schema import Report


def render(report: Report, written: datetime.date | None = None) -> str:
    """The whole page. `written` is the date that it shows."""
    bodies = [
        ("Arms", sections.arms_table(report, ("baseline", "arm")) + evidence.arms_forest(report)),
        ("What is equal", data_sections.contract(report)),
        ("Every task", evidence.task_forests(report) + sections.tasks(report)),
        ("Seeds in rounds", sections.rounds(report)),
        ("What changed", evidence.changes(report)),
        ("Checks on the method", sections.checks(report)),
        ("Signal and noise", signals.signal_tables(report)),
        ("Scaling", signals.scaling(report)),
        ("Share kept", evidence.share_kept(report)),
        ("Training curves", evidence.curves(report)),
        ("Cost", evidence.costs(report)),
        ("Single runs", evidence.single_runs(report)),
        ("Data of the arms", data_sections.composition(report)),
        ("Outcomes of the pairs", sections.funnels(report)),
        ("Rules one by one", data_sections.rules(report)),
        ("Scores, sizes, sources", data_sections.distributions(report)),
        ("Example images", sections.examples(report)),
        ("Copies of images", data_sections.duplicates(report)),
        ("Evaluation images in the pools", data_sections.evaluation_overlap(report)),
        ("People and harm", data_sections.safety(report)),
        ("Rules and settings", sections.settings(report)),
        ("Provenance", sections.provenance(report)),
    ]
    shown = [(title, body) for title, body in bodies if body]
    links, parts = [], []
    for number, (title, body) in enumerate(shown, start=1):
        links.append(f'<a href="#s{number}">{escape(title)}</a>')
        parts.append(f'<section id="s{number}"><h2>{escape(title)}</h2>{body}</section>')
    date = "" if written is None else note(f"Written on {written:%Y-%m-%d}.")
    return html_page(
        f"{report.name}: dataset ablation",
        f"<h1>{escape(report.name)}</h1><p class='lead'>{escape(report.question)}</p>"
        f'{first_screen(report)}<nav aria-label="Contents">{" ".join(links)}</nav>'
        f"{''.join(parts)}{date}",
    )
