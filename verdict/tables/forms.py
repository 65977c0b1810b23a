"""Bytes of results in the forms that people have, as one table of columns.

A file is read as its content says, whatever its name: text with any separator, tables of Markdown,
LaTeX and spreadsheets, Parquet, JSON and JSON lines, and what trackers and evaluation programs
write. So is a table in memory. What is no table of results is refused in one sentence that names
the form and the way on.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from typing import Any

import numpy as np

from clipmill.verdict.measurements import SCHEMA
from clipmill.verdict.tables.cells import SECONDS, is_empty, is_missing, read_cell
from clipmill.verdict.tables.frames import (
    Column,
    Frame,
    SeveralTables,
    column_of,
    distinct,
    frame_of_records,
    group_codes,
    joined,
    recoded,
    settle_commas,
    text_of,
    with_rows,
)
from clipmill.verdict.tables.json_forms import SCALAR_FORM, frame_of_json, jmh_of_table
from clipmill.verdict.tables.metric_names import is_known, plain_name
from clipmill.verdict.tables.roles import ARM_WORDS, CROSSING, role_of_name

LEAST_SHIFTED, MOST_SHIFTED = 5, 0.2  # rows of a table, and the share of them that lack a cell
LEAST_LOGGED, MOST_LOGGED = 3, 500  # lines of a log with the same names; letters that are looked at
HEAD = 200  # rows from which the header is found
CHUNK = 50_000  # rows that are put into columns at once
MOST_STACKED = 2**22  # characters of a text in which blank rows may stand between tables
MOST_PARTS = 3  # of a name, joined by _, that may be the name of a model alone
MOST_YAML = 2**20  # characters of a text that is read as YAML
MOST_CAPTION = 60  # letters of a line that names the table below it
MOST_LINES = 20  # of one cell: more is a quote that was never closed
STUDY_FORM = "measurements of a study"
STUDY_COLUMNS = ["arm", "seed", "task", "metric", "value", "scale"]  # that are read of one
ERRORS = (OSError, EOFError, ValueError, csv.Error, zlib.error, lzma.LZMAError)
# Forms that hold results but are no table: (first bytes, what it is, the way on).
OTHER_FORMS = (
    (b"SQLite format 3", "a SQLite database", "export its table as CSV (Optuna: "
     "study.trials_dataframe().to_csv(...); MLflow: mlflow.search_runs().to_csv(...))"),
    (b"%PDF", "a PDF", "copy its table as CSV, Markdown or LaTeX"),
    ((b"\x89PNG", b"\xff\xd8\xff"), "a picture", "give the numbers behind it"),
    (b"\x93NUMPY", "a NumPy array", "write a CSV with a column for the arm and one for the value"),
    ((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), "a pickle, which is never opened",
     "write a CSV"),
    (b"\x89HDF", "an HDF5 file", "export its table as CSV or Parquet"),
    (b"ARROW1", "an Arrow file", "write it as Parquet"),
    (b":W&B", "W&B's file of a run", "export the table of runs as CSV, or "
     "wandb.Api().runs(...) as a table"),
)  # fmt: skip
BOX = str.maketrans("│┃║╎┆", "|||||")
RULE = re.compile(r"[\s|+:=\-─━═┼╪├┤┬┴╞╡┌┐└┘╔╗╚╝╠╣╦╩╬╒╕╘╛╤╧┏┓┗┛┡┩┳┻╇┠┨┷┯┿╋]*[-─━═=]{2}"
                  r"[\s|+:=\-─━═┼╪├┤┬┴╞╡┌┐└┘╔╗╚╝╠╣╦╩╬╒╕╘╛╤╧┏┓┗┛┡┩┳┻╇┠┨┷┯┿╋]*")  # fmt: skip
LINE_OF_DASHES = re.compile(r"\s*[-=─━═]{3}[-=─━═\s]*")
MARKDOWN_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*|\s*\|\s*:?-+:?\s*\|\s*")
TABULAR = re.compile(
    r"\\begin\{(tabular\*?|tabularx|tabulary|longtable|array|tblr)\}(.*?)\\end\{\1\}", re.S
)
YAML_LINE = re.compile(r"\s*(#.*|- .*|[^\s:#{\[][^:]*:(\s.*)?)")
# A name and a number of a log: `loss: 0.5`, `epoch 3`.
LOGGED = re.compile(
    r"(?<![\w.])([A-Za-z_][\w/%().-]*)\s*[:=]?\s*[-+]?\d[\d.]*(?:e[-+]?\d+)?%?(?=[\s,;|)\]]|$)"
)
# `Top-1 err = 0.28`, `TEST Iter 0: loss = 2.1`; a line of one; a title with marks around it; and
# what numbers the lines of one model.
PAIR = re.compile(
    r"(?:[^=:]*:\s*(?=[^=:]*=))?([^\d\W][^=:]*?)\s*[:=]\s*([-+]?[\d.]+(?:e[-+]?\d+)?%?|nan)", re.I
)
EVALUATED = re.compile(r" \| INFO \| Eval Epoch: \d+ (?!\[)(.+)$", re.M)  # of open_clip's out.log
FULL_WIDTH = str.maketrans("，；", ",;")  # of a Chinese or Japanese keyboard
PAIR_LINE = re.compile(r"([^\d\W][\w ./@()-]*?)\s+=\s+(\S.*)")
TITLE = re.compile(r"([*#=-])\1{2,}.*")
REPORTED = ("precision", "recall", "f1-score")  # and the support of each class
REPORT = re.compile(r"^ +precision +recall +f1-score +support\s*$", re.M)
REPORT_LINE = re.compile(r" *(\S.{0,80}?) +([\d.]+(?: +[\d.]+)*) *")
COUNTS = re.compile(r"\W*(epoch|step|iter|round|batch|run|trial|seed|fold|rep|split|it)\w*\b", re.I)
# A number of siunitx with its uncertainty in the last digits.
LAST_DIGITS = re.compile(r"(?<![\d.])(\d+\.(\d+))\((\d+)\)")
UNITS = re.compile(
    r"\s*[\[(]?\s*(%|[nuµm]?s|sec|min|h|[gm]i?b|db|px|m|k|b|points?|pts|[↑↓])\s*[\])]?\s*", re.I
)
# Names of what the rows of a table are of, where its columns are methods.
ROWS_OF = re.compile(r"(\w+_)?(instan[ct]\w*|problems?|functions?|func|datasets?|data_sets?)")
BENCHSTAT = re.compile(r"name +(old \S+ +new |\S+/op\b)|.*[|│] +\S+/(op|s) .*vs base")
JMH = {"Benchmark", "Mode", "Threads", "Samples", "Score", "Unit"}  # columns of its CSV
ARROWS = {"↑": "higher", "↓": "lower"}
TRACKER_AXES = {"_step", "_runtime", "_timestamp"}
TRACKED = re.compile(r"^(?P<run>.+) - (?P<metric>.+?)(?P<extreme>__MIN|__MAX)?$")


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells as they stand in a file. title: what it is called, or the words above it.

    named: its first row names the columns. line: where it begins, from 1. filled: cells of merged
    ranges that hold what their first cell holds. notes: what was done to it. caption: all words
    that name it.
    """

    rows: Iterable[Sequence[Any]]
    title: str
    named: bool = False
    line: int = 1
    filled: int = 0
    notes: tuple[str, ...] = ()
    caption: str = ""


def frame_of_bytes(data: bytes, table: str | None = None, baseline: str | None = None) -> Frame:
    """The table of a file. table: which of several, a number from 1 or a name, or numbers of tables
    that have one header (1,3-5). baseline: an arm, which tells what the arms of a tree are.
    ValueError in one sentence for what is none.
    """
    data = _unpacked(data)
    for start, what, way in OTHER_FORMS:
        if data.startswith(start):
            raise ValueError(f"it is {what}: {way}")
    if data.startswith(b"PAR1"):
        from pyarrow import BufferReader, parquet

        file = parquet.ParquetFile(BufferReader(data), page_checksum_verification=True)
        if file.schema_arrow.names == SCHEMA.names:
            return _frame_of_arrow(file.read(STUDY_COLUMNS), STUDY_FORM)
        return _frame_of_arrow(file.read(), "Parquet")
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        return _frame_of_grids(_sheets(data), table, "spreadsheet", "sheets")
    text, note = _text_of(data)
    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")  # as Excel ends lines on a Mac
    frame = _frame_of_text(text, table, baseline)
    frame.notes += [note] if note else []
    return frame


def _unpacked(data: bytes) -> bytes:
    """Without gzip, bzip2 or xz."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"BZh"):
        return bz2.decompress(data)
    return lzma.decompress(data) if data.startswith(b"\xfd7zXZ\x00") else data


def _text_of(data: bytes) -> tuple[str, str]:
    """UTF-8, UTF-16 with its mark, or else Windows-1252, which holds Latin-1; and a note."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16"), ""
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        if b"\x00" in data[:4096]:
            raise ValueError("it is no text and no form that is known: write a CSV") from None
        note = "text: read as Windows-1252, as it is not UTF-8"
        return data.decode("cp1252", errors="replace"), note


