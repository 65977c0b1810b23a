"""A small .xlsx of rows of cells, for tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/worksheets/sheet1.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.spreadsheetml.worksheet+xml"/></Types>'
)
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def xlsx(rows: Sequence[Sequence[Any]], merged: Sequence[str] = (), sheet: str = "Sheet1") -> bytes:
    """One sheet. merged: ranges such as A2:A4."""
    lines = []
    for number, row in enumerate(rows, 1):
        cells = "".join(_cell(f"{_letters(place)}{number}", cell) for place, cell in enumerate(row))
        lines.append(f'<row r="{number}">{cells}</row>')
    ranges = "".join(f'<mergeCell ref="{one}"/>' for one in merged)
    merges = f'<mergeCells count="{len(merged)}">{ranges}</mergeCells>' if merged else ""
    body = f'<worksheet xmlns="{MAIN}"><sheetData>{"".join(lines)}</sheetData>{merges}</worksheet>'
    book = (
        f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
        f'<sheet name="{escape(sheet)}" sheetId="1" r:id="rId1"/></sheets></workbook>'
    )
    files = {
        "[Content_Types].xml": TYPES,
        "_rels/.rels": _relation("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": book,
        "xl/_rels/workbook.xml.rels": _relation("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": body,
    }
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return sink.getvalue()


def _relation(kind: str, target: str) -> str:
    return (
        f'<Relationships xmlns="{RELATIONS}"><Relationship Id="rId1" Type="{OFFICE}/{kind}" '
        f'Target="{target}"/></Relationships>'
    )


def _letters(place: int) -> str:
    text = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        text = chr(65 + rest) + text
    return text


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<c r="{name}"><v>{value}</v></c>'
    return f'<c r="{name}" t="inlineStr"><is><t>{escape(str(value))}</t></is></c>'
