"""The sections of the page as HTML. Text is escaped here; "" where there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from manifests.text import printable
from manifests.web_page import bars, chart, chip, colour, details, note, table
from pipeline.pool_page.histograms import histogram
from pipeline.pool_page.number_columns import NumberColumn
from pipeline.pool_page.survey import Survey
from pipeline.pool_page.view_effects import ViewEffects

SHOWN_RULES = 1_000  # lines of a table of rules
SHOWN_BARS = 60  # of a funnel
SHOWN_PROBLEMS = 12
LONG_TEXT = 200  # characters of a rule or an address


def head(survey: Survey) -> str:
    """Name, size, and what is wrong."""
    totals, rows = survey.totals, survey.rows
    stored = survey.counts.fetch.stored
    facts = f"{stored:,} images in {totals.shards:,} shards, {_bytes(totals.bytes)}"
    parts = [f"<h1>{escape(pool_name(survey))}</h1><p class='lead'>{facts}</p>"]
    parts.append(note(f"State of the pool: {rows.commits.fingerprint}."))
    if not totals.complete and totals.planned:
        text = (
            f"The pool is not complete: {totals.shards:,} of {totals.planned:,} planned shards are "
            "committed. The page shows those."
        )
        parts.append(_warning([text]))
    if not rows.whole:
        parts.append(
            _warning(
                [
                    f"Charts, rules and images are of a sample: {rows.table.num_rows:,} rows in "
                    f"{len(rows.shards):,} of {totals.shards:,} shards, drawn by a hash of their "
                    "numbers. The funnel, the reasons and the table of views are of all rows."
                ]
            )
        )
    problems = [*totals.problems]
    for effects in survey.effects.values():
        if effects.disagrees:
            problems.append(
                f"view {effects.name}: its rules keep other rows than its masks say; verify the "
                "pool with pipeline/audit.py --verify"
            )
    more = len(problems) - SHOWN_PROBLEMS
    shown = problems[:SHOWN_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    parts.append(_warning(shown))
    parts.append('<p class="warning" id="state" role="status"></p>')
    return "".join(parts)


def pool_name(survey: Survey) -> str:
    """The last part of the pool's path: a page that is passed on does not say where it lies."""
    return printable(survey.pool.rstrip("/").rpartition("/")[2] or survey.pool)


def _warning(lines: list[str]) -> str:
    if not lines:
        return ""
    texts = "".join(f"<p>{escape(printable(line))}</p>" for line in lines)
    return f'<div class="warning">{texts}</div>'


def view_choice(survey: Survey) -> str:
    """The view that charts and images show."""
    options = ['<option value="">all stored rows</option>']
    for name in survey.detailed:
        options.append(f'<option value="{escape(name)}">{escape(name)}</option>')
    key = (
        f'<span class="key" id="key">{chip(colour(1), "kept")}{chip(colour(2), "rejected")}</span>'
    )
    return f'<label>Show <select id="view">{"".join(options)}</select></label>{key}'


def funnel(survey: Survey) -> str:
    """Steps from links to stored rows, then the reasons with an example of each."""
    totals = survey.totals
    body = _funnel_bars(totals.funnel, "rows left after each step")
    rows = []
    for line in totals.reasons:
        example = escape(_cut(line.example))
        cells = [escape(line.reason), escape(line.kind), f"{line.count:,}", example]
        rows.append(cells)
    if rows:
        total = sum(line.count for line in totals.reasons)
        caption = f"Why {total:,} links and rows are not stored"
        head_ = ["reason", "class", "rows", "an example"]
        body += table(head_, rows, (2,), caption)
    if totals.retries:
        body += note(f"{totals.retries:,} of the attempts retry a row of another shard.")
    return body


def _funnel_bars(steps: tuple[tuple[str, int], ...], title: str) -> str:
    first = max(1, steps[0][1]) if steps else 1
    shown = steps
    if len(steps) > SHOWN_BARS:
        half = SHOWN_BARS // 2
        shown = (*steps[:half], *steps[-half:])
    lines = []
    for name, count in shown:
        label = f"{count:,} ({100 * count / first:.1f} %)"
        lines.append((_cut(printable(name), 26), float(count), label))
    body = chart(bars(lines, title), title)
    if len(steps) > SHOWN_BARS:
        body += note(f"The first and the last {half} of {len(steps)} steps.")
    return body


