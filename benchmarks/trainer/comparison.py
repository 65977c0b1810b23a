"""Reports side by side: the ratio of every cell, and statistics over repeats and seeds.

Reports of the same device, commit and options, but for the seed, are repeats of one measurement:
they make one column. The first column is what the others are divided by. What only one report has
is listed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clipmill.bench.report_form import Cell, Report
from clipmill.bench.tables import NONE, short, text_table
from clipmill.bench.timing import spread_of
from clipmill.manifests import disk

# Figure -> heading, and whether more is better. Those that no cell has are left out.
COMPARED = {
    "samples_per_s": ("samples/s", True),
    "global_batches_per_s": ("batches/s", True),
    "step_ms_p50": ("step ms", False),
    "latency_ms_p50": ("latency ms", False),
    "peak_memory_bytes": ("bytes", False),
}
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The reports of one measurement: a letter, and the cells of all of them by key."""

    letter: str
    names: tuple[str, ...]
    reports: tuple[Report, ...]
    cells: dict[Key, tuple[Cell, ...]]  # measured ones

    def mean(self, key: Key, figure: str) -> float | None:
        """The mean of a figure over the reports; None where none has it."""
        values = []
        for cell in self.cells.get(key, ()):
            value = cell.figures.get(figure)
            if value is not None:
                values.append(value)
        return statistics.fmean(values) if values else None

    def rates(self, key: Key) -> list[float]:
        """Samples/s of every repeat of every report."""
        rates: list[float] = []
        for cell in self.cells.get(key, ()):
            rates += cell.rates
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Columns, and the rows that one of them has at least."""

    columns: tuple[Column, ...]
    keys: tuple[Key, ...]
    ignores_dtype: bool  # each column has one dtype, and they differ: rows are aligned without it

    def rows(self, figure: str) -> list[tuple[Key, list[float | None], list[float | None]]]:
        """By key: the means of a figure in every column, and the later ones as multiples of the
        first. A multiple above 1 is better than the first.
        """
        more_is_better = COMPARED[figure][1]
        rows = []
        for key in self.keys:
            means = [column.mean(key, figure) for column in self.columns]
            ratios: list[float | None] = []
            for mean in means[1:]:
                if not means[0] or not mean:
                    ratios.append(None)
                else:
                    ratios.append(mean / means[0] if more_is_better else means[0] / mean)
            if any(mean is not None for mean in means):
                rows.append((key, means, ratios))
        return rows


def compare_reports(names: Sequence[str], reports: Sequence[Report]) -> Comparison:
    """Align the cells of reports. ValueError for reports of different modes."""
    modes = {report.mode for report in reports}
    if len(modes) > 1:
        listed = ", ".join(f"{n} is of {r.mode}" for n, r in zip(names, reports, strict=True))
        raise ValueError(f"reports of different modes have no figures in common: {listed}")
    groups: dict[str, list[int]] = {}
    for number, report in enumerate(reports):
        groups.setdefault(_measurement_of(report), []).append(number)
    dtypes = []
    for members in groups.values():
        dtypes.append({cell.dtype for m in members for cell in reports[m].cells})
    one_each = all(len(names_of) == 1 for names_of in dtypes)
    ignores_dtype = one_each and len(set.union(*dtypes)) > 1
    columns = []
    for letter, members in zip(_letters(len(groups)), groups.values(), strict=True):
        cells: dict[Key, tuple[Cell, ...]] = {}
        for member in members:
            for cell in reports[member].cells:
                if cell.measured:
                    key = _key(cell, ignores_dtype)
                    cells[key] = (*cells.get(key, ()), cell)
        columns.append(
            Column(
                letter=letter,
                names=tuple(names[m] for m in members),
                reports=tuple(reports[m] for m in members),
                cells=cells,
            )
        )
    keys: dict[Key, None] = {}
    for column in columns:
        keys |= dict.fromkeys(column.cells)
    return Comparison(columns=tuple(columns), keys=tuple(keys), ignores_dtype=ignores_dtype)


def _letters(count: int) -> list[str]:
    letters = []
    for number in range(count):
        letters.append(chr(ord("A") + number) if number < 26 else f"#{number + 1}")
    return letters


def _measurement_of(report: Report) -> str:
    """What repeats of a measurement have in common, as a hash: all but the seed and the time."""
    options = dict(report.options)
    changes = options.get("changes")
    if isinstance(changes, dict):
        changes = {k: v for k, v in changes.items() if k != "seed"}
    same = [
        report.mode,
        report.commit,
        disk.to_plain(report.machine),
        {**options, "changes": changes},
    ]
    return disk.content_hash(same)


def _key(cell: Cell, ignores_dtype: bool) -> Key:
    """What is the same for cells of two reports that are compared."""
    dtype = "" if ignores_dtype else cell.dtype
    sizes = (cell.global_batch, cell.batch, cell.ranks)
    return (cell.model, cell.variant, cell.parallel, dtype, *sizes, cell.scaling)


# --- as text --------------------------------------------------------------------------------------


def comparison_lines(result: Comparison) -> list[str]:
    """What was compared, the ratios, the spread of the repeats, and what only some reports have."""
    text = []
    for column in result.columns:
        text += _about(column)
    if result.ignores_dtype:
        text.append("the dtypes differ: a ratio is that of device and dtype together")
    if len(result.columns) > 1:
        for figure, (heading, more) in COMPARED.items():
            rows = result.rows(figure)
            if rows:
                better = "" if more else ", inverted: above 1 is less of it"
                text += ["", f"{heading}; ratios to A{better}"]
                text += text_table(*_ratio_table(result, rows), 1)
    text += _spread_lines(result)
    text += _missing_lines(result)
    return text


def _about(column: Column) -> list[str]:
    report = column.reports[0]
    machine = report.machine
    lines = [f"{column.letter}: {', '.join(column.names)}"]
    device = f"{machine.gpus} x {machine.device}" if machine.kind == "cuda" else machine.device
    dtypes = ", ".join(dict.fromkeys(cell.dtype for cell in report.cells if cell.dtype))
    commit = "no commit" if report.commit is None else f"commit {report.commit[:12]}"
    commit += "-dirty" if (report.commit or "").endswith("-dirty") else ""
    words = [device, f"{machine.cores} cores", dtypes, f"torch {machine.versions.get('torch')}"]
    lines.append("   " + ", ".join(word for word in [*words, commit, report.date] if word))
    for name, each in zip(column.names, column.reports, strict=True):
        if not each.ended:
            lines.append(f"   {name} is of a command that was stopped before its end")
        for cell in each.cells:
            if not cell.measured:
                lines.append(f"   {cell.state} in {name}: {cell.label}: {cell.reason}")
    return lines


def _names(key: Key) -> list[str]:
    """A row's name: the words of a key in one column, and its numbers."""
    model, variant, parallel, dtype, whole, batch, ranks, scaling = key
    layout = "" if parallel == "dp" else parallel
    words = ", ".join(word for word in (model, variant, layout, dtype, scaling) if word)
    return [words, str(ranks), str(batch), str(whole)]


