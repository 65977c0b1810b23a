"""A decision in the forms of others: Markdown, LaTeX, CSV and one SVG drawing. Pure.

All have the words and the digits of the terminal. Names of strangers are escaped in each form.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from clipmill.manifests import disk
from clipmill.manifests.text import printable
from clipmill.manifests.web_page import ticks
from clipmill.verdict import wording
from clipmill.verdict.decide.page import (
    ARMS_CAPTION,
    BASELINE,
    NOT_COMPARED,
    arm_lines,
    arm_rows,
    arm_scores,
    headline,
    runs_head,
    seen_texts,
    shown_band,
    task_texts,
    title_of,
    unit_mark,
)
from clipmill.verdict.decide.verdicts import Decision
from clipmill.verdict.pages import charts
from clipmill.verdict.stats.analysis import AVERAGE
from clipmill.verdict.stats.comparison import Verdict
from clipmill.verdict.tables.account import account_of, is_guess

# Words of --fail-on, and the verdicts that each is for; None: the arm is not compared.
FAILURES: dict[str, tuple[Verdict | None, ...]] = {
    "worse": ("worse", "higher", "lower"),  # which may be worse: nobody says
    "better": ("better", "higher", "lower"),
    "different": ("better", "worse", "higher", "lower"),
    "undecided": ("not distinguishable", "nothing varies", None),
}


def check_words(words: Sequence[str]) -> list[str]:
    """The words of --fail-on, each of them several with commas between. ValueError for another one
    than those of FAILURES.
    """
    names = [name.strip() for word in words for name in word.split(",")]
    for name in names:
        if name not in FAILURES:
            hint = disk.did_you_mean(name, FAILURES)
            raise ValueError(f"--fail-on {name!r}{hint} is none of {', '.join(FAILURES)}")
    return names


def failed(d: Decision, words: Sequence[str]) -> list[str]:
    """The arms whose verdict on the task that decides is one of those asked for. words: as in
    `check_words`.
    """
    asked: set[Verdict | None] = set()
    for name in check_words(words):
        asked.update(FAILURES[name])
    verdicts: dict[str, Verdict | None] = {}
    for arm, _, _, row in arm_rows(d):
        verdicts[arm] = None if row is None else row.verdict
    return [arm for arm, verdict in verdicts.items() if arm != d.baseline and verdict in asked]


# --- tables ---------------------------------------------------------------------------------------


def to_markdown(d: Decision) -> str:
    """A table of the arms, and below it what the terminal says, for a pull request."""
    return markdown(headline(d), _table(d), (1, 2), _remarks(d))


def to_latex(d: Decision) -> str:
    r"""A tabular of booktabs, to be read by \input; what the terminal says stands in comments."""
    return latex(headline(d), _table(d), "lrrll", (2, 3), _remarks(d))


def markdown(
    title: str, table: Sequence[Sequence[str]], right: Sequence[int], remarks: Iterable[str]
) -> str:
    """A title, a table whose first row is its head, and paragraphs below it. right: the columns
    that are aligned to the right."""
    rows = [[_in_markdown(cell) for cell in row] for row in table]
    widths = [max(3, *map(wording.cells, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for place in right:
        rows[1][place] = f"{rows[1][place][1:]}:"
    lines = []
    for row in rows:
        texts = []
        for text, width in zip(row, widths, strict=True):
            texts.append(text + " " * (width - wording.cells(text)))
        lines.append(f"| {' | '.join(texts)} |")
    parts = [f"**{_in_markdown(title)}**", "\n".join(lines)]
    return "\n\n".join([*parts, *map(_in_markdown, remarks)]) + "\n"


def latex(
    title: str,
    table: Sequence[Sequence[str]],
    columns: str,
    formulas: Sequence[int],
    remarks: Iterable[str],
) -> str:
    """A tabular of booktabs whose first row is its head; a title and remarks stand in comments.
    columns: how they are aligned. formulas: those of numbers with signs.
    """
    head, *rows = table
    comments = [r"\usepackage{booktabs}", title, *remarks]
    lines = [f"% {printable(text)}" for text in comments]
    lines += [f"\\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [_latex_row(map(_in_latex, head)), r"\midrule"]
    for row in rows:
        cells = enumerate(row)
        lines.append(_latex_row(_in_math(c) if n in formulas else _in_latex(c) for n, c in cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _table(d: Decision) -> list[tuple[str, str, str, str, str]]:
    """The head and a row for each arm, as in the terminal."""
    unit = wording.unit_of_difference(d.result.unit) or "difference"
    score_head = f"{title_of(d)}{unit_mark(d.result.unit)}"
    rows = [("arm", runs_head(d), score_head, f"{unit} to {d.baseline} [95 %]", "verdict")]
    for arm, runs, score, row in arm_rows(d):
        words = ("", BASELINE if arm == d.baseline else NOT_COMPARED)
        if row is not None:
            words = (wording.difference(row), row.verdict)
        rows.append((arm, str(runs), score, *words))
    return rows


def _remarks(d: Decision) -> list[str]:
    """What the terminal says below the table."""
    refusals = [f"Not decided: {text}." for text in d.refusals]
    return [f"{ARMS_CAPTION}.", *seen_texts(d), *task_texts(d), *refusals]


def _in_markdown(text: str) -> str:
    """Text in which Markdown finds no table, tag, link, formula or emphasis: none is in a_b."""
    special = r"(?<=[A-Za-z0-9])_+(?=[A-Za-z0-9])|([\\`*_<>|~$&#]|\](?=[(\[]))"
    return re.sub(special, lambda match: f"\\{match[1]}" if match[1] else match[0], printable(text))


LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    wording.MINUS: "$-$", wording.DASH: "--", "±": r"$\pm$", "÷": r"$\div$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}  # fmt: skip


def _in_latex(text: str) -> str:
    """Text in which LaTeX finds no command and no ligature. Letters stay, as UTF-8."""
    apart = re.sub(r"([-`',])(?=\1)|([?!])(?=`)", "\\g<0>\0", printable(text))
    return "".join(LATEX.get(letter, letter) for letter in apart).replace("\0", "{}")


def _in_math(text: str) -> str:
    r"""Numbers of the terminal as a formula: `$34.1 \pm 1.0$`, `$3.0 \times 10^{-5}$`."""
    if text in ("", wording.DASH):
        return _in_latex(text)
    plain = text.replace(wording.MINUS, "-").replace("±", r"\pm")
    plain = re.sub(r"e\+?(-?)0*(\d+)", r" \\times 10^{\1\2}", plain)
    spaced = plain.replace(" [", r"\ [").replace(", ", r",\ ")
    return f"${spaced}$"


def _latex_row(cells: Iterable[str]) -> str:
    """A row; `{}` stands before what would be an argument of the end of the row above."""
    text = " & ".join(cells)
    return f"{'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"


COLUMNS = (
    "task", "metric", "arm", "baseline", "runs", "mean", "sd", "difference", "low", "high",
    "p_adjusted", "verdict", "unit", "direction",
)  # fmt: skip


ExportRow = tuple[str | int | float | None, ...]


def export_rows(d: Decision) -> list[ExportRow]:
    """A row for each arm and task, with COLUMNS and full precision; None: not known.

    The task that decides comes first. Values and differences of the unit `share` are 0 to 1.
    """
    rows: list[ExportRow] = []
    others = {task: result for task, result in d.tasks.items() if task != d.task}
    for task, result in {d.task: d.result, **others}.items():
        means = arm_scores(d, task)
        compared = {row.arm: row for row in result.comparisons}
        metric = d.metric if task == d.task else result.metric
        for arm in (d.baseline, *(arm for arm in d.arms if arm != d.baseline)):
            one, row = means.get(arm), compared.get(arm)
            scores = (one.n, one.mean, one.sd) if one else (None, None, None)
            noted: ExportRow = (*[None] * 4, BASELINE if arm == d.baseline else None)
            if row is not None:
                noted = (row.difference, row.low, row.high, row.p_adjusted, row.verdict)
            ends = (result.unit, _direction(d, task, metric))
            rows.append((task, metric, arm, d.baseline, *scores, *noted, *ends))
    return rows


class _Rows(io.StringIO):
    """Rows of a CSV with "\\n" at their ends. A writer to which that is the end leaves a "\\r" in a
    cell without quotes before Python 3.13; one to which "\\r\\n" is quotes both everywhere."""

    def write(self, row: str) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def to_csv(d: Decision) -> str:
    """The rows of `export_rows`; an empty cell: not known."""
    file = _Rows()
    csv.writer(file).writerows([COLUMNS, *export_rows(d)])
    return file.getvalue()


def _direction(d: Decision, task: str, metric: str) -> str:
    """`more` or `less`: what is better; "" where nobody says. An average has that of its tasks."""
    account = account_of(d)
    facts = [one for one in account.metrics if not is_guess(one.direction_from)] if account else []
    names = d.tasks if task == AVERAGE and task not in d.tasks else (task,)
    directions = {one.higher_is_better for one in facts if one.task in names}
    exact = {one.higher_is_better for one in facts if (one.task, one.metric) == (task, metric)}
    higher = exact or directions
    if len(higher) != 1:
        return ""
    return "more" if higher.pop() else "less"


# --- the drawing ----------------------------------------------------------------------------------

WIDTH, EDGE = 420.0, 14.0  # in a paper's column of 84 mm its letters have 6.8 points
SIZE, SMALL = 12, 11  # of letters
CELL = 0.6  # width of a cell of text, in sizes of letters; few letters are wider
LINE, STRIP = 16, 26  # heights of a line of text and of an arm's interval
INK, SOFT, GRID, ZONE = "#1d2228", "#59626c", "#d9dee3", "#eef1f4"
SHADES = {"better": "#0a6b46", "worse": "#ad2a1c"}
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
DRAWING_NOTE = "Bars: 95 % intervals, which hold for all arms together."


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """What is drawn of an arm: its name, on the right numbers and a word, below them its interval.
    shade: of the word and the interval.
    """

    name: str
    numbers: str
    word: str = ""
    shade: str = SOFT
    row: charts.ForestRow | None = None


def to_svg(d: Decision) -> str:
    """The intervals of all arms as one SVG file, which needs nothing outside of itself."""
    strips = []
    for line in arm_lines(d):
        numbers, word = f"{line.score} ({line.note})", line.word
        if line.d is not None:
            numbers, word = wording.difference(line.d), line.d.verdict
        shade = SHADES.get(word, SOFT)
        strips.append(Strip(name=line.name, numbers=numbers, word=word, shade=shade, row=line.row))
    unit, band, notes = wording.unit_of_difference(d.result.unit) or "difference", shown_band(d), []
    if d.result.comparisons:
        dots = " Dots: single runs." if d.means is None else ""
        notes.append(f"{DRAWING_NOTE}{dots}{' Grey: counts as equal.' * (band > 0)}")
    notes += [f"Not decided: {text}." for text in d.refusals]
    title = f"{title_of(d)}{unit_mark(d.result.unit)}"
    return drawing(title, headline(d), strips, f"{unit} to {d.baseline}", notes, band=band)


def drawing(
    title: str,
    description: str,
    strips: Sequence[Strip],
    unit: str,
    notes: Iterable[str],
    label: Callable[[float], str] = charts.signed,
    band: float = 0.0,
) -> str:
    """Intervals on one axis as an SVG file. description: for those who do not see it. label: of a
    number of the axis. band: of values around 0 that count as equal.
    """
    rows = [strip.row for strip in strips if strip.row is not None]
    axis = charts.forest(rows, band)
    body: list[str] = []
    y = _write(body, EDGE - 4, title, weight="bold")
    for strip in strips:
        y = _write_name(body, y + 4, strip)
        if strip.row is not None:
            y = _draw_interval(body, y, axis, strip.row, strip.shade)
    if rows:
        y += SMALL + 4
        for tick in ticks(axis.low, axis.high, 6):
            body.append(_text(_x(axis, tick), y, label(tick), SMALL, fill=SOFT, anchor="middle"))
        y = _write(body, y, unit, SMALL)
    for note in notes:
        y = _write(body, y, note, SMALL, fill=SOFT)
    size = f'width="{WIDTH:g}" height="{y + EDGE:g}" viewBox="0 0 {WIDTH:g} {y + EDGE:g}"'
    name = escape(printable(description))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}" '
        f'font-family="{FONT}">\n<title>{name}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _write_name(body: list[str], y: float, strip: Strip) -> float:
    """The name of an arm, and on the right its numbers and its word."""
    y = _write(body, y, strip.name)
    right = wording.cells(f"  {strip.numbers}  {strip.word}") * SMALL
    if (wording.cells(printable(strip.name)) * SIZE + right) * CELL > WIDTH - 2 * EDGE:
        y += LINE
    place = f'x="{WIDTH - EDGE:g}" y="{y:g}" font-size="{SMALL}" text-anchor="end" fill="{INK}"'
    style = f'fill="{strip.shade}" font-weight="bold"'
    word = f"<tspan {style}>{escape(strip.word)}</tspan>"
    body.append(f"<text {place}>{escape(strip.numbers)} {word}</text>")
    return y


def _draw_interval(
    body: list[str], y: float, axis: charts.Forest, row: charts.ForestRow, shade: str
) -> float:
    """The grid, the band of what counts as equal, the interval with its mean, a dot for a run."""
    bottom, middle = y + STRIP, y + STRIP - 8
    if axis.band > 0:
        left, right = _x(axis, -axis.band), _x(axis, axis.band)
        zone = f'x="{left:.1f}" y="{y + 3:g}" width="{right - left:.1f}" height="{STRIP - 3}"'
        body.append(f'<rect {zone} fill="{ZONE}"/>')
    for tick in ticks(axis.low, axis.high, 6):
        line = f"M{_x(axis, tick):.1f} {y + 3:g}V{bottom:g}"
        body.append(f'<path d="{line}" stroke="{SOFT if tick == 0 else GRID}"/>')
    if row.low is not None and row.high is not None:
        left, right, end = _x(axis, row.low), _x(axis, row.high), f"{middle - 3:g}v6"
        line = f"M{left:.1f} {middle:g}H{right:.1f}M{left:.1f} {end}M{right:.1f} {end}"
        body.append(f'<path d="{line}" stroke="{shade}" stroke-width="2"/>')
    for dot in row.dots:
        place = f'cx="{_x(axis, dot):.1f}" cy="{middle - 9:g}"'
        body.append(f'<circle {place} r="2" fill="{shade}" fill-opacity="0.5"/>')
    body.append(f'<circle cx="{_x(axis, row.mean):.1f}" cy="{middle:g}" r="3.5" fill="{shade}"/>')
    return bottom


def _x(axis: charts.Forest, value: float) -> float:
    return EDGE + axis.part(value) * (WIDTH - 2 * EDGE)


def _write(
    body: list[str], y: float, text: str, size: int = SIZE, fill: str = INK, weight: str = "normal"
) -> float:
    """Lines of text below y; their lower end."""
    for part in wording.wrapped(printable(text), int((WIDTH - 2 * EDGE) / (size * CELL))):
        y += LINE
        body.append(_text(EDGE, y, part, size, fill=fill, weight=weight))
    return y


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    *,
    fill: str = INK,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    style = f'font-size="{size}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:g}" {style}>{escape(printable(text))}</text>'
