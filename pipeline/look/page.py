"""The page of a pool as HTML."""

from __future__ import annotations

import base64
import io
import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from filters import survivor_text
from manifests import disk
from manifests.layout import PoolLayout
from manifests.text import printable
from manifests.web_page import bars, chip, colour, details, html_page, note, table
from pipeline.look.survey import (
    Group,
    NumberColumn,
    PoolRows,
    Survey,
    ValueLine,
    ViewEffects,
    beside_thresholds,
    bin_counts,
    copies,
    counts_below,
    example_groups,
    histogram,
    ladder,
    positions,
    sql_name,
    threshold_at,
    value_tables,
    view_thresholds,
)

# --------------------------------------------------------------------------------------------------
# The sections of the page as HTML. Text is escaped here; "" where there is nothing to show.


SHOWN_RULES = 1_000  # lines of a table of rules
SHOWN_BARS = 60  # of a funnel
SHOWN_PROBLEMS = 12
SCORE_KINDS = ("clip_score", "clip_loss", "head")  # filters whose column is a model's score
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
                "pool with clipmill audit verify"
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
    body = bars(lines, title)
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
        return note("The pool has no view: clipmill filter POOL --recipe RECIPE makes them.")
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
    """The columns with a finite value: scores of a model first, then what a view cuts by rank, then
    columns of other filters, then the sidecar's."""
    able = [one for one in survey.columns.values() if histogram(one) is not None]
    sets = survey.rows.sets
    calls = " ".join(call for view in survey.rows.views for call in view.document.thresholds)

    def order(column: NumberColumn) -> tuple[bool, bool, bool]:
        kind = sets[column.name].filter_kind if column.name in sets else ""
        is_cut = re.search(rf"\(\s*{re.escape(column.name)}\s*,", calls)
        return (kind not in SCORE_KINDS, not is_cut, column.name not in sets)

    return sorted(able, key=order)


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
    rows, empty = [], []
    for column in survey.columns.values():
        if not len(column.values):
            empty.append(column.name)
            continue
        source, meaning = survey.rows.meanings.get(column.name, ("", ""))
        stats = [_value(column, share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)]
        counts = [f"{len(column.values):,}", f"{column.nulls:,}", f"{column.nans:,}"]
        name = f'<span title="{escape(meaning)}">{escape(column.name)}</span>'
        rows.append([name, escape(source), *counts, *stats])
    head_ = ["column", "from", "values", "NULL", "NaN", "least", "1 %", "median", "99 %", "most"]
    numbers = table(head_, rows, range(2, 10), "Stored rows by column")
    text = note("Values far outside of the others are in the first and the last bar.")
    if empty:
        numbers += note(f"Without a value, and not shown: {', '.join(empty)}.")
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


def duplicates(survey: Survey, data: Mapping[str, Any]) -> str:
    """The largest groups of copies, and by what their survivors were chosen; the script shows their
    images."""
    if not data["copies"]:
        return ""
    texts = ["The largest groups of copies. Sizes count stored rows."]
    for column, document in survey.rows.sets.items():
        if document.filter_kind == "duplicate" and column.endswith("_survivor"):
            texts.append(f"{document.name}: {survivor_text(document.options)}.")
    return f'{note(" ".join(texts))}<div id="copies"></div>'


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


# --------------------------------------------------------------------------------------------------
# The page of a pool as one HTML document: funnel, views, rules and tables as text, the rest by
# its script. It asks for nothing outside, or only for the server that sent it.


HERE = Path(__file__).parent
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data: 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'\">"
)