def _frame_of_text(text: str, table: str | None, baseline: str | None) -> Frame:
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            document = json.loads(text)
            if isinstance(document, dict) and {"cells", "nbformat"} <= document.keys():
                text = "\n\n".join(_texts(document["cells"])).replace("<table", "\n<table")
                if "<table" in text or any(map(MARKDOWN_RULE.fullmatch, text.split("\n"))):
                    return _frame_of_text(text, table, baseline)
                raise ValueError("it is a notebook that put out no table: save the frame as CSV")
            return frame_of_json(document, table=table, baseline=baseline)
        except json.JSONDecodeError as error:
            _check_log(text.split("\n", HEAD)[:HEAD])
            if error.msg == "Extra data" or "\n" in text.strip():
                read = _json_lines(text, error)
                if read is not None:
                    documents, cut = read
                    frame = frame_of_json(documents, lines=True, baseline=baseline)
                    if cut:
                        frame.left_out["lines that are no whole JSON"] = cut
                    return frame
            raise
    if (document := _yaml(text)) is not None:
        frame = frame_of_json(document, table=table, baseline=baseline)
        frame.form = frame.form.replace("JSON", "YAML")
        return frame
    if "\\begin{tabular" in text or "\\begin{longtable" in text or "\\begin{array" in text:
        return _frame_of_grids(_latex_grids(text), table, "LaTeX table", "tables")
    row = re.compile(r"&.*\\\\\s*(\\\w+|$)")  # of a LaTeX table without its environment
    if sum(row.search(line) is not None for line in text.split("\n", HEAD)[:HEAD]) > 1:
        text = f"\\begin{{tabular}}{{}}{text}\\end{{tabular}}"
        grids = _latex_grids(text)
        first = next(iter(grids[0].rows))
        cells = [read_cell(cell).value for cell in first if not is_empty(cell)]
        if 2 * cells.count(None) < len(cells):
            raise ValueError(
                "it is rows of LaTeX without a header, so no column has a name: give the whole "
                "tabular"
            )
        return _frame_of_grids(grids, table, "LaTeX table", "tables")
    html: list[Grid] = []
    if "<" in text and ("<table" in text or "<TABLE" in text or start == "<"):
        found = re.search(r"<table\b" if start == "<" else r"^\s*<table\b", text, re.I | re.M)
        if found and (start in "<#" or text.count('"', 0, found.start()) % 2 == 0):
            parser = _HtmlTables(text)
            html = parser.grids
        elif re.match(r"\s*<(!doctype|html)\b", text, re.I):
            raise ValueError("it is an HTML page without a table: give a table of CSV or Markdown")
    if html:
        outside = re.compile(r"<(table|style|script)\b.*?</\1>", re.I | re.S)
        text = outside.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = text.translate(BOX).split("\n") if any(sign in text for sign in "|│┃║╎┆") else []
    if html or any(MARKDOWN_RULE.fullmatch(line) for line in lines[:20_000] if "-" in line):
        grids = sorted(html + _markdown_grids(lines), key=lambda grid: grid.line)
        form = "HTML" if html else "Markdown"
        return _frame_of_grids(grids, table, f"{form} table", "tables")
    frame = _frame_of_lines(text, table)
    return jmh_of_table(frame, baseline) if frame.columns.keys() >= JMH else frame


def _texts(part: Any) -> Iterator[str]:
    """What the cells of a notebook say in Markdown, and what they put out as HTML."""
    if isinstance(part, dict):
        keys = ["text/html"] + ["source"] * (part.get("cell_type") == "markdown")
        found = (part.get(key) for key in keys)
        yield from ("".join(map(str, each)) for each in found if isinstance(each, list | str))
    if isinstance(part, list | dict):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _texts(each)


def _yaml(text: str) -> Any:
    """The results of a document of YAML, by its first lines; None of another text, and of what
    refers to itself, which could be of any size.
    """
    lines = [line for line in text.split("\n", HEAD)[:HEAD] if line.strip(" -\r")]
    are_keys = len(lines) > 0 and all(map(YAML_LINE.fullmatch, lines))
    if not are_keys or len(text) > MOST_YAML or ("&" in text and "*" in text):
        return None
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    if not isinstance(document, dict):
        are_objects = isinstance(document, list) and all(isinstance(x, dict) for x in document)
        return _plain_json(document) if are_objects else None
    values = document.values()
    is_flat = len(values) == len(lines) and any(isinstance(each, int | float) for each in values)
    is_nested = any(isinstance(each, dict | list) for each in values)
    return _plain_json(document) if is_flat or is_nested else None


def _json_lines(text: str, error: json.JSONDecodeError) -> tuple[list[Any], int] | None:
    """The documents of JSON lines, and how many lines are cut or damaged, as of a run that still
    writes; None where the first line is no document. ValueError where the others are not most.
    """
    documents, damaged = list[Any](), list[str]()
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            documents.append(json.loads(line))
        except json.JSONDecodeError as inner:
            if not documents:
                return (_many_documents(text), 0) if error.msg == "Extra data" else None
            damaged.append(f"line {number}: {inner}")
    if len(damaged) >= len(documents):
        raise ValueError(damaged[0])
    return documents, len(damaged)


def _many_documents(text: str) -> list[Any]:
    """Documents of several lines, one behind the other."""
    decoder, place, documents = json.JSONDecoder(), 0, []
    while place < len(text):
        document, end = decoder.raw_decode(text, place)
        documents.append(document)
        place = end + len(text[end:]) - len(text[end:].lstrip())
    return documents


# --- spreadsheets, Parquet ------------------------------------------------------------------------


def _sheets(data: bytes) -> list[Grid]:
    """The sheets of .xlsx, .xls and .ods, with merged cells filled."""
    import python_calamine

    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    except python_calamine.PasswordError:
        raise ValueError("it is a spreadsheet with a password: save it without one") from None
    except python_calamine.CalamineError as error:
        if data.startswith(b"PK") and _is_archive(data):
            raise ValueError("it is a zip archive: unpack it and give the files") from None
        raise ValueError(
            f"it is a damaged spreadsheet (xlsx, xls or ods: {error}): save it again, or as CSV"
        ) from None
    grids = []
    for name in book.sheet_names:
        sheet = book.get_sheet_by_name(name)
        rows = [[_plain(cell) for cell in row] for row in sheet.to_python(skip_empty_area=False)]
        filled = 0
        for (top, left), (bottom, right) in sheet.merged_cell_ranges or ():
            for row in range(top, min(bottom + 1, len(rows))):
                for place in range(left, min(right + 1, len(rows[row]))):
                    filled += row > top and not is_empty(rows[top][left])
                    rows[row][place] = rows[top][left]
        if sheet.merged_cell_ranges is None and b"rows-spanned" in _content(data):
            for above, cells in itertools.pairwise(rows):  # which ones is not known of .ods
                blank = next((n for n, cell in enumerate(cells) if not is_empty(cell)), 0)
                cells[:blank] = above[:blank]
                filled += blank
        grids.append(Grid(rows, name, filled=filled))
    return grids


def _is_archive(data: bytes) -> bool:
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    return not any(name.startswith(("xl/", "content.xml")) for name in names)


def _content(data: bytes) -> bytes:
    """The cells of an .ods, which say that some are merged; b"" of another spreadsheet."""
    return zipfile.ZipFile(io.BytesIO(data)).read("content.xml") if data[:2] == b"PK" else b""


def _plain(cell: object) -> Any:
    """A cell of a spreadsheet: numbers stay, dates and times become texts."""
    return cell if isinstance(cell, int | float | str) else str(cell)


def frame_of_table(data: Any) -> Frame:
    """The table that an object in memory is: a DataFrame of pandas, whatever gives Arrow data
    (Arrow tables, Polars, DuckDB), a list of dicts, or a document of JSON. ValueError for another
    object.
    """
    kind = type(data)
    form = f"{kind.__module__.partition('.')[0]} {kind.__name__}"
    if isinstance(data, list | tuple):
        return frame_of_json(_plain_json(data), form="list of rows")
    if isinstance(data, Mapping):
        return frame_of_json(_plain_json(data))
    if form == "pandas Series":
        data = data.to_frame()
    if form in ("pandas DataFrame", "pandas Series"):
        return _frame_of_pandas(data, form)
    if hasattr(data, "__arrow_c_stream__"):
        import pyarrow as pa

        return _frame_of_arrow(pa.table(data), form)
    raise ValueError(
        f"a {form} is no table: give a DataFrame, an Arrow table, a list of dicts or a path"
    )


def _frame_of_pandas(data: Any, form: str) -> Frame:
    """As the CSV of the same DataFrame is read, without numbers of rows that have no name."""
    import pyarrow as pa

    index = data.index
    if (
        index.nlevels > 1
        or index.name is not None
        or index.inferred_type not in ("integer", "empty")
    ):
        data = data.reset_index(names=[name or "" for name in index.names])
    names = [str(name) for name in data.columns]
    if data.columns.nlevels > 1 or len(set(names)) < len(names) or "" in names:
        levels = range(data.columns.nlevels)
        head = [[str(cell) for cell in data.columns.get_level_values(n)] for n in levels]
        cells = data.astype(object).where(data.notna(), None).values.tolist()
        return _frame_of_grids([Grid([*head, *cells], "")], None, form, "tables")
    columns = {}
    for place, name in enumerate(names):
        cells = data.iloc[:, place]
        try:
            columns[name] = _column_of_arrow(pa.chunked_array([pa.array(cells, from_pandas=True)]))
        except (pa.ArrowException, OverflowError):  # cells of several types
            columns[name] = column_of(cells.tolist())
    return Frame(columns, len(data), form)


