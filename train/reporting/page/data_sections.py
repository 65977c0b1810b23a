"""Sections about the data of the arms. Each is HTML, or "" if there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from manifests.web_page import chart, chip, colour, details, legend, note, table
from train.ablation import wording
from train.reporting.page import charts
from train.reporting.page.overview import colours_of
from train.reporting.schema import Categories, Histogram, Report

OUTLINES = 7  # views in a histogram beside the stored rows; more cannot be told apart
ARMS_AT_ONCE = 12  # a wider matrix of overlaps is folded


def composition(report: Report) -> str:
    """How much of its data each arm draws, and how much of it the arms share."""
    if not any(arm.rows for arm in report.arms):
        return ""  # only predictions are known
    shades = colours_of(report)
    blends = report.contract.blends if report.contract is not None else {}
    rows = []
    for arm in report.arms:
        samples = wording.DASH if arm.drawn is None else f"{arm.drawn:,}"
        repeats = wording.DASH if arm.repeats is None else f"{arm.repeats:.2f}"
        cells = [chip(shades[arm.arm], arm.arm), escape(arm.view)]
        known = [f"{arm.rows:,}", wording.percent(arm.share)]
        cells += known if arm.rows else [wording.DASH, wording.DASH]
        cells += [samples, repeats]
        if blends:
            cells.append(f"<code>{escape(blends.get(arm.arm, wording.DASH))}</code>")
        rows.append(cells)
    head = ["arm", "view", "unique pairs", "% of stored", "samples drawn", "mean repeats"]
    head += ["blend"] if blends else []
    caption = "Data of each arm; of a random control the subset of its first seed"
    return table(head, rows, (2, 3, 4, 5), caption) + _overlap(report)


def _overlap(report: Report) -> str:
    """The matrix of Jaccard indices as shaded cells."""
    overlap = report.overlap
    if len(overlap.arms) < 2:
        return ""
    rows = []
    for name, shares in zip(overlap.arms, overlap.jaccard, strict=True):
        cells = []
        for share in shares:
            cells.append(
                f'<span class="heat" style="--share:{100 * share:.0f}%">{share:.2f}</span>'
            )
        rows.append([f'<span class="short">{escape(name)}</span>', *cells])
    head = ["", *(f'<span class="short">{escape(name)}</span>' for name in overlap.arms)]
    caption = "Jaccard index of the rows of every two arms: 1 the same rows, 0 none in common"
    matrix = table(head, rows, range(1, len(head)), caption, sortable=False)
    if len(overlap.arms) > ARMS_AT_ONCE:
        return details("Overlap of the arms (Jaccard)", matrix)
    return f"<h3>Overlap of the arms</h3>{matrix}"


def rules(report: Report) -> str:
    """What each rule of a view with several rules rejects, and what it alone rejects."""
    rows = []
    for view in report.rules:
        for rule, rejected, alone in view.rules:
            cells = [escape(f"{view.pool}/{view.view}"), escape(rule)]
            for count in (rejected, alone):
                if count is None:
                    cells += [wording.DASH, wording.DASH]
                else:
                    cells += [f"{count:,}", wording.percent(count / max(1, view.stored))]
            rows.append(cells)
    if not rows:
        return ""
    head = ["view", "rule", "rejects", "% of stored", "rejects alone", "% of stored"]
    text = (
        "Of all stored rows, whatever the other rules of the view do. A row that one rule alone "
        "rejects would be kept without that rule."
    )
    return table(head, rows, (2, 3, 4, 5), "The rules of each view, one by one") + note(text)


# --- distributions -------------------------------------------------------------------------------


def distributions(report: Report) -> str:
    """Scores, sizes, languages and hosts of the stored and the kept rows."""
    parts = [_divergences(report)]
    for number, histogram in enumerate(report.histograms):
        body = _histogram(report, histogram)
        title = f"{histogram.column} in {histogram.pool}"
        first = number == 0 or histogram.marks
        parts.append(f"<h3>{escape(title)}</h3>{body}" if first else details(title, body))
    for one in report.categories:
        parts.append(details(f"{one.column} in {one.pool}", _categories(one)))
    return "".join(parts)


def _sampled(rows: int | None) -> str:
    return "" if rows is None else note(f"Of {rows:,} rows in shards drawn at random.")


def _views_of(report: Report, counts: Mapping[str, object]) -> dict[str, str]:
    """{view: colour} of the views of a pool, those of arms before those of controls."""
    shades = colours_of(report)
    views: dict[str, str] = {}
    for role in ("arm", "baseline", "random", "a_a"):
        for arm in report.arms:
            for part in arm.view.split(" + "):
                name = part.partition("/")[2]
                if arm.role == role and name in counts:
                    views.setdefault(name, shades[arm.arm])
    for number, name in enumerate(counts):
        if name != "stored":
            views.setdefault(name, colour(number))
    return views


def _histogram(report: Report, histogram: Histogram) -> str:
    views = _views_of(report, histogram.counts)
    shown = list(views)[:OUTLINES]
    names = {"stored": "var(--soft)", **{name: views[name] for name in shown}}
    counts = {name: histogram.counts[name] for name in names}
    marks = {name: value for name, value in histogram.marks.items() if name in names}
    title = f"{histogram.column} in {histogram.pool}"
    svg = charts.histogram(histogram.edges, counts, marks, names, title)
    more = len(histogram.counts) - len(counts)
    text = note(f"{more} more views are in the table of differences.") if more else ""
    return legend(names) + chart(svg, title) + text + _sampled(histogram.sampled_rows)


def _categories(one: Categories) -> str:
    totals = {name: max(1, sum(counts)) for name, counts in one.counts.items()}
    names = list(one.counts)[: OUTLINES + 1]
    rows = []
    for index, label in enumerate(one.labels):
        cells = [escape(label)]
        for name in names:
            cells.append(wording.percent(one.counts[name][index] / totals[name]))
        rows.append(cells)
    head = [escape(one.column), *(escape(name) for name in names)]
    caption = f"% of the rows; {one.values:,} different values among the stored rows"
    numbers = table(head, rows, range(1, len(head)), caption)
    return numbers + _sampled(one.sampled_rows)


def _divergences(report: Report) -> str:
    """One row per view: how far each of its distributions is from that of the stored rows."""
    columns: list[Histogram | Categories] = [*report.histograms, *report.categories]
    columns = [one for one in columns if one.divergence]
    views: dict[tuple[str, str], dict[str, str]] = {}
    for one in columns:
        for view, bits in one.divergence.items():
            views.setdefault((one.pool, view), {})[one.column] = f"{bits:.3f}"
    if not views:
        return ""
    names = list(dict.fromkeys(one.column for one in columns))
    rows = []
    for (pool, view), cells in views.items():
        texts = [cells.get(name, wording.DASH) for name in names]
        rows.append([escape(f"{pool}/{view}"), *texts])
    caption = "Difference of each view from the stored rows, in bits; 0 is the same distribution"
    text = (
        "Kullback-Leibler divergence of the rows that a view keeps from all stored rows, over the "
        "bins of the charts or the values below. A random subset shows what chance gives."
    )
    return table(["view", *map(escape, names)], rows, range(1, len(names) + 1), caption) + note(
        text
    )


# --- copies, safety ------------------------------------------------------------------------------


def duplicates(report: Report) -> str:
    """Images by their number of copies."""
    parts = []
    for one in report.duplicates:
        rows = []
        for view, groups in one.groups.items():
            name = "all stored rows" if view == "stored" else view
            rows.append([escape(name), *(f"{count:,}" for count in groups)])
        head = ["rows of", *(f"{escape(label)} times" for label in one.labels)]
        caption = f"Different images of {one.pool} by how often each is there, {one.key}"
        parts.append(table(head, rows, range(1, len(head)), caption) + _copies(one.sampled_rows))
    return "".join(parts)


def _copies(rows: int | None) -> str:
    if rows is None:
        return ""
    return note(f"Among {rows:,} rows in shards drawn at random; copies elsewhere are not seen.")


def safety(report: Report) -> str:
    """The share of rows that columns about people and harm mark."""
    parts = []
    for one in report.safety:
        rows = []
        for view, (marked, judged) in one.counts.items():
            name = "all stored rows" if view == "stored" else view
            share = wording.percent(marked / judged) if judged else wording.DASH
            rows.append([escape(name), f"{judged:,}", f"{marked:,}", share])
        caption = f"{one.column} in {one.pool}: {one.meaning}"
        head = ["rows of", "judged", "marked", "%"]
        parts.append(table(head, rows, (1, 2, 3), caption) + _sampled(one.sampled_rows))
    return "".join(parts)


# --- settings ------------------------------------------------------------------------------------


def contract(report: Report) -> str:
    """What all runs share and what differs: nothing but the data, as a rule."""
    contract = report.contract
    if contract is None:
        return ""
    main: list[list[str]] = []
    others: list[list[str]] = []
    for row in contract.rows:
        if row.value is not None:
            value = f"<code>{escape(row.value)}</code>"
        else:
            texts = [f"{escape(arm)}: {escape(text)}" for arm, text in row.by_arm.items()]
            value = f'<span class="gap">differs</span> {"; ".join(texts)}'
        (main if row.main else others).append([escape(row.setting), value])
    different = [row.setting for row in contract.rows if row.value is None]
    if different:
        text = f"All {contract.runs} runs share these settings but {', '.join(different)}."
    else:
        text = f"All {contract.runs} runs share every setting but the seeds"
        hash_text = f" (hash {contract.config_hash})" if contract.config_hash else ""
        text += f"{hash_text}: arms differ in their data alone."
    return f"<p>{escape(text)}</p>{table(['setting', 'value'], main, sortable=False)}" + details(
        f"{len(others)} more settings and versions",
        table(["setting", "value"], others, sortable=False) if others else "",
    )


def evaluation_overlap(report: Report) -> str:
    """Evaluation images that the pools store too."""
    rows = []
    for task in report.tasks:
        exact = report.evaluation_overlap.get(task.task, 0)
        near = report.near_evaluation_overlap.get(task.task)
        shown = "not checked" if near is None else f"{near:,}"
        rows.append([escape(task.task), f"{task.samples:,}", f"{exact:,}", shown])
    head = ["task", "samples", "byte-identical in a pool", "near duplicates by perceptual hash"]
    if not report.evaluation_overlap:
        return ""
    return table(head, rows, (1, 2, 3)) + _dropped(report)


def _dropped(report: Report) -> str:
    """The rows that the arms were not trained on because they show evaluation images."""
    if not report.dropped:
        return ""
    rows = []
    for each in report.dropped:
        counts = [f"{each.rows:,}", f"{each.dropped:,}", f"{each.images:,}"]
        rows.append([escape(each.arm), escape(each.view), *counts])
    head = ["arm", "view", "rows of the view", "rows dropped", "evaluation images they show"]
    text = "<p>Rows that show evaluation images were dropped before training.</p>"
    return text + table(head, rows, (2, 3, 4))