def render(survey: Survey, data: Mapping[str, Any]) -> str:
    """The whole page. data: what `page_data` gave for the survey."""
    bodies = [
        ("From links to images", funnel(survey)),
        ("Views", views_table(survey)),
        ("Choose a threshold", threshold(survey)),
        ("Rules of the views", rules(survey)),
        ("Columns", columns(survey)),
        ("Domains, languages, values", values(data)),
        ("Duplicates", duplicates(survey, data)),
        ("Images", images(data)),
    ]
    links, parts = [], []
    for number, (title, body) in enumerate(bodies, start=1):
        if body:
            links.append(f'<a href="#s{number}">{escape(title)}</a>')
            parts.append(f'<section id="s{number}"><h2>{escape(title)}</h2>{body}</section>')
    bar = (
        f'<div class="bar">{view_choice(survey)}'
        f'<nav aria-label="Contents">{" ".join(links)}</nav></div>'
    )
    body = head(survey) + bar + "".join(parts)
    body += "<noscript>" + note("Charts and images need JavaScript.") + "</noscript>"
    body += f'<script type="application/json" id="data">{_json(data)}</script>'
    style = (HERE / "page.css").read_text()
    script = (HERE / "page.js").read_text()
    return html_page(
        f"{pool_name(survey)}: the pool",
        body,
        style,
        f"(() => {{\n{script}\n}})();",
        POLICY,
    )


def _json(data: Mapping[str, Any]) -> str:
    """JSON inside a script element: no character ends it, whatever a caption holds."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --------------------------------------------------------------------------------------------------
# Images of committed rows, small: bytes from the tar by offset, encoded again as JPEG.


SIDE = 96  # pixels of the longer side
QUALITY = 80
MOST_PIXELS = 64_000_000  # of an image that is decoded
MOST_BYTES = 64 * 2**20  # of an image that is read
READERS = 8


class NoImage(ValueError):
    """A row has no image that can be shown."""


def are_current(rows: PoolRows, shards: Iterable[int]) -> bool:
    """True where the committed shards are still those that were read."""
    layout = PoolLayout(rows.commits.pool)

    def check(shard: int) -> bool:
        position = rows.commits.position(shard)
        if position is None:
            return False
        try:
            record = disk.read_json(layout.commit_record(shard))
        except (OSError, ValueError):
            return False
        known = rows.commits.column("sidecar_sha256")[position].as_py().hex()
        return isinstance(record, dict) and record.get("sidecar_sha256") == known

    different = sorted(set(shards))
    if len(different) < 2 or not disk.is_url(layout.root):
        return all(map(check, different))
    with ThreadPoolExecutor(READERS) as threads:  # a store answers each after about 30 ms
        return all(threads.map(check, different))


def image_bytes(rows: PoolRows, row: int) -> bytes:
    """The image of a stored row as it lies in the tar. NoImage where there is none any more."""
    if not rows.stored[row]:
        raise NoImage("the row is not stored")
    shard, _ = rows.location(row)
    offset = rows.table["image_offset"][row].as_py()
    length = rows.table["image_length"][row].as_py()
    if offset is None or length is None or not 0 < length <= MOST_BYTES:
        raise NoImage("the row has no image of a size that can be shown")
    try:
        data = disk.read_bytes(rows.commits.tar(shard), offset, length)
    except (OSError, ValueError) as error:
        raise NoImage(f"its tar cannot be read: {type(error).__name__}") from None
    if len(data) != length:
        raise NoImage("its tar is shorter than the sidecar says")
    return data


def thumbnail(data: bytes, side: int = SIDE) -> bytes:
    """An image as a JPEG of at most `side` pixels, without metadata. NoImage for what is none."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise NoImage("the image has too many pixels")
                image.draft("RGB", (side, side))
                small = image.convert("RGB")
    except NoImage:
        raise
    except Exception as error:  # a decoder raises nearly anything for damaged bytes
        raise NoImage(f"the image cannot be decoded: {type(error).__name__}") from None
    small.thumbnail((side, side))
    sink = io.BytesIO()
    small.save(sink, "JPEG", quality=QUALITY)
    return sink.getvalue()


def data_uris(rows: PoolRows, wanted: Iterable[int], most_bytes: int) -> dict[int, str]:
    """Rows to data URIs; "" where an image cannot be shown. It ends before the URIs have more than
    `most_bytes`: the rows after that are left out."""

    def read(row: int) -> str:
        try:
            data = thumbnail(image_bytes(rows, row))
        except NoImage:
            return ""
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"

    ordered = list(dict.fromkeys(wanted))
    uris: dict[int, str] = {}
    total = 0
    with ThreadPoolExecutor(READERS) as threads:
        for start in range(0, len(ordered), 8 * READERS):
            batch = ordered[start : start + 8 * READERS]
            for row, uri in zip(batch, threads.map(read, batch), strict=True):
                total += len(uri)
                if total > most_bytes:
                    return uris
                uris[row] = uri
    return uris