def _plain_json(value: object) -> Any:
    """The same with lists, dicts and numbers of Python: NumPy and torch have their own."""
    if isinstance(value, Mapping):
        return {str(key): _plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _frame_of_arrow(table: Any, form: str) -> Frame:
    import pyarrow as pa

    columns: dict[str, Column] = {}
    for name in table.column_names:
        cells = table.column(name)
        if pa.types.is_struct(cells.type) or pa.types.is_map(cells.type):
            return frame_of_json(table.to_pylist(), form=form)
        columns[name] = _column_of_arrow(cells)
    return Frame(columns, table.num_rows, form)


def _column_of_arrow(cells: Any) -> Column:
    import pyarrow as pa

    if pa.types.is_nested(cells.type) or pa.types.is_null(cells.type):
        return column_of(cells.to_pylist())
    encoded = cells.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = encoded.dictionary.to_pylist()
    if encoded.indices.null_count:
        values.append(None)
    indices = encoded.indices.fill_null(len(values) - 1).cast(pa.int32())
    # not to_numpy, which imports pandas where it is installed: 0.2 s
    codes = np.frombuffer(indices.buffers()[1], np.int32, len(indices), 4 * indices.offset)
    return recoded(values, codes)


# --- text tables ----------------------------------------------------------------------------------


def _markdown_grids(lines: Sequence[str]) -> list[Grid]:
    """The tables of a Markdown text; the heading above each is its title. Where several have one
    heading, the one above it is there too, or the line above the table.
    """
    grids: list[Grid] = []
    longer: list[tuple[str, str]] = []  # of each table: its titles if others have its heading
    above: dict[int, str] = {}  # {depth: the heading of it that holds here}
    title, place = "", 0
    while place < len(lines):
        line = lines[place]
        if line.lstrip().startswith("#"):
            title, depth = _heading(line.strip("# \t")), len(line) - len(line.lstrip(" #"))
            above = {n: one for n, one in above.items() if n < depth} | {depth: title}
        elif re.fullmatch(r"\s*(={3,}|-{3,})\s*", line) and place and _is_caption(lines[place - 1]):
            title = _heading(lines[place - 1])
        is_rule = "-" in line and MARKDOWN_RULE.fullmatch(line) is not None
        head = place - 1 - (place > 1 and not lines[place - 1].strip())
        if not is_rule or not place or "|" not in lines[head]:
            place += 1
            continue
        rows, end = [_markdown_cells(lines[head])], place + 1
        while (row := _next_row(lines, end, len(rows[0]))) is not None:
            if not MARKDOWN_RULE.fullmatch(lines[row]):
                rows.append(_markdown_cells(lines[row]))
            end = row + 1
        line = next((one for one in reversed(lines[:head]) if one.strip()), "")
        parent = ": ".join([*above.values()][-2:])
        caption = ": ".join(filter(None, (title, _heading(line) * _is_caption(line))))
        longer.append((parent, caption))
        grids.append(Grid(rows, title, named=True, line=head + 1, caption=caption))
        place = end
    for own in {grid.title for grid in grids}:
        places = [n for n, grid in enumerate(grids) if grid.title == own]
        for titles in zip(*(longer[n] for n in places), strict=True) if len(places) > 1 else ():
            if len(set(titles)) == len(places):
                for n, title in zip(places, titles, strict=True):
                    grids[n] = replace(grids[n], title=title)
                break
    return grids


def _next_row(lines: Sequence[str], place: int, width: int) -> int | None:
    """The place of the next row of a table of Markdown: in this line, or of equal width below one
    blank line, where no rule follows, which would make it the head of another table.
    """
    if place < len(lines) and "|" in lines[place]:
        return place
    below = [n for n in range(place + 1, min(place + 4, len(lines))) if lines[n].strip()]
    is_row = place + 1 in below and lines[place + 1].strip()[0] == "|"
    if not is_row or lines[place].strip() or len(_markdown_cells(lines[place + 1])) != width:
        return None
    return None if len(below) > 1 and MARKDOWN_RULE.fullmatch(lines[below[1]]) else place + 1


def _is_caption(line: str) -> bool:
    """Whether a line above a table may name it."""
    text = line.strip()
    return 0 < len(text) <= MOST_CAPTION and "|" not in text and text[0] not in "#<"


def _heading(text: str) -> str:
    """A heading or caption without links, marks, a bullet and a colon at its end."""
    text = re.sub(r"^\s*([-*+]|\d+\.)\s+", "", text)
    return " ".join(re.sub(r"\*+|__|`", "", _markdown_text(text)).split()).rstrip(": ")


def _markdown_cells(line: str) -> list[str]:
    text = line.strip()
    text = text[1:] if text.startswith("|") else text
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [_markdown_text(cell) for cell in re.split(r"(?<!\\)\|", text)]


def _markdown_text(cell: str) -> str:
    """A cell without links, pictures and marks around all of it."""
    cell = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell.replace("\\|", "|"))
    cell = unescape(re.sub(r"</?\w+[^>]*>|&nbsp;", " ", cell)).strip()
    cell = _latex_text(cell) if re.search(r"\$.*\\\w+.*\$", cell) else cell
    found = re.fullmatch(r"(\*\*|__|\*|`)(.+?)\1", cell)
    return found[2].strip() if found else cell


# A comment, a declaration, a script or style, or a tag, as browsers split a page. Not by
# html.parser, which splits some of them otherwise from release to release of Python.
HTML_PIECE = re.compile(
    r"<!---?>|<!--.*?(?:--!?>|\Z)|<[!?][^>]*+>|<(script|style)\b[^>]*+>.*?(?:</\1\b[^>]*+>|\Z)"
    r"|<(/?)([a-z][^\s/>]*+)((?:[^>\"']|\"[^\"]*\"|'[^']*')*+)>", re.I | re.S
)  # fmt: skip
HTML_SPAN = re.compile(r"(?<![^\s\"'/])(rowspan|colspan)\s*=\s*[\"']?([0-9]+)", re.I)


class _HtmlTables:
    """The tables of HTML, or of Markdown with HTML in it; each text in all places of its cell."""

    def __init__(self, text: str) -> None:
        self.grids: list[Grid] = []
        self.title, self.line, self.row, self.named = "", 1, -1, True
        self.texts: list[str] = []  # of the cell or heading that is open
        self.cells: dict[tuple[int, int], list[str]] = {}
        place = 0
        for piece in HTML_PIECE.finditer(text):
            self._add_data(unescape(text[place : piece.start()]))
            place = piece.end()
            if piece[3] and piece[2]:
                self._end(piece[3].lower())
            elif piece[3]:
                line = text.count("\n", 0, piece.start()) + 1 if piece[3].lower() == "table" else 0
                self._start(piece[3].lower(), piece[4], line)
        self._add_data(unescape(text[place:]))

    def _start(self, tag: str, attributes: str, line: int) -> None:
        if tag == "table":
            self.cells, self.line, self.row, self.named = {}, line, -1, True
        elif tag == "tr":
            self.row += 1
        elif tag in ("td", "th"):
            self.row = max(self.row, 0)
            self.named &= tag == "th" or self.row > 0
            spans = HTML_SPAN.findall(attributes)
            size = {name.lower(): int(text[:9]) for name, text in spans}
            place = next(n for n in itertools.count() if (self.row, n) not in self.cells)
            high, wide = (range(min(size.get(n) or 1, 1000)) for n in ("rowspan", "colspan"))
            self.texts = []
            for row, column in itertools.product(high, wide):
                self.cells.setdefault((self.row + row, place + column), self.texts)
        elif tag == "caption" or re.fullmatch("h[1-6]", tag):
            self.texts = []
        elif tag in ("br", "sub", "sup"):
            self.texts.append(" ")

    def _add_data(self, data: str) -> None:
        self.texts.append(data)
        if headings := re.findall(r"^#+ +(.+)", data, re.M):  # of Markdown
            self.title = _heading(headings[-1])

    def _end(self, tag: str) -> None:
        if tag == "caption" or re.fullmatch("h[1-6]", tag):
            self.title = " ".join("".join(self.texts).split())
        elif tag == "table" and self.cells:
            width = 1 + max(column for _, column in self.cells)
            texts = {place: " ".join("".join(own).split()) for place, own in self.cells.items()}
            rows = [[texts.get((r, n), "") for n in range(width)] for r in range(self.row + 1)]
            self.grids.append(Grid(rows, self.title, named=self.named, line=self.line))
            self.cells = {}
        if tag in ("td", "th", "caption"):
            self.texts = []


def _latex_grids(text: str) -> list[Grid]:
    """The tables of a LaTeX text; the caption of each is its title."""
    # A comment; 75% in front of a further cell lacks its backslash.
    text = re.sub(r"(?<![\\\d])%.*|(?<=\d)%(?![^\n]*(&|\\\\)).*", "", text)
    text = _latex_expanded(text)
    grids = []
    for found in TABULAR.finditer(text):
        body = re.sub(rf"^(\s*\[[^\]]*\]|{LATEX_ARGUMENT})+", "", found[2])
        if "S" in found[2].removesuffix(body) or re.search(r"\\(num|SI|qty)\b", body):
            body = LAST_DIGITS.sub(
                lambda one: f"{one[1]} ± {int(one[3]) / 10 ** len(one[2]):.9g}", body
            )
        rows = []
        for line in re.split(r"\\\\(?:\[[^\]]*\])?|\\tabularnewline", body):
            line = re.sub(
                r"\\(hline|toprule|midrule|bottomrule|endhead|endfirsthead|endfoot|endlastfoot|"
                r"c(?:mid)?(?:line|rule)\s*(\([^)]*\))?\s*\{[^}]*\}|addlinespace(\[[^\]]*\])?|"
                r"row(color|font)\{[^}]*\}|specialrule(\{[^}]*\}){3}|noalign\{[^}]*\})",
                " ", line,
            )  # fmt: skip
            if line.strip():
                rows.append(_latex_cells(line))
        own = text[max(0, text.rfind("\\begin{table", 0, found.start())) : found.end() + 400]
        captions = re.findall(r"\\caption\{((?:[^{}]|\{[^{}]*\})*)\}", own.split("\\end{table")[0])
        caption = _latex_text(captions[-1]) if captions else ""
        line = text[: found.start()].count("\n") + 1
        grids.append(Grid(_latex_filled(rows), caption[:60], line=line, caption=caption))
    return grids


LATEX_ARGUMENT = r"\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
LATEX_MACRO = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|def|DeclareMathOperator)\*?\s*\{?\\([a-zA-Z]+)\}?\s*"
    rf"(?:\[(\d)\])?((?:#\d)*){LATEX_ARGUMENT}"
)


def _latex_expanded(text: str) -> str:
    """The text with its own commands replaced by what they stand for, such as
    `\\newcommand{\\std}[1]{$\\pm$ #1}`; those with an optional argument stay.
    """
    macros = {}
    for found in LATEX_MACRO.finditer(text):
        macros[found[1]] = (int(found[2] or found[3].count("#")), found[4])
    text = LATEX_MACRO.sub(lambda found: "\n" * found[0].count("\n"), text)
    for _ in range(3):  # one may use another
        before = text
        for name, (count, body) in macros.items():
            parts = rf"\\{name}(?![a-zA-Z])" + LATEX_ARGUMENT * count
            text = re.sub(parts, functools.partial(_filled, body), text)
        if text == before or len(text) > 4 * 10**6:
            break
    return text


def _filled(body: str, use: re.Match[str]) -> str:
    """The body of a command with the arguments of a use."""
    arguments = (*use.groups(), *[""] * 9)
    return re.sub(r"#([1-9])", lambda found: arguments[int(found[1]) - 1], body)


LATEX_FONT = (
    r"\\(?:text(?:bf|it|sc|sl|tt|rm|normal)?|emph|bm|boldsymbol|math(?:bf|it|rm|sf)|u+line|underline)"
    r"\s*\{([^{}]*)\}"
)
GREEK_LETTERS = "alpha beta gamma delta epsilon eta theta lambda mu rho sigma tau phi omega"
GREEK = dict(zip(GREEK_LETTERS.split(), "αβγδεηθλμρστφω", strict=True))
FIRST_NUMBER = re.compile(r"\d[\d.,]*(e[-+]?\d+)?", re.I)
ROW_SPAN = "\0row"  # in front of a cell of \multirow: the blank ones below it are parts of it


def _latex_cells(line: str) -> list[str]:
    cells = []
    for cell in re.split(r"(?<!\\)&", line):
        found = re.search(r"\\multicolumn\s*\{(\d+)\}\s*\{[^}]*\}\s*\{(.*)\}", cell, re.S)
        if found:
            cells += [_latex_text(found[2])] * int(found[1])
        else:
            mark = ROW_SPAN if "\\multirow" in cell else ""
            cell = re.sub(r"\\multirow\s*(\[[^\]]*\])?\{[^}]*\}(\[[^\]]*\])?\{[^}]*\}", "", cell)
            cells.append(mark + _latex_text(cell))
    return cells


