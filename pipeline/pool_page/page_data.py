"""What the script of the page works with, as plain values: columns, counts and examples.

In a file everything is inside the page, within bounds. A server sends the images, and answers for
thresholds between those that the page has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manifests.text import printable
from pipeline.pool_page.example_rows import (
    Group,
    beside_thresholds,
    copies,
    example_groups,
    ladder,
    view_thresholds,
)
from pipeline.pool_page.histograms import bin_counts, histogram
from pipeline.pool_page.number_columns import (
    NumberColumn,
    counts_below,
    positions,
    sql_name,
    threshold_at,
)
from pipeline.pool_page.survey import Survey
from pipeline.pool_page.thumbnails import data_uris
from pipeline.pool_page.value_tables import ValueLine, value_tables

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
        "images": images,
    }


def _values(survey: Survey) -> list[dict[str, Any]]:
    kept = {name: view.kept for name, view in survey.detailed.items() if view.kept is not None}
    shown = []
    for table in value_tables(survey.rows, kept):
        lines = [_line(line) for line in table.lines]
        if table.null.rows:
            lines.append({**_line(table.null), "name": "(no value)"})
        if table.other.rows:
            rest = table.distinct - len(table.lines)
            lines.append({**_line(table.other), "name": f"({rest:,} other values)"})
        shown.append({"column": table.column, "distinct": table.distinct, "lines": lines})
    return shown


def _line(line: ValueLine) -> dict[str, Any]:
    return {
        "name": printable(line.value or ""),
        "rows": line.rows,
        "stored": line.stored,
        "kept": dict(line.kept),
    }
