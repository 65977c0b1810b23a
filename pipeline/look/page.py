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
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from clipmill.filters import survivor_text
from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.text import printable
from clipmill.manifests.web_page import page_templates
from clipmill.pipeline.look.survey import (
    Group,
    NumberColumn,
    PoolRows,
    Survey,
    beside_thresholds,
    bin_counts,
    copies,
    counts_below,
    example_groups,
    histogram,
    ladder,
    pool_funnel,
    positions,
    reason_lines,
    sql_name,
    threshold_at,
    value_tables,
    view_thresholds,
)

# --------------------------------------------------------------------------------------------------
# The page as one HTML document by `templates/pool.html`: funnel, views, rules and tables as text,
# the rest by its script. It asks for nothing outside, or only for the server that sent it.


SHOWN_BARS = 60  # of a funnel
SHOWN_PROBLEMS = 12
SCORE_KINDS = ("clip_score", "clip_loss", "head")  # filters whose column is a model's score
LONG_TEXT = 200  # characters of a rule or an address


def render(
    survey: Survey, data: Mapping[str, object], links: Mapping[str, str] | None = None
) -> str:
    """The whole page. data: what `page_data` gave for the survey. links: {file: title} of pages
    beside it."""
    templates = page_templates(
        Path(__file__).parent / "templates", funnel_steps=funnel_steps, value_at=value_at
    )
    templates.filters |= {"cut": cut, "printable": printable}
    columns = survey.columns.values()
    return templates.get_template("pool.html").render(
        s=survey,
        links=links,
        data=data,
        json=_json(data),
        # A page that is passed on does not say where the pool lies.
        name=printable(survey.pool.rstrip("/").rpartition("/")[2] or survey.pool),
        fetch=survey.counts.fetch,
        funnel_of_pool=pool_funnel(survey.counts),
        reasons=reason_lines(survey.counts, survey.rows.table),
        size=_bytes(survey.counts.fetch.bytes),
        problems=_problems(survey),
        sliding=_sliding(survey),
        empty_columns=[one.name for one in columns if not len(one.values)],
        survivors=_survivors(survey),
    )


def _problems(survey: Survey) -> list[str]:
    """What is wrong, a line each."""
    problems = [*survey.counts.problems, *survey.rows.problems]
    for effects in survey.effects.values():
        if effects.disagrees:
            problems.append(
                f"view {effects.name}: its rules keep other rows than its masks say; verify the "
                "pool with clipmill audit verify"
            )
    more = len(problems) - SHOWN_PROBLEMS
    return problems[:SHOWN_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])


def funnel_steps(steps: Sequence[tuple[str, int]]) -> list[tuple[str, int, str]]:
    """The bars of a funnel; of very many steps the first and the last."""
    first = max(1, steps[0][1]) if steps else 1
    shown = [*steps]
    if len(steps) > SHOWN_BARS:
        shown = [*steps[: SHOWN_BARS // 2], *steps[-SHOWN_BARS // 2 :]]
    rows = []
    for name, count in shown:
        rows.append((cut(printable(name), 26), count, f"{count:,} ({100 * count / first:.1f} %)"))
    return rows


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


def value_at(column: NumberColumn, share: float) -> str:
    """The value at a rank of the sorted values."""
    value = column.values[round(share * (len(column.values) - 1))]
    return f"{value:,}" if column.values.dtype.kind != "f" else f"{value:.5g}"


def _survivors(survey: Survey) -> list[str]:
    """By what the survivors of copies were chosen."""
    texts = []
    for column, document in survey.rows.sets.items():
        if document.filter_kind == "duplicate" and column.endswith("_survivor"):
            texts.append(f"{document.name}: {survivor_text(document.options)}.")
    return texts


def cut(text: str, most: int = LONG_TEXT) -> str:
    """A long text with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bytes(size: int) -> str:
    """A number of bytes as a person reads it."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.3g} {unit}"
    return f"{size} bytes"


def _json(data: Mapping[str, object]) -> Markup:
    """JSON inside a script element: no character ends it, whatever a caption holds."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


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

    with ThreadPoolExecutor(READERS) as threads:  # a store answers each after about 30 ms
        return all(threads.map(check, sorted(set(shards))))


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
) -> dict[str, object]:
    """The data of a page: with `bounds` that of a file, without them that of a server.

    similar: the server can say what is most like an image.
    """
    # Thresholds of each slider, so that all of them together stay within a bound.
    counts = max(1, len(survey.columns)) * (2 + len(survey.detailed))
    thresholds = max(FEWEST_POSITIONS, min(POSITIONS, ALL_POSITIONS // counts))
    columns = [_column(survey, column, thresholds) for column in survey.columns.values()]
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
    shown_views = []
    for name, effects in survey.effects.items():
        names = [rule.name for rule in effects.rules]
        plain = {"name": name, "kept": effects.kept, "rules": names}
        shown_views.append({**plain, "others": sorted(effects.others)})
    kept = {name: view.kept for name, view in survey.detailed.items() if view.kept is not None}
    return {
        "server": bounds is None,
        "stored": int(survey.rows.stored.sum()),
        "rows": survey.rows.table.num_rows,
        "views": shown_views,
        "columns": columns,
        "values": list(value_tables(survey.rows, kept)),
        "images": images,
        "similar": similar,
        "copies": [_group(group, index) for group in of_copies],
        "groups": [_group(group, index) for group in groups],
    }


def _column(survey: Survey, column: NumberColumn, thresholds: int) -> dict[str, object]:
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


def _group(group: Group, index: dict[int, int]) -> dict[str, object]:
    images = [index[row] for row in group.rows if row in index]
    return {
        "view": group.view,
        "title": group.title,
        "rule": group.rule,
        "of": group.of,
        "survivors": [index[row] for row in group.survivors if row in index],
        "images": images,
    }