def _latex_filled(rows: list[list[str]]) -> list[list[str]]:
    """With the blank cells below \\multirow filled."""
    above: dict[int, str] = {}
    for row in rows:
        for place, cell in enumerate(row):
            if cell.startswith(ROW_SPAN):
                row[place] = above[place] = cell.removeprefix(ROW_SPAN)
            elif not cell and place in above:
                row[place] = above[place]
            elif cell:
                above.pop(place, None)
    return rows


def _latex_text(cell: str) -> str:
    """A cell without commands: their last argument stays."""
    cell = re.sub(r"\\(cite\w*|ref|label|footnote|tablefootnote|vspace|hspace)\*?(\[[^\]]*\])*"
                  r"\{[^}]*\}", "", cell)  # fmt: skip
    for command, sign in (("pm", "±"), ("uparrow", "↑"), ("downarrow", "↓"), ("times", "×"),
                          ("Delta", "Δ"),
                          ("%", "%"), ("&", "&"), ("_", "_"), ("#", "#"), ("$", "")):  # fmt: skip
        end = r"(?![a-zA-Z])" if command.isalpha() else ""
        cell = re.sub(rf"\\{re.escape(command)}{end}", sign, cell)
    for letter, sign in GREEK.items():
        cell = re.sub(rf"\\{letter}(?![a-zA-Z])", sign, cell)
    cell = re.sub(r"[_^]\s*\{\s*(±[^{}]*)\}", r" \1", cell)
    spread = r"\\(?:std|sd|stdev|stddev|sem|stderr|err|pms?)\s*\{\s*±?\s*([^{}]*)\}"
    cell = re.sub(spread, r" ± \1", cell)
    # \meanstd{81.2}{0.3}: two numbers, of which the last is no value
    cell = re.sub(r"\\(?!scalebox|fontsize|resizebox|rotatebox)[a-zA-Z]+\s*\{\s*([-+]?[\d.]+)\s*\}"
                  r"\s*\{\s*±?\s*([\d.]+)\s*\}", r"\1 ± \2", cell)  # fmt: skip
    command = r"\\[a-zA-Z]+\*?\s*(?:\{[^{}]*\}\s*)*\{([^{}]*)\}"
    while (changed := re.sub(command, r"\1", re.sub(LATEX_FONT, r"\1", cell))) != cell:
        cell = changed  # \textbf{81.2}{\tiny ± 0.3}: what follows a font is no argument of it
    cell = re.sub(r"\\[a-zA-Z]+\*?|\\[,;:! ]|[${}]", " ", cell.replace("~", " "))
    return re.sub(r"\s+", " ", cell).strip()


def _frame_of_grids(grids: Sequence[Grid], table: str | None, form: str, word: str) -> Frame:
    """The one table of a file, the chosen one, or all of one header."""
    whole, grids = len(grids), [part for grid in grids for part in _side_by_side(grid)]
    count = len(grids)
    grids = [
        block for grid in map(_sectioned, grids)
        for block in _blocks(grid, grid.title if count > 1 else "")
    ]  # fmt: skip
    word = word if len(grids) == whole else "tables"
    numbers = {id(grid): number for number, grid in enumerate(grids, 1)}
    chosen = grids
    if table is not None:
        chosen = [grid for grid in grids if table in (str(numbers[id(grid)]), grid.title)]
        chosen = chosen or [grid for grid in grids if grid.title.startswith(f"{table}: ")]
        chosen = chosen or [grids[n - 1] for n in _numbers(table) if 0 < n <= len(grids)]
        if not chosen:
            raise ValueError(f"--table {table}: it has {_listed(grids, word)}")
        if len(chosen) == 1:
            return _frame_of_rows(chosen[0], form)
    frames, names, refused = [], list[Grid](), list[str]()
    for grid in chosen:
        try:
            frame = _frame_of_rows(grid, form)
        except ValueError as error:
            refused.append(f"{numbers[id(grid)]} {grid.title!r}: {error}")
            continue
        if frame.rows and any(column.has_numbers() for column in frame.columns.values()):
            frames.append(frame)
            names.append(grid)
    if not frames and refused:
        raise ValueError(refused[0] if len(grids) > 1 else refused[0].partition(": ")[2])
    if not frames:
        raise ValueError(f"it has no table with numbers ({_listed(grids, word)})")
    if [next(iter(frame.columns)) for frame in frames] == ["Tasks", "Groups"]:
        return _without_lm_eval_groups(*frames)
    if len(frames) > 1 and (count > whole or not _are_one(frames)):
        if table is not None:
            raise ValueError(f"{table!r} has {_listed(names, word, grids)}: choose one by number")
        places = [numbers[id(grid)] for grid in names]
        labels = [
            ",".join(str(places[n]) for n in alike) for alike in _alike(frames) if len(alike) > 1
        ]
        labels += [
            _label(grid.title, place, grids) for grid, place in zip(names, places, strict=True)
        ]
        raise SeveralTables(f"it has {_listed(names, word, grids)}", labels)
    frame = frames[0] if len(frames) < 2 else _stacked(frames, names)
    frame.notes += [f"not read: table {each}" for each in refused[:3]]
    return frame


def _numbers(text: str) -> list[int]:
    """The numbers of `1,3-5`; [] of another text."""
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", text):
        return []
    ends = [part.split("-") for part in text.split(",")]
    return [n for part in ends for n in range(int(part[0]), int(part[-1]) + 1)]


def _label(title: str, number: int, grids: Sequence[Grid]) -> str:
    """What --table takes for a table: its title, or its number where others have its title."""
    is_own = sum(grid.title == title for grid in grids) == 1 and not re.search("[\"'$`\\\\]", title)
    return title if title and is_own and not _numbers(title) else str(number)


def _are_one(frames: Sequence[Frame]) -> bool:
    """Whether tables are parts of one: they have the same columns, and two of them a row of the
    same label, or none has labels.
    """
    if len(_alike(frames)) > 1:
        return False
    for name in frames[0].columns:
        columns = [frame.columns[name] for frame in frames]
        if not any(map(Column.has_numbers, columns)):
            labels = Counter(label for column in columns for label in {*column.texts().present()})
            return max(labels.values(), default=0) > 1
    return True


def _alike(frames: Sequence[Frame]) -> list[list[int]]:
    """The places of tables that have the same columns."""
    places: dict[frozenset[str], list[int]] = {}
    for n, frame in enumerate(frames):
        places.setdefault(frozenset(frame.columns), []).append(n)
    return list(places.values())


def _stacked(frames: Sequence[Frame], grids: Sequence[Grid]) -> Frame:
    """Tables of one header as one, with a first column of their titles."""
    titles = [grid.title or f"at line {grid.line}" for grid in grids]
    count = Counter(titles)
    titles = [f"{one} {n}" if count[one] > 1 else one for n, one in enumerate(titles, 1)]
    name = "table" if "table" not in frames[0].columns else "title of the table"
    for frame, title in zip(frames, titles, strict=True):
        frame.columns = {name: Column([title], np.zeros(frame.rows, np.int32)), **frame.columns}
    whole = joined(frames)
    whole.notes = list(dict.fromkeys(whole.notes))
    what = f"{len(frames)} tables of one header are one; the column {name!r} has their titles"
    whole.notes.append(f"{what} (--table chooses one)")
    whole.tables = tuple(titles)
    return whole


def _side_by_side(grid: Grid) -> list[Grid]:
    """The tables that stand beside each other, parted by empty columns, with a name in common."""
    rows = [list(row) for row in grid.rows]
    width = max(map(len, rows), default=0)
    filled = [any(n < len(row) and not is_empty(row[n]) for row in rows) for n in range(width)]
    ends = [n for n in range(width + 1) if n == width or not filled[n]]
    spans = [(a + 1, b) for a, b in itertools.pairwise([-1, *ends]) if b > a + 2]
    parts = [[row[a:b] for row in rows] for a, b in spans] if len(spans) > 1 else []
    names = [
        {(n, cell) for n, row in enumerate(part) for cell in row if isinstance(cell, str) and cell}
        for part in parts
    ]  # fmt: skip
    if not any(one & other for one, other in itertools.pairwise(names)):
        return [replace(grid, rows=rows)]
    titles = []
    for (start, _), part in zip(spans, parts, strict=True):
        words = {str(cell) for cell in part[0] if not is_empty(cell)}
        titles.append(words.pop() if len(words) == 1 else f"from column {start + 1}")
    return [replace(grid, rows=one, title=title) for one, title in zip(parts, titles, strict=True)]


def _sectioned(grid: Grid) -> Grid:
    """With a first column `section`, where rows of one text part the rows below the header and the
    same labels stand in several of these parts.
    """
    rows = [list(row) for row in grid.rows]
    words = [list(dict.fromkeys(str(cell) for cell in row if not is_empty(cell))) for row in rows]

    def has_number(n: int) -> bool:
        return any(read_cell(word).value is not None for word in words[n])

    places = [
        n for n in range(1, len(rows) - 1)
        if len(words[n]) == 1 < len(words[0]) - 1 and not is_empty(rows[n][0])
        and not has_number(n) and has_number(n + 1)
    ]  # fmt: skip
    if len(places) < 2 or any(map(has_number, range(places[0]))):
        return grid
    body, labels = rows[: places[0]], Counter[str]()
    body = [["", *row] for row in body[:-1]] + [["section", *body[-1]]]
    for start, end in itertools.pairwise([*places, len(rows)]):
        body += [[words[start][0], *row] for row in rows[start + 1 : end]]
        labels.update({str(row[0]) for row in rows[start + 1 : end]})
    return replace(grid, rows=body, named=True) if max(labels.values()) > 1 else grid


def _without_lm_eval_groups(tasks: Frame, groups: Frame) -> Frame:
    """The first table of lm-eval without the groups that its second one names: their averages."""
    names = {re.sub(r"^[\s-]*", "", text_of(cell)) for cell in groups.columns["Groups"].values}
    kept = ~tasks.columns["Tasks"].is_in(names)
    frame = tasks.taken(kept) if kept.any() else tasks
    left = tasks.rows - frame.rows + groups.rows
    frame.left_out = frame.left_out | {"groups of lm-eval, whose tasks count": left}
    return frame