# --------------------------------------------------------------------------------------------------
# What the script of the page works with, as plain values: columns, counts and examples.
#
# In a file everything is inside the page, within bounds. A server sends the images, and answers
# for thresholds between those that the page has.


POSITIONS = 4_096  # thresholds of a slider
ALL_POSITIONS = 600_000  # counts of all sliders of a file, about 3 bytes each
FEWEST_POSITIONS = 256
MOST_CAPTION = 300  # characters of a caption that are shown
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a pool goes into a file."""

    images: int = 400
    image_bytes: int = 6 * MEBIBYTE


def page_data(
    survey: Survey, bounds: Bounds | None = None, *, similar: bool = False
) -> dict[str, Any]:
    """The data of a page: with `bounds` that of a file, without them that of a server.

    similar: the server can say what is most like an image.
    """
    shares = _positions_per_column(survey)
    columns = []
    for column in survey.columns.values():
        columns.append(_column(survey, column, shares))
    views = list(survey.detailed.values())
    groups = example_groups(survey.rows, views)
    groups += beside_thresholds(survey.rows, views, survey.columns)
    of_copies = copies(survey.rows)
    all_groups = [*groups, *of_copies]
    uris: dict[int, str] = {}
    if bounds is not None:
        uris = data_uris(survey.rows, _by_turns(survey, all_groups, bounds), bounds.image_bytes)
        shown = list(uris)
    else:
        shown = list(dict.fromkeys(row for group in all_groups for row in group.rows))
    images = image_records(survey, shown, survey.columns)
    for image, uri in zip(images, uris.values(), strict=False):
        image["src"] = uri
    index = {row: number for number, row in enumerate(shown)}
    return {
        "server": bounds is None,
        "stored": int(survey.rows.stored.sum()),
        "rows": survey.rows.table.num_rows,
        "views": [_view(survey, name) for name in survey.detailed],
        "columns": columns,
        "values": _values(survey),
        "images": images,
        "similar": similar,
        "copies": [_group(group, index) for group in of_copies],
        "groups": [_group(group, index) for group in groups],
    }


def _positions_per_column(survey: Survey) -> int:
    """Thresholds of each slider, so that all of them together stay within a bound."""
    counts = max(1, len(survey.columns)) * (2 + len(survey.detailed))
    return max(FEWEST_POSITIONS, min(POSITIONS, ALL_POSITIONS // counts))


def _view(survey: Survey, name: str) -> dict[str, Any]:
    effects = survey.effects[name]
    return {
        "name": name,
        "kept": effects.kept,
        "rules": [rule.name for rule in effects.rules],
        "others": sorted(effects.others),
    }


def _column(survey: Survey, column: NumberColumn, thresholds: int) -> dict[str, Any]:
    source, meaning = survey.rows.meanings.get(column.name, ("", ""))
    plain: dict[str, Any] = {
        "name": column.name,
        "sql": sql_name(column.name),
        "source": source,
        "meaning": meaning,
        "n": len(column.values),
        "nulls": column.nulls,
        "nans": column.nans,
    }
    shown = histogram(column)
    if shown is None:
        return plain
    kept = {}
    for name, view in survey.detailed.items():
        assert view.kept is not None
        kept[name] = bin_counts(column, shown, view.kept)
    plain["histogram"] = {
        "edges": [float(f"{edge:.6g}") for edge in shown.edges],
        "counts": bin_counts(column, shown, survey.rows.stored),
        "kept": kept,
        "cut": [shown.cut_below, shown.cut_above],
    }
    plain["marks"] = _marks(survey, column.name)
    plain["replaced"] = {
        name: list(effects.replaced(column.name)) for name, effects in survey.effects.items()
    }
    ranks = positions(column, thresholds)
    plain["thresholds"] = [threshold_at(column, rank) for rank in ranks.tolist()]
    plain["scopes"] = {}
    for name in ("", *survey.detailed):
        scope = survey.scope(name, column.name)
        below = counts_below(column, scope, ranks)
        plain["scopes"][name] = {
            "rows": int(scope.sum()),
            "values": int(scope[column.rows].sum()),
            "steps": np.diff(below, prepend=0).tolist(),
        }
    return plain


def _marks(survey: Survey, column: str) -> dict[str, list[float]]:
    """The thresholds on a column: view -> numbers."""
    marks = {}
    for name, view in survey.detailed.items():
        of_view = [value for _, value in view_thresholds(view, {column})]
        if of_view:
            marks[name] = of_view
    return marks


def _by_turns(survey: Survey, groups: Sequence[Group], bounds: Bounds) -> list[int]:
    """The rows to embed: groups and ladders in turn, so that a bound cuts all of them alike."""
    ladders = [ladder(survey.rows, column) for column in survey.columns.values()]
    queues = [list(group.rows) for group in groups] + [list(rows) for rows in ladders]
    chosen: dict[int, None] = {}
    longest = max([len(queue) for queue in queues] or [0])
    for turn in range(longest):
        for queue in queues:
            if turn < len(queue) and len(chosen) < bounds.images:
                chosen[queue[turn]] = None
    return list(chosen)


def image_records(
    survey: Survey, wanted: Iterable[int], columns: Collection[str]
) -> list[dict[str, Any]]:
    """What the page says of some rows: where they lie, the caption, what each view decided, their
    values of some columns of numbers."""
    rows = survey.rows
    # Single values: Table.take copies whole columns, 0.1 s for a million rows.
    uids, texts = rows.table["uid"], rows.table["caption"]
    values = {name: rows.table[name] for name in columns}
    records = []
    for row in wanted:
        shard, of_shard = rows.location(row)
        rules, passes = {}, {}
        for name, view in survey.detailed.items():
            assert view.first_rule is not None
            rules[name] = view.first_rule[row].as_py()
            others = survey.effects[name].others
            passes[name] = [column for column in others if others[column][row]]
        records.append(
            {
                "shard": shard,
                "row": of_shard,
                "uid": uids[row].as_py(),
                "caption": _shown(texts[row].as_py() or ""),
                "rules": rules,
                "passes": passes,  # columns whose other rules of the view the row passes
                "values": {name: _number(values[name][row].as_py()) for name in values},
            }
        )
    return records


def _shown(text: str) -> str:
    """A caption as the page shows it: on one line, control and direction characters escaped."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MOST_CAPTION else f"{line[:MOST_CAPTION]}…"