def views_table(survey: Survey) -> str:
    """Every view of the pool with what it keeps."""
    rows = []
    for view in survey.rows.views:
        document = view.document
        stored = document.funnel[1][1] if len(document.funnel) > 1 else 0
        state = "current" if view.kept is not None else "older than the shards, or unreadable"
        share = f"{100 * document.kept / stored:.2f}" if stored else ""
        name = escape(view.name)
        if view.name in survey.detailed:
            name = f'<a href="#view-{name}">{name}</a>'
        cells = [name, str(len(document.rules)), f"{document.kept:,}", share, state]
        rows.append(cells)
    if not rows:
        return note("The pool has no view: pipeline/filter.py POOL --recipe RECIPE makes them.")
    head_ = ["view", "rules", "rows kept", "% of stored", "state"]
    body = table(head_, rows, (1, 2, 3), f"{len(rows)} views")
    hidden = sum(view.kept is not None for view in survey.rows.views) - len(survey.detailed)
    if hidden:
        body += note(
            f"Rules, charts and images are shown of the first {len(survey.detailed)} views; "
            "--view NAME shows another one."
        )
    return body


def threshold(survey: Survey) -> str:
    """The controls of the threshold; the script fills them."""
    options = []
    for column in _sliding(survey):
        name = escape(column.name)
        options.append(f'<option value="{name}">{name}</option>')
    hidden = "" if options else ' hidden=""'
    none = "" if options else note("No column of numbers has a value.")
    return f"""{none}<div{hidden}>
<div class="controls">
<label>Column <select id="column">{"".join(options)}</select></label>
<label>keep <select id="side"><option value="least">at least</option>
<option value="below">below</option></select></label>
<label>threshold <input id="number" inputmode="decimal" autocomplete="off"></label></div>
<p class="note" id="meaning"></p><div id="chart"></div>
<input type="range" id="slider" min="0" max="1" value="0" step="1" aria-label="threshold">
<p class="note" id="typed" role="status"></p>
<p class="count"><output id="count" for="slider">0</output> <span id="share"></span></p>
<p class="note"><span id="marks"></span><span id="others"></span></p>
<div class="rule"><code id="rule"></code><button type="button" id="copy">copy the rule</button>
<span id="copied" class="note" role="status"></span></div>
<div class="sides"><div><h3>Just below the threshold</h3><div class="shots" id="low"></div></div>
<div><h3>From the threshold on</h3><div class="shots" id="high"></div></div></div>
<p class="note" id="nearest"></p></div>"""


def _sliding(survey: Survey) -> list[NumberColumn]:
    """The columns with a finite value: scores first, then the sidecar's."""
    able = [one for one in survey.columns.values() if histogram(one) is not None]
    return sorted(able, key=lambda column: column.name not in survey.rows.sets)


def rules(survey: Survey) -> str:
    """The rules of each view: funnel, what each rejects alone, and which rows two rules share."""
    parts = []
    for name, view in survey.detailed.items():
        effects = survey.effects[name]
        steps = view.document.funnel
        share = 100 * effects.kept / max(1, effects.stored)
        body = _funnel_bars(steps, f"{name}: rows left after each rule")
        body += _rules_table(effects) + _overlap(effects)
        summary = f"{name}: {effects.kept:,} of {effects.stored:,} rows ({share:.1f} %)"
        opened = details(summary, body)
        if len(survey.detailed) <= 2:
            opened = opened.replace("<details>", "<details open>", 1)
        parts.append(f'<div id="view-{escape(name)}">{opened}</div>')
    return "".join(parts)


def _rules_table(effects: ViewEffects) -> str:
    rows = []
    for rule in effects.rules[:SHOWN_RULES]:
        without = "" if rule.alone is None else f"{effects.kept + rule.alone:,}"
        rows.append(
            [
                escape(rule.name),
                f"<code>{escape(_cut(printable(rule.text)))}</code>",
                f"{rule.first:,}",
                _count(rule.rejected),
                _count(rule.missing),
                _count(rule.alone),
                without,
            ]
        )
    if not rows:
        return note("The view has no rule: it keeps every stored row.")
    head_ = ["rule", "condition", "rejects first", "rejects in all", "of these NULL"]
    head_ += ["it alone", "kept without it"]
    body = table(head_, rows, (2, 3, 4, 5, 6), f"Rows that each rule of {effects.name} rejects")
    if any(rule.rejected is None for rule in effects.rules):
        body += note(
            "A rule without counts cannot be evaluated on rows that the rules before it reject, "
            "or draws from a pool of which the page shows a sample."
        )
    return body