def _blocks(grid: Grid, of: str = "") -> list[Grid]:
    """The tables that stand one below the other: each begins with a header, below a blank row or a
    title. Those of one header are one table, with a first column of their titles. of: what is in
    front of their titles.
    """
    rows = [list(row) for row in grid.rows]
    filled = [[cell for cell in row if not is_empty(cell)] for row in rows]
    starts, headers, gap = [0], list[int](), list[int]()
    above: list[list[Any]] = []  # the rows of text above the first numbers
    for place, cells in enumerate(filled):
        if not any(isinstance(c, int | float) or read_cell(c).value is not None for c in cells):
            gap.append(place)
            continue
        named = [n for n in gap if len(filled[n]) * 2 > len(cells) and _are_names(filled[n])]
        header = max(named, key=lambda n: len(filled[n]), default=place)
        again = [n for n in gap if len(filled[n]) > 1 and any(map(_ends(filled[n]), above))]
        banners = [
            n for n in gap if filled[n] and again and n < again[0] and filled[n] not in above
        ]
        above = above or [filled[n] for n in gap if filled[n]]
        if banners:  # the same names below another title
            header = again[-1]
            starts.append(banners[0])
        elif headers and named and header != gap[0]:
            blank = next((n for n in gap if not filled[n]), gap[0])
            starts.append(next(n for n in gap if n >= blank and filled[n]))
        if len(starts) > len(headers):
            headers.append(header)
        gap = []
    if len(starts) < 2:
        return [replace(grid, rows=rows)]
    ends = [*starts[1:], len(rows)]
    blocks = []
    for start, header, end in zip(starts, headers, ends, strict=True):
        words = [dict.fromkeys(map(str, row)) for row in filled[start:header]]
        title = (
            " ".join(word.strip() for row in words if len(row) < 3 for word in row)[:60]
            or f"at line {grid.line + start}"
        )
        blocks.append(replace(grid, rows=rows[start:end], title=title, line=grid.line + start))
    is_one = len(headers) < 2 or _are_names(filled[headers[0]])
    if not is_one or any(rows[header] != rows[headers[0]] for header in headers):
        return [replace(b, title=f"{of}: {b.title}") for b in blocks] if of else blocks
    body: list[list[object]] = [["table", *rows[headers[0]]]]
    for block, header, end in zip(blocks, headers, ends, strict=True):
        body += [[block.title, *rows[n]] for n in range(header + 1, end) if filled[n]]
    note = f"{len(blocks)} tables of one header are one; the column 'table' has their titles"
    return [replace(grid, rows=body, named=True, notes=(note,))]


def _ends(cells: Sequence[object]) -> Callable[[Sequence[Any]], bool]:
    """Whether a row and these cells are alike, but for a first cell that one of them lacks."""
    return lambda row: cells in (row, row[1:]) or cells[1:] == row


def _are_names(cells: Sequence[object]) -> bool:
    """Whether texts can be the names of columns: two or more, all different, none missing."""
    return 1 < len(cells) == len(set(map(str, cells))) and not any(map(is_missing, cells))


def _listed(grids: Sequence[Grid], word: str, of: Sequence[Grid] = ()) -> str:
    """Tables by their numbers in the file, `of` all its tables, and their titles."""
    numbers = {id(grid): number for number, grid in enumerate(of or grids, 1)}
    texts = []
    for grid in grids[:12]:
        title = repr(grid.title) if grid.title else f"at line {grid.line}"
        texts.append(f"{numbers[id(grid)]} {title}")
    return f"{len(grids)} {word}: {', '.join(texts)}"


def _frame_of_lines(text: str, table: str | None) -> Frame:
    """A table of CSV or of another separator."""
    text = re.sub(r"\A(\s*#[^\n]*\n)+", "", text)
    text = re.sub(r"\A\s*\"?sep=.\"?\s*\n", "", text)  # of Excel: it tells the delimiter
    first = text.lstrip().partition("\n")[0]
    if re.search(r"[，；]", first) and not re.search(r"[,;\t|]", first):
        return _frame_of_lines(text.translate(FULL_WIDTH), table)
    if evaluations := [_pairs(line.replace("\t", ", ")) for line in EVALUATED.findall(text)]:
        return frame_of_records(evaluations, "log of open_clip")
    head = [line.strip() for line in text[:MOST_LOGGED].split("\n")]
    if len(reports := list(REPORT.finditer(text))) == 1:
        return _frame_of_report(text[reports[0].end() :].split("\n"))
    is_short = len(text) < MOST_YAML and any(_pairs(line) or PAIR_LINE.match(line) for line in head)
    if is_short and (frame := _frame_of_pairs(text.split("\n"))) is not None:
        return frame
    csv.field_size_limit(2**31 - 1)
    sample = [line for line in itertools.islice(io.StringIO(text), HEAD * 2) if line.strip()]
    if any(map(BENCHSTAT.match, sample)):
        raise ValueError(
            "it is benchstat's text, which has means without their runs: give the lines of `go "
            "test -bench . -count 10` of each version as CSV, with columns arm, task, value"
        )
    if "|" in text[:20_000] or "│" in text[:20_000]:
        drawn = [line.translate(BOX) for line in text.split("\n")]
        boxed = [line for line in drawn if "|" in line and not RULE.fullmatch(line)]
        if boxed and _is_steady([line.strip().strip("|").split("|") for line in boxed[:HEAD]]):
            rows = [_markdown_cells(line) for line in boxed]
            form = "printed table" if any(map(RULE.fullmatch, drawn)) else "text, |"
            if form == "text, |":
                _check_log(sample)
            return _frame_of_rows(Grid(rows, ""), form)
    delimiter = _delimiter(sample)
    _check_log(sample, is_table=delimiter is not None)
    if delimiter is None and (ruled := _ruled_grids(text.split("\n"))):
        return _frame_of_grids(ruled, table, "text in columns", "tables")
    if delimiter is None and (column := _one_column(text)):
        return _frame_of_rows(Grid(column, "", named=True), "text of one column")
    if delimiter is None:
        raise ValueError("it is text without a table: give a table of CSV, Markdown, LaTeX or JSON")
    if len(delimiter) > 1:
        rows = [re.split(delimiter, line.strip()) for line in text.split("\n")]
        kept = [row for row in rows if not RULE.fullmatch(" ".join(row))]
        return _frame_of_grids([Grid(kept, "")], table, "text in columns", "tables")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    name = {",": "CSV", "\t": "TSV"}.get(delimiter, f"text, {delimiter}")
    gaps = ("\n\n", "\n\r\n", f"\n{delimiter * 2}") if len(text) < MOST_STACKED else ()
    if any(gap in text for gap in gaps) or any(delimiter not in line for line in sample[2:]):
        grids = _blocks(Grid(_unbroken(lines), ""))
        if len(grids) > 1:
            return _frame_of_grids(grids, table, name, "tables")
        return _frame_of_rows(grids[0], name, delimiter)
    return _frame_of_rows(Grid(_unbroken(lines), ""), name, delimiter)


def _frame_of_pairs(lines: Sequence[str]) -> Frame | None:
    """A row of a file of lines `name = value`, or one for each line of text that has lines of names
    and numbers directly below it, as models that were evaluated one after the other; None of
    another text, also of the steps, runs or folds of one model.
    """
    lines = [line.strip().rstrip(",;") for line in lines]
    if max(map(len, lines)) > MOST_LOGGED:
        return None
    filled = [line for line in lines if re.search(r"\w", line) and not TITLE.fullmatch(line)]
    found = [PAIR_LINE.fullmatch(line) for line in filled]
    if len(found) > 1 and None not in found:
        record = {one[1]: one[2] for one in found if one}
        names = len(record) == len(found) and any(map(_is_value, record.values()))
        return frame_of_records([record], "lines of names and values") if names else None
    records = list[dict[str, str]]()
    for before, line in itertools.pairwise(["", *lines]):
        pairs = _pairs(line)
        if pairs and before and not _pairs(before):
            records.append({"name": before})
        if pairs and (not before or not records or records[-1].keys() & pairs.keys()):
            return None  # a log: the same again
        if pairs:
            records[-1] |= pairs
    named = sum(len(one) > 2 for one in records)
    is_most = 2 < 2 * named >= len(records) and 4 * len(records) >= len(filled)
    if not is_most or any(COUNTS.match(one["name"]) for one in records):
        return None
    parts = [one["name"].split("_") for one in records]
    if len(set(map(len, parts))) > 1 < MOST_PARTS < max(map(len, parts)):
        return None  # a model, a data set and settings, but nobody knows which is which
    places = enumerate(zip(*parts, strict=False))
    varied = {tuple(map(each.index, each)): n for n, each in places if len({*each}) > 1}
    if len(varied) > 1:
        for one, own in zip(records, parts, strict=True):
            del one["name"]
            one |= {f"part {n + 1}": own[n] for n in sorted(varied.values())}
    return frame_of_records(records, "lines of numbers below names")


def _frame_of_report(lines: Sequence[str]) -> Frame:
    """The row of a run from a report of scikit-learn: its accuracy and its averages over classes,
    which are left out. lines: those below the header.
    """
    row, classes = dict[str, str](), 0
    for found in filter(None, map(REPORT_LINE.fullmatch, lines)):
        name, numbers = found[1], found[2].split()
        if name == "accuracy":
            row[name] = numbers[0]
        elif name.endswith((" avg", " total")):
            row |= {f"{name} {key}": one for key, one in zip(REPORTED, numbers, strict=False)}
        else:
            classes += 1
    frame = frame_of_records([row], "report of scikit-learn")
    frame.left_out["classes of a report, which its averages are of"] = classes
    return frame


def _pairs(line: str) -> dict[str, str]:
    """The names and numbers of a line that holds nothing else; {} of another one."""
    found = [
        PAIR.fullmatch(part) for part in re.split(r"[,;]\s*|\s{2,}|\s\|\s", line.strip()) if part
    ]
    return {} if None in found else {one[1].strip(): one[2] for one in found if one}


def _check_log(lines: Sequence[str], *, is_table: bool = False) -> None:
    """ValueError for the log of a program: several lines hold the same names, each with a number.
    is_table: lines have columns, so that the first one must too, or they hold nothing else.
    """
    lines = [line[:MOST_LOGGED] for line in lines]
    found = [tuple(LOGGED.findall(line)) for line in lines]
    for own, count in Counter(names for names in found if len(names) > 1).most_common(1):
        alike = [line for line, names in zip(lines, found, strict=True) if names == own]
        is_open = is_table and found[0] != own
        if is_open and any(re.search(r"\w", LOGGED.sub("", line)) for line in alike):
            return
        others = sum(len(names) > 1 for names in found) - count
        if count >= max(LEAST_LOGGED, len(lines) / 4, 4 * others) and (
            not is_open or ":" in alike[0] or "=" in alike[0]
        ):  # fmt: skip
            raise ValueError(
                f"it is a log, with lines of {', '.join(own[:6])}, and no table: write a row for "
                "each run, with what it ended with as columns"
            )