def _number(value: Any) -> float | int | None:
    """A number that JSON can hold; NaN and infinite values are no numbers there."""
    if value is None:
        return None
    return value if np.isfinite(value) else None


def _group(group: Group, index: dict[int, int]) -> dict[str, Any]:
    images = [index[row] for row in group.rows if row in index]
    return {
        "view": group.view,
        "title": group.title,
        "rule": group.rule,
        "of": group.of,
        "survivors": [index[row] for row in group.survivors if row in index],
        "images": images,
    }


def _values(survey: Survey) -> list[dict[str, Any]]:
    kept = {name: view.kept for name, view in survey.detailed.items() if view.kept is not None}
    shown = []
    for values in value_tables(survey.rows, kept):
        if not any(line.stored for line in values.lines):
            continue
        lines = [_line(line) for line in values.lines]
        if values.null.rows:
            lines.append({**_line(values.null), "name": "(no value)"})
        if values.other.rows:
            rest = values.distinct - len(values.lines)
            lines.append({**_line(values.other), "name": f"({rest:,} other values)"})
        shown.append({"column": values.column, "distinct": values.distinct, "lines": lines})
    return shown


def _line(line: ValueLine) -> dict[str, Any]:
    return {
        "name": printable(line.value or ""),
        "rows": line.rows,
        "stored": line.stored,
        "kept": dict(line.kept),
    }