def _overlap(effects: ViewEffects) -> str:
    """A matrix of the shares of rows that two rules both reject."""
    if len(effects.compared) < 2:
        return ""
    rows = []
    for i, name in enumerate(effects.compared):
        cells = [escape(name)]
        for j, both in enumerate(effects.overlap[i]):
            of = effects.overlap[i][i]
            share = 100 * both / of if of else 0
            title = f"{both:,} rows"
            shown = f"{share:.0f}" if i != j else f"{both:,}"
            cells.append(
                f'<span class="heat" style="--share:{share:.0f}%" title="{title}" '
                f'data-sort="{both}">{shown}</span>'
            )
        rows.append(cells)
    head_ = ["rule", *(escape(name) for name in effects.compared)]
    caption = (
        "Of the rows that the rule of a line rejects, how many % the rule of a column rejects too; "
        "on the diagonal: rows"
    )
    body = table(head_, rows, range(1, len(head_)), caption, sortable=False)
    if len(effects.compared) < len(effects.rules):
        body += note(f"The {len(effects.compared)} rules that reject most.")
    return details("Rows that two rules both reject", body)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def columns(survey: Survey) -> str:
    """A line for each column of numbers, and the charts that the script draws."""
    if not survey.columns:
        return ""
    rows = []
    for column in survey.columns.values():
        source, meaning = survey.rows.meanings.get(column.name, ("", ""))
        stats = [_value(column, share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)]
        counts = [f"{len(column.values):,}", f"{column.nulls:,}", f"{column.nans:,}"]
        name = f'<span title="{escape(meaning)}">{escape(column.name)}</span>'
        rows.append([name, escape(source), *counts, *stats])
    head_ = ["column", "from", "values", "NULL", "NaN", "least", "1 %", "median", "99 %", "most"]
    numbers = table(head_, rows, range(2, 10), "Stored rows by column")
    text = note("Values far outside of the others are in the first and the last bar.")
    return f'<div class="grid-of" id="histograms"></div>{text}{numbers}'


def _value(column: NumberColumn, share: float) -> str:
    """The value at a rank of the sorted values."""
    if not len(column.values):
        return ""
    value = column.values[round(share * (len(column.values) - 1))]
    return f"{value:,}" if column.values.dtype.kind != "f" else f"{value:.5g}"


def values(data: Mapping[str, Any]) -> str:
    """The most frequent values of each column of text."""
    names = [view["name"] for view in data["views"]]
    parts = []
    for shown in data["values"]:
        rows = []
        for line in shown["lines"]:
            kept = [f"{line['kept'][name]:,}" for name in names]
            name = escape(_cut(line["name"], 60))
            rows.append([name, f"{line['rows']:,}", f"{line['stored']:,}", *kept])
        heads = [f"kept by {escape(name)}" for name in names]
        head_ = [escape(shown["column"]), "rows", "stored", *heads]
        caption = f"{shown['column']}: {shown['distinct']:,} values"
        body = table(head_, rows, range(1, len(head_)), caption)
        parts.append(details(caption, body))
    if parts:
        parts[0] = parts[0].replace("<details>", "<details open>", 1)
    return "".join(parts)


def duplicates(data: Mapping[str, Any]) -> str:
    """The largest groups of copies; the script shows their images."""
    text = "The largest groups of copies. Sizes count stored rows."
    return f'{note(text)}<div id="copies"></div>' if data["copies"] else ""


def images(data: Mapping[str, Any]) -> str:
    """Search and galleries; the script fills them."""
    alike = ""
    if data.get("similar"):
        alike = (
            '<form id="like" class="search"><label>Images most like a text '
            '<input id="like-text" type="search" maxlength="200"></label> '
            '<button type="submit">find</button> '
            '<span id="like-state" class="note" role="status"></span></form>'
            '<h3 id="alike-of"></h3><div class="shots" id="alike"></div>'
        )
    text = "Drawn by a hash of their uids, not picked."
    return (
        '<p class="search"><label>Search in captions <input id="search" type="search"></label> '
        '<span id="hits" class="note" role="status"></span></p>'
        f'<div class="shots" id="results"></div>{alike}{note(text)}<div id="gallery"></div>'
    )


def _cut(text: str, most: int = LONG_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bytes(size: int) -> str:
    """A number of bytes as a person reads it."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.3g} {unit}"
    return f"{size} bytes"