def _one_column(text: str) -> list[list[str]]:
    """The cells of a name of a metric over numbers alone; [] of another text."""
    lines = [line.strip().strip('"') for line in text.split("\n") if line.strip()]
    numbers = [read_cell(line).value for line in lines]
    if len(lines) < 2 or not is_known(lines[0]) or numbers[0] is not None or None in numbers[1:]:
        return []
    return [[line] for line in lines]


def _ruled_grids(lines: Sequence[str]) -> list[Grid]:
    """Tables of columns of spaces: names, a line of dashes, and rows until a blank line."""
    grids = []
    for place, line in enumerate(lines):
        if not LINE_OF_DASHES.fullmatch(line):
            continue
        above = list(itertools.takewhile(_is_row, reversed(lines[max(0, place - 3) : place])))
        below = list(itertools.takewhile(_is_row, lines[place + 1 :]))
        found = [list[list[str]]()]
        for pattern in (r"\s{2,}|\t", r"\s+"):
            rows = [re.split(pattern, one.strip()) for one in (*above[::-1], *below)]
            head, body = rows[: len(above)], rows[len(above) :]
            width = Counter(map(len, body)).most_common(1)[0][0] if len(body) > 1 else 0
            head = [[*[""] * (width - len(r)), *r] for r in head if 0 <= width - len(r) <= 1]
            if head and head[0][0] and width > 1 and _is_steady(body):
                found.append([*head, *body])
        rows = max(found, key=len)  # the one with the most rows of names
        grids += [Grid(rows, "", named=True, line=place)] if rows else []
    return grids


def _is_row(line: str) -> bool:
    return bool(line.strip()) and not LINE_OF_DASHES.fullmatch(line)


def _unbroken(lines: Any) -> Iterator[list[str]]:
    """The rows of a reader of CSV; ValueError for a quote that was never closed."""
    before = 0
    for number, line in enumerate(lines, 1):
        if lines.line_num - before > MOST_LINES and any(
            cell.count("\n") > MOST_LINES for cell in line
        ):
            raise ValueError(f"row {number}: a quote that opens here is not closed in its row")
        before = lines.line_num
        yield line


def _delimiter(sample: Sequence[str]) -> str | None:
    """The separator that gives the most rows of one width; patterns for columns of spaces."""
    best: tuple[float, str] | None = None
    for place, sign in enumerate((",", "\t", ";", "|")):
        rows = list(csv.reader(sample[:HEAD], delimiter=sign))
        widths = Counter(len(row) for row in rows if len(row) > 1)
        if widths:
            width, count = max(widths.items(), key=lambda item: (item[1], item[0]))
            score = (count / max(1, len(rows)) + min(width, 30) / 1000 - place / 1e4, sign)
            best = max(best, score) if best else score
    if best is not None and best[1] == "\t":
        rows = [re.split(r"\t+", line.strip()) for line in sample[:HEAD]]
        if len(set(map(len, rows))) == 1 and len({line.count("\t") for line in sample[:HEAD]}) > 1:
            return r"\t+"  # several of them, so that columns stand below each other
    if best is not None and best[0] >= 0.4:
        return best[1]
    for pattern in (r"\s{2,}|\t", r"\s+"):
        rows = [re.split(pattern, line.strip()) for line in sample[:HEAD]]
        rows = [row for row in rows if not RULE.fullmatch(" ".join(row))]
        if len(rows) > 1 and _is_steady(rows):
            return pattern
    return best[1] if best is not None and best[0] > 0.1 else None


def _is_steady(rows: Sequence[Sequence[str]]) -> bool:
    """Whether most rows have the same width of two or more, or one more than the header."""
    widths = Counter(len(row) for row in rows)
    width, count = widths.most_common(1)[0]
    return width > 1 and count >= 0.7 * len(rows)


# --- rows of cells to columns ---------------------------------------------------------------------


def _frame_of_rows(grid: Grid, form: str, delimiter: str = "") -> Frame:
    """The columns of a grid: header, levels of it, lines around the table and blank rows settled.

    ValueError for a row with more cells than the header, and equal names of two columns.
    """
    rows = iter(grid.rows)
    head = [list(row) for row in itertools.islice(rows, HEAD)]
    head = [row for row in head if any(not is_empty(cell) for cell in row)]
    if not head:
        raise ValueError("there is no row")
    header = _Header.of(head, grid, spaced=form in ("text in columns", "TSV"))
    names = header.names
    left_out = Counter[str]()
    if header.above:
        left_out["lines above the header"] += header.above
    number = header.above + header.levels
    chunk = head[header.above + header.levels :]
    width, last_name = len(names), header.first[-1] if header.first else None
    builder, joins = _Builder(len(names)), 0
    while chunk:
        kept = []
        for row in chunk:
            number += 1
            if len(row) == width and "" not in row and row[-1] != last_name:
                kept.append(row)  # nearly all rows are whole
                continue
            filled = sum(not is_empty(cell) for cell in row)
            if not filled:
                continue
            if len(row) > len(names) and delimiter and header.ends_in_text:
                joins += 1  # an unquoted separator in the last column, a text
                row[len(names) - 1 :] = [delimiter.join(map(str, row[len(names) - 1 :]))]
            if len(row) > len(names) and any(not is_empty(cell) for cell in row[len(names) :]):
                raise ValueError(
                    f"row {number} has more fields than the header, {len(row)} and "
                    f"{len(names)}: a comma inside a cell needs quotes"
                )
            if filled == 1 and len(names) > 2 and not _is_number(row):
                left_out["lines with one cell, as titles and notes have"] += 1
            elif header.repeated(row):
                left_out["lines that repeat the header"] += 1
            else:
                kept.append(row)
        builder.add(kept)
        chunk = [r if isinstance(r, list) else list(r) for r in itertools.islice(rows, CHUNK)]
    frame = Frame(builder.columns(names), builder.rows, form, left_out=dict(left_out))
    frame.notes += [*grid.notes, *header.notes]
    if joins:
        what = "rows have a separator in this text, which is one cell"
        frame.notes.append(f"{names[-1]}: {joins} {what}")
    frame.parts, frame.caption = header.parts, grid.caption or grid.title
    _leave_out_tail(frame, header.named)
    if grid.filled:
        frame.notes.append(f"{grid.filled} blank cells of merged ones are filled from above")
    settle_commas(frame, delimiter)
    _sign_percentages(frame)
    _in_seconds(frame)
    frame = _without_shifted(frame)
    if form.startswith(("Markdown", "LaTeX", "HTML")):
        _fill_continued(frame)
    _note_doubles(frame)
    return _known_text_form(_without_groups(frame))


def _sign_percentages(frame: Frame) -> None:
    """Writes a percent sign behind the numbers of a column without one where other cells have it
    and some number is above 1, which no share is.
    """
    for name, column in frame.columns.items():
        pairs = zip(column.values, column.cells, strict=True)
        bare = {
            value: cell.value for value, cell in pairs
            if isinstance(value, str) and cell.value is not None
            and not (cell.is_percent or cell.unit)
        }  # fmt: skip
        if any(cell.is_percent for cell in column.cells) and any(n > 1 for n in bare.values()):
            signed = {value: FIRST_NUMBER.sub(r"\g<0>%", value, count=1) for value in bare}
            values = [signed.get(value, value) for value in column.values]
            frame.columns[name] = recoded(values, column.codes)
            frame.columns[name].comma = column.comma
            frame.notes.append(f"{name}: cells without a percent sign are percentages, too")


def _in_seconds(frame: Frame) -> None:
    """Writes times in seconds, where some column has them in several units."""
    units = {
        name: {cell.unit for cell in column.cells if cell.value is not None}
        for name, column in frame.columns.items()
    }
    times = [name for name, own in units.items() if own and own <= SECONDS.keys()]
    if not any(len(units[name]) > 1 for name in times):
        return

    def written(value: object) -> Any:
        cell = read_cell(value)
        if cell.value is None:
            return value
        size = SECONDS[cell.unit]
        spread = "" if cell.spread is None else f" ± {size * cell.spread:.9g}"
        return f"{size * cell.value:.9g}{spread} s"

    for name in times:
        frame.columns[name] = frame.columns[name].mapped(written)
    frame.notes.append(f"{', '.join(times[:5])}: times of several units, all in seconds here")


def _fill_continued(frame: Frame) -> None:
    """Fills the blank cells that rows begin with from the row above, in columns of labels: a label
    that stands once for several rows, as people write tables.
    """
    names = list(itertools.takewhile(
        lambda name: not (is_known(name) and frame.columns[name].has_numbers()), frame.columns
    ))  # fmt: skip
    while names and frame.columns[names[-1]].has_numbers():
        names.pop()
    blank, filled = np.ones(frame.rows, bool), 0
    for name in names:
        column = frame.columns[name]
        blank &= ~column.is_there()
        frame.columns[name] = column.filled(blank)
        filled += int((blank & frame.columns[name].is_there()).sum())
    if filled:
        frame.notes.append(f"{filled} blank cells that rows begin with are filled from above")


def _leave_out_tail(frame: Frame, named: int) -> None:
    """Leaves out what stands beside the table: columns without names behind an empty one."""
    tail = list(frame.columns)[named:]
    if tail and not frame.columns[tail[0]].is_there().any():
        cells = sum(int(frame.columns.pop(name).is_there().sum()) for name in tail)
        frame.notes += [f"not read: {cells} cells beside the table, without names"] if cells else []


def _without_shifted(frame: Frame) -> Frame:
    """Without rows that lack a cell, so that a number stands in a column of texts and nothing in
    the last one.
    """
    columns = list(frame.columns.values())
    if len(columns) < 3 or frame.rows < LEAST_SHIFTED:
        return frame
    last = columns[-1].is_there()
    if last.all() or (~last).sum() > MOST_SHIFTED * frame.rows:
        return frame
    shifted = np.zeros(frame.rows, bool)
    for column in columns[:-1]:
        are_numbers = ~np.isnan(column.numbers())
        if 0 < are_numbers.sum() <= MOST_SHIFTED * column.is_there().sum():
            shifted |= are_numbers & ~last
    if not shifted.any():
        return frame
    kept = frame.taken(~shifted)
    left_out = {**frame.left_out, "that lack a cell, so that a number is no longer below its name":
                int(shifted.sum())}  # fmt: skip
    return replace(kept, left_out=left_out)