def _ratio_table(
    result: Comparison, rows: list[tuple[Key, list[float | None], list[float | None]]]
) -> tuple[list[str], list[list[str]]]:
    letters = [column.letter for column in result.columns]
    head = ["cell", "ranks", "batch", "global batch", *letters]
    head += [f"{letter}/A" for letter in letters[1:]]
    table = []
    for key, means, ratios in rows:
        numbers = [short(mean, 4) for mean in means]
        table.append([*_names(key), *numbers, *(_times(ratio) for ratio in ratios)])
    return head, table


def _times(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}x"


def _spread_lines(result: Comparison) -> list[str]:
    """Mean, SD, min and max of samples/s over the repeats, where a cell has several."""
    rows = []
    for key in result.keys:
        for column in result.columns:
            rates = column.rates(key)
            if len(rates) > 1:
                spread = spread_of(rates)
                values = (spread.mean, spread.sd, spread.min, spread.max)
                numbers = [short(value, 4) for value in values]
                rows.append([*_names(key), column.letter, str(spread.count), *numbers])
    if not rows:
        return []
    head = ["cell", "ranks", "batch", "global batch", "report", "repeats"]
    head += ["mean", "SD", "min", "max"]
    return ["", "samples/s over the repeats and seeds", *text_table(head, rows, 1)]


def _missing_lines(result: Comparison) -> list[str]:
    lines = []
    for key in result.keys:
        having = [column.letter for column in result.columns if key in column.cells]
        if len(having) < len(result.columns):
            name, ranks, batch, whole = _names(key)
            lines.append(
                f"only in {', '.join(having)}: {name}, {ranks} ranks, batch {batch}, global batch "
                f"{whole}"
            )
    return ["", *lines] if lines else []


def comparison_document(result: Comparison) -> dict[str, Any]:
    """The comparison as plain values, for --json."""
    columns = []
    for column in result.columns:
        columns.append(
            {
                "letter": column.letter,
                "reports": list(column.names),
                "device": column.reports[0].machine.device,
                "commit": column.reports[0].commit,
            }
        )
    figures: dict[str, list[dict[str, Any]]] = {}
    for figure in COMPARED:
        rows = []
        for key, means, ratios in result.rows(figure):
            name, ranks, batch, whole = _names(key)
            rows.append(
                {
                    "cell": name,
                    "ranks": int(ranks),
                    "batch": int(batch),
                    "global_batch": int(whole),
                    "means": means,
                    "ratios": ratios,
                }
            )
        if rows:
            figures[figure] = rows
    return {"columns": columns, "figures": figures}


# --- into a page ----------------------------------------------------------------------------------

END = "<!-- end -->"


def replace_block(path: str, command: str, lines: Sequence[str]) -> None:
    """Put lines, as preformatted text, into a Markdown page, between the comments of a command:
    `<!-- written by COMMAND -->` and `<!-- end -->`.

    ValueError for a page without them, and for a line that would end the text.
    """
    for line in lines:
        if END in line or line.startswith("```"):
            raise ValueError(f"a line would end the block of the page: {line!r}")
    page = disk.read_bytes(path).decode()
    start = f"<!-- written by {command} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{path} has no lines {start} and {END}; add them where the text belongs")
    body = "\n".join(["", "", "```text", *lines, "```", "", ""])
    disk.write_bytes(path, f"{before}{start}{body}{END}{after}".encode())