def _note_doubles(frame: Frame) -> None:
    """Gives columns of numbers with marks or spreads that are those of a plain column, rounded, the
    role of a text.
    """
    plain = dict[str, str]()
    for name, column in frame.columns.items():
        cells = [read_cell(value, column.comma) for value in column.values[:20]]
        notes = {cell.note for cell in cells if cell.value is not None}
        own = plain_name(name)
        if notes == {""}:
            plain[own.removesuffix("_mean").removesuffix("_avg")] = name
        elif notes and "" not in notes and name not in frame.parts:
            stems = (own.rsplit("_", n)[0] for n in range(own.count("_") + 1))
            of = next((plain[stem] for stem in stems if stem in plain), name)
            pair = np.stack([column.numbers(), frame.columns[of].numbers()])
            pair = pair[:, ~np.isnan(pair).any(axis=0)]
            if of != name and pair.size and np.allclose(pair[0], pair[1], 0.02, 0):
                frame.roles[name] = ("text", f"{of!r} written out")


def _without_groups(frame: Frame) -> Frame:
    """A table with names in two rows above its numbers, a row for each of the upper ones. They are
    arms where the rows are of data sets or instances, and tasks where these are metrics.
    """
    groups: dict[str, dict[str, str]] = {}  # {upper name: {lower name: column}}
    for column, (upper, lower) in frame.parts.items():
        groups.setdefault(upper, {})[lower] = column
    texts = [name for name, own in frame.columns.items() if not own.has_numbers()]
    repeated = Counter(lower for _, lower in frame.parts.values()).most_common(1)
    if len(groups) < 2 or not texts or repeated[0][1] < 2:
        return frame
    rows = _rows_are(texts[0], frame.columns[texts[0]])
    if not rows or any(plain_name(name) in ARM_WORDS for name in texts):
        return frame
    there = frame.columns[texts[0]].is_there()
    if not there.all():
        frame = frame.taken(there)
        frame.left_out[f"without {texts[0]!r}, as totals have"] = int((~there).sum())
    beside = [name for name in frame.columns if name not in frame.parts]
    is_label = distinct(group_codes(frame, texts)) == frame.rows
    kept = texts if is_label else beside
    name = next(each for each in ("group", "column group") if each not in beside)
    shown = ", ".join(itertools.islice(groups, 6))
    note = f"header: {shown} of its upper row are the column {name!r}, a row each"
    others = {each: frame.columns[each] for each in kept}
    lower_names = list(dict.fromkeys(lower for own in groups.values() for lower in own))
    whole = with_rows(frame, others, name, groups, lower_names, note)
    whole.parts = {}
    role = "arm" if rows == "task" else "task"
    whole.roles |= {name: (role, "the upper row of the header"), texts[0]: (rows, "by its name")}
    if lost := [each for each in beside if each not in kept]:
        whole.notes.append(f"not read: {', '.join(lost[:5])}, under no group of the header")
    return whole


def _rows_are(name: str, column: Column) -> str:
    """`metric` or `task` where a column says that its rows are of these; else ""."""
    names = [str(value) for value in column.present() if len(str(value)) <= MOST_CAPTION]
    known = [is_known(name) for name in names]
    if sum(known) * 2 > len(known):
        return "metric"
    is_task = role_of_name(name)[0] == "task" or ROWS_OF.fullmatch(plain_name(name))
    return "task" if is_task or CROSSING.fullmatch(plain_name(name)) else ""


def _is_number(row: Sequence[object]) -> bool:
    """Whether the one cell of a row is a number."""
    return any(read_cell(cell).value is not None for cell in row if not is_empty(cell))


class _Builder:
    """Rows into columns, a part at a time: each distinct text is kept once."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows = 0
        self.places: list[dict[Any, int]] = [{} for _ in range(width)]
        self.codes: list[list[Any]] = [[] for _ in range(width)]

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        width = self.width
        even = [row if len(row) == width else [*row, *[""] * width][:width] for row in rows]
        for place, cells in enumerate(zip(*even, strict=True)):
            known = self.places[place]
            for cell in dict.fromkeys(cells):
                known.setdefault(cell, len(known))
            codes = np.fromiter(map(known.__getitem__, cells), np.int32, len(cells))
            self.codes[place].append(codes)
        self.rows += len(rows)

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        columns = {}
        for name, known, codes in zip(names, self.places, self.codes, strict=True):
            whole = np.concatenate(codes) if codes else np.zeros(0, np.int32)
            columns[name] = Column(list(known), whole)
        return columns


@dataclass(frozen=True, slots=True)
class _Header:
    """names: of the columns, `named` of them without the blank ones at the end. above: lines before
    it. levels: rows that it has. parts: {column of numbers: (its first name, its last)} of a header
    of two rows.
    """

    names: list[str]
    named: int
    above: int
    levels: int
    first: tuple[str, ...]
    notes: list[str]
    parts: dict[str, tuple[str, str]]
    ends_in_text: bool

    @classmethod
    def of(cls, head: Sequence[Sequence[Any]], grid: Grid, *, spaced: bool = False) -> _Header:
        width = Counter(len(row) for row in head).most_common(1)[0][0]
        numeric = _numeric_places(head, width)
        is_named = grid.named and any(not is_empty(cell) for cell in head[0][1:])
        above = 0 if is_named else _header_place(head, numeric, width)
        if above is None:
            return cls([f"column {n}" for n in range(1, width + 1)], width, 0, 0, (), [
                "no row names the columns: they are numbered"
            ], {}, False)  # fmt: skip
        if above and _is_vague([_name(cell) for cell in head[above]], numeric):
            above -= _are_groups(head[above - 1], numeric)
        levels = [[_name(cell) for cell in head[above]]]
        longer = [len(row) == len(levels[0]) + 1 for row in head[above + 1 :]]
        if spaced and len(longer) > 1 and all(longer):  # names of rows, as of R
            levels[0].insert(0, "")
        is_vague = _is_vague(levels[0], numeric)
        body = above + 1
        while body < len(head) - 1 and len(levels) < 4:
            row = [_name(cell) for cell in head[body]]
            values = [row[place] for place in numeric if place < len(row)]
            if sum(map(_is_value, values)) * 2 > sum(bool(cell) for cell in values) and not (
                _are_numbered(levels[-1], row, numeric)
            ):
                break
            is_units = bool(values) and all(UNITS.fullmatch(cell) or not cell for cell in values)
            of_names = all(not cell for cell in values) and any(row)  # pandas' names of an index
            is_index = of_names and not any(map(min, zip(levels[0], row, strict=False)))
            if not (is_units and any(values)) and not is_index and not (
                is_vague and (any(values) or of_names)
            ):  # fmt: skip
                break
            if any(is_missing(cell) and cell for cell in values) and not is_units:
                break
            levels.append(row)
            body += 1
            is_vague = of_names or _is_vague(row, numeric) or is_vague
            if of_names:
                break
        named = max((n for row in levels for n, cell in enumerate(row, 1) if cell), default=width)
        names, parts, notes = _header_names(levels, numeric)
        last = [str(row[len(names) - 1]) for row in head[body:] if len(row) >= len(names)]
        spaces = sum(" " in cell.strip() for cell in last)
        is_text = len(names) - 1 not in numeric and spaces * 2 > len(last)
        return cls(names, named, above, len(levels), tuple(levels[0]), notes, parts, is_text)

    def repeated(self, row: Sequence[object]) -> bool:
        """Whether a row is the header again."""
        is_long = bool(self.first) and len(row) == len(self.first)
        return is_long and tuple(map(_name, row)) == self.first


def _name(cell: object) -> str:
    """The name of a column in one line, without marks and without a dead prefix of pandas."""
    text = " ".join(cell.split()) if isinstance(cell, str) else "" if is_empty(cell) else str(cell)
    text = re.sub(r"^(\*\*|__|`)(.*)\1$", r"\2", text)
    return "" if re.fullmatch(r"Unnamed: \d+(_level_\d+)?", text) else text


def _numeric_places(head: Sequence[Sequence[object]], width: int) -> list[int]:
    """The places of columns whose cells below the first rows are mostly numbers."""
    body = head[min(3, max(1, len(head) - 2)) :] or head
    places = []
    for place in range(width):
        cells = [row[place] for row in body if place < len(row) and not is_missing(row[place])]
        numbers = sum(map(_is_value, cells))
        if cells and numbers * 2 >= len(cells):
            places.append(place)
    return places


def _is_value(cell: object) -> bool:
    """Whether a cell is a number, also one with commas."""
    with_comma = r"\s*[-+]?\d[\d.,]*\s*%?\s*"
    return read_cell(cell).value is not None or bool(re.fullmatch(with_comma, str(cell)))


def _header_place(
    head: Sequence[Sequence[object]], numeric: Sequence[int], width: int
) -> int | None:
    """The row that names the columns; None where no row does."""
    if not numeric:
        counts = [sum(not is_empty(cell) for cell in row) for row in head[:12]]
        return counts.index(max(counts))
    for number, row in enumerate(head[:15]):
        if sum(" = " in str(cell) for cell in row) * 2 > len(row):
            continue  # settings, not names
        if len(row) > 1 and len(set(map(str, row))) == 1 and not is_empty(row[0]):
            continue  # a title over all columns
        cells = [row[place] for place in numeric if place < len(row)]
        texts = [cell for cell in cells if not is_empty(cell)]
        numbers = sum(read_cell(cell).value is not None for cell in texts)
        if len(texts) - numbers > numbers and len(texts) * 2 >= len(numeric):
            return number
        filled = sum(not is_empty(cell) for cell in row)
        if not texts and number == 0 and filled >= max(2, width - len(numeric)):
            return 0  # the columns of numbers have no name, as the index of pandas
        if number == 0 and filled * 2 > width and _is_counted(row, head[1:], numeric):
            return 0  # columns that are called 0, 1, 2 …, or by years
    first = head[0]
    is_text = [not is_empty(cell) and read_cell(cell).value is None for cell in first]
    return 0 if all(is_text) and len(first) >= 2 else None


def _are_groups(row: Sequence[object], numeric: Sequence[int]) -> bool:
    """Whether the row above a header whose names repeat has several names over its columns of
    numbers, the first of which has one.
    """
    cells = [row[place] for place in numeric if place < len(row)]
    texts = [cell for cell in cells if not is_empty(cell)]
    are_names = all(isinstance(cell, str) and read_cell(cell).value is None for cell in texts)
    return are_names and len(set(texts)) > 1 and not is_empty(cells[0])


def _is_counted(
    row: Sequence[object], body: Sequence[Sequence[object]], numeric: Sequence[int]
) -> bool:
    """Whether the numbers of a row are names of columns: they count 0, 1, 2 … or 1, 2, 3 …, or rise
    beside a text or a blank cell, over numbers that are no whole ones.
    """
    places = [n for n in numeric if n < len(row) and not is_empty(row[n])]
    cells = [read_cell(row[place]).value for place in places]
    steps = [b - a for a, b in itertools.pairwise(c for c in cells if c is not None)]
    if None in cells or not steps or min(steps) <= 0 or any(c is None or c % 1 for c in cells):
        return False
    if len(steps) > 1 and max(steps) == 1 and cells[0] in (0, 1):
        return True
    below = [read_cell(one[n]).value for one in body[:20] for n in places if n < len(one)]
    return len(places) < len(row) and sum(bool(c and c % 1) for c in below) * 2 > len(below)


def _are_numbered(above: Sequence[str], row: Sequence[str], numeric: Sequence[int]) -> bool:
    """Whether a row has nothing but a whole number below each name of a header, which tells equal
    names apart: `fog, fog, snow` above `1, 2, 1`.
    """
    places = [place for place in numeric if place < min(len(row), len(above))]
    names = [above[place] for place in places]
    pairs = {(name, row[place]) for name, place in zip(names, places, strict=True)}
    return len(set(names)) < len(names) == len(pairs) == sum(map(bool, row)) and (
        all(row[place].isdecimal() for place in places)
    )


def _is_vague(names: Sequence[str], numeric: Sequence[int]) -> bool:
    """Whether some column of numbers has no name of its own: a second row may have it."""
    own = [names[place] for place in numeric if place < len(names)]
    return any(not name for name in own) or len(set(own)) < len(own)


def _header_names(
    levels: list[list[str]], numeric: Sequence[int]
) -> tuple[list[str], dict[str, tuple[str, str]], list[str]]:
    """The names of columns from the rows of a header, the parts of those of numbers, and notes."""
    width = max(len(row) for row in levels)
    rows = [[*row, *[""] * width][:width] for row in levels]
    notes: list[str] = []
    parts: dict[str, tuple[str, str]] = {}
    units = [""] * width
    if len(rows) > 1:
        notes.append(f"header: {len(rows)} rows")
        if all(UNITS.fullmatch(cell) or not cell for cell in rows[-1]):
            units = [f" ({cell.strip('()[] ')})" if cell else "" for cell in rows.pop()]
            shown = " ".join(dict.fromkeys(unit.strip(" ()") for unit in units if unit))
            notes[-1] += f", the last one of units ({shown})"
    if len(rows) > 1:
        for row in rows[:-1]:
            for place in range(1, width):
                if not row[place] and place in numeric and place - 1 in numeric:
                    row[place] = row[place - 1]
        names = []
        for place in range(width):
            cells = list(dict.fromkeys(row[place] for row in rows if row[place]))
            if place not in numeric and len(cells) > 1:
                cells = cells[-1:]  # of an index: the levels' own names stand above it
            names.append("/".join(cells))
            if place in numeric and len(cells) == 2:
                parts[names[-1]] = (cells[0], cells[1])
    else:
        stay = "[%↑↓]" if len(set(rows[0])) == width else "."  # of shares, directions, equal names
        names = [n + u * bool(re.search(stay, u)) for n, u in zip(rows[0], units, strict=True)]
    count = Counter(names)
    again = [place for place, name in enumerate(names) if name and count[name] > 1]
    if any(place in numeric for place in again):
        first = names[again[0]]
        places = [str(n) for n, name in enumerate(names, 1) if name == first]
        where = f"columns {', '.join(places)}"
        raise ValueError(f"two columns have the name {first!r} ({where}): rename one")
    for place in again:  # such as links
        names[place] += f" ({place + 1})"
    blank = 0
    for place, name in enumerate(names):
        if not name:
            blank += 1
            names[place] = "" if blank == 1 else f"column {place + 1}"
    return names, parts, notes


# --- what trackers write as text ------------------------------------------------------------------


def _known_text_form(frame: Frame) -> Frame:
    """What the names of the columns say of the program that wrote a table."""
    names = set(frame.columns)
    if (step := _axis_of_chart(frame)) is not None:
        return _chart(frame, step)
    if {"Wall time", "Step", "Value"} <= names:
        frame.form, frame.history = SCALAR_FORM, "Step"
    elif names == {"r", "l", "t"}:
        frame.form, frame.history = "Stable-Baselines3's monitor, a row an episode", "t"
        frame.roles |= {"t": ("step", "the end of an episode"), "l": ("count", "its length")}
    elif {"Tasks", "Metric", "Value"} <= names and ("n-shot" in names or "Filter" in names):
        _lm_eval_table(frame)
    elif {"summary", "config"} <= names:
        return _api_export(frame)
    return frame


def _axis_of_chart(frame: Frame) -> str | None:
    """The column by which a chart of W&B is drawn; None of another table."""
    axes = [name for name in frame.columns if not TRACKED.match(name)]
    if not axes or len(axes) == len(frame.columns):
        return None
    numbers = [frame.columns[name].numbers() for name in axes]
    numbers = [one[~np.isnan(one)] for one in numbers]
    are_axes = [len(one) > 0 and bool((np.diff(one) >= 0).all()) for one in numbers]
    named = [name for name in axes if re.search(r"step|epoch|iter|time", name, re.I)]
    is_chart = "Step" in axes or len(axes) == 1 or len(named) == len(axes)
    return (named or axes)[0] if all(are_axes) and is_chart else None


def _chart(frame: Frame, step: str) -> Frame:
    """W&B's export of a chart, `RUN - METRIC` by step: the last value of each run and metric."""
    rows, ends = [], dict[str, float]()
    chart = Frame({}, 0)
    for name, column in frame.columns.items():
        found = TRACKED.match(name)
        there = np.flatnonzero(column.is_there())
        if found is None:
            chart.original[name] = ("step" if name == step else "time", "an axis of the chart")
        elif found["extreme"]:
            chart.original[name] = ("spread", "an extreme of the smoothed line")
        elif found["metric"] in TRACKER_AXES:
            chart.original[name] = ("step", "the tracker's own")
        else:
            chart.original[name] = ("value", "a run and a metric")
        if found is not None and chart.original[name][0] == "value" and len(there):
            run = re.sub(r"^(Group|group): ", "", found["run"])
            last = column.at(there[-1])
            rows.append({"run": run, "task": found["metric"], "value": last})
            end = frame.columns[step].numbers()[there[-1]]
            ends[run] = max(ends.get(run, end), end)
    chart = replace(frame_of_records(rows, "W&B's chart"), original=chart.original)
    if len(chart.columns["task"].values) > 1:  # they have no average
        chart.columns["metric"] = chart.columns.pop("task")
        chart.roles["metric"] = ("metric", "of the chart")
    last_step = max(ends.values(), default=0.0)
    frame.notes += [
        f"{run} ended at {end:g}, others at {last_step:g}" for run, end in ends.items()
        if end < last_step
    ]  # fmt: skip
    if not re.search(r"step|epoch|iter", step, re.I):
        chart.original[step] = ("time", "the axis of the chart")
    chart.notes = [*frame.notes, f"{step}: the last value of each run and metric counts"]
    chart.left_out = {"earlier steps of a chart": max(0, frame.rows - 1)}
    return chart


def _lm_eval_table(frame: Frame) -> None:
    """The table that lm-eval prints: blank cells repeat those above, and ↑ ↓ are directions."""
    frame.form = "lm-eval's printed table"
    for name in {"Tasks", "Version", "n-shot"} & set(frame.columns):
        column = frame.columns[name]
        frame.columns[name] = column.filled(~column.is_there())
    if "Filter" in frame.columns and "Metric" in frame.columns:
        metric, part = frame.columns["Metric"], frame.columns["Filter"]
        pairs = zip(metric.codes.tolist(), part.codes.tolist(), strict=True)
        names = [(str(metric.values[a]).strip(), str(part.values[b]).strip()) for a, b in pairs]
        frame.columns["Metric"] = column_of(
            [name if own in ("", "none") else f"{name} ({own})" for name, own in names]
        )
        frame.roles["Filter"] = ("text", "the filter of an answer is in the name of the metric")
    groups = [re.sub(r"^\s*-\s*", "", str(cell)) for cell in frame.columns["Tasks"].values]
    frame.columns["Tasks"] = recoded(groups, frame.columns["Tasks"].codes)
    frame.roles |= {
        "Tasks": ("task", "of lm-eval"), "Metric": ("metric", "of lm-eval"),
        "Value": ("value", "of lm-eval"), "Stderr": ("spread", "of lm-eval"),
        "n-shot": ("task", "shots are parts of the task"),
        "Version": ("setting", "of lm-eval's task"),
    }  # fmt: skip
    for name, column in frame.columns.items():
        if ARROWS.keys() & set(map(str, column.values)):
            frame.columns[name] = column.mapped(lambda cell: ARROWS.get(str(cell), ""))
            frame.roles[name] = ("direction", "arrows of lm-eval")
        elif set(map(str, column.values)) <= {"±", ""}:
            frame.roles[name] = ("text", "the sign in front of the standard error")


def _api_export(frame: Frame) -> Frame:
    """W&B's documented table of wandb.Api().runs(): dictionaries as text in two columns."""
    import ast

    rows: list[dict[str, Any]] = []
    for number in range(frame.rows):
        row: dict[str, Any] = {}
        for name, column in frame.columns.items():
            cell = column.at(number)
            if name in ("summary", "config"):
                text = re.sub(r"\bnan\b", "None", str(cell))
                try:
                    inner = ast.literal_eval(text) if text.strip() else {}
                except (ValueError, SyntaxError, MemoryError, RecursionError):
                    inner = None
                if not isinstance(inner, Mapping):
                    where = f"row {number + 1}: column {name!r} of W&B's export"
                    raise ValueError(f"{where} holds no dictionary")
                row |= {f"{name}.{key}": each for key, each in inner.items()}
            else:
                row[name] = cell
        rows.append(row)
    export = frame_of_json(rows, form="W&B's table of runs")
    export.notes += frame.notes
    return export
