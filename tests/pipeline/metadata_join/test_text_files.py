"""Pieces of text tables: rows in their order, first numbers, and lines in errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pipeline import metadata_join
from pipeline.metadata_join import read_pieces, text_of


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_pieces_have_all_rows_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(metadata_join, "ROWS", 4)
    path = tmp_path / f"x{ending}"
    if ending == ".csv":
        lines = ["a,b", *(f'"{i}\n,",{i or ""}' for i in range(10)), "", ""]
    else:
        rows = [{"b": str(i) if i else None, "a": f"{i}\n,"} for i in range(10)]
        lines = [json.dumps(row) for row in rows]
        lines[3:3] = ["", "  "]
    path.write_text("\n".join(lines))
    pieces = list(read_pieces(str(path), ["b", "a"]))
    assert [first for first, _ in pieces] == [0, 4, 8]
    columns = [values for _, values in pieces]
    assert [v for b, _ in columns for v in b] == [None, *map(str, range(1, 10))]
    assert [v for _, a in columns for v in a] == [f"{i}\n," for i in range(10)]


def test_errors_name_the_line_and_leave_the_limit_of_the_csv_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = csv.field_size_limit()
    monkeypatch.setattr(metadata_join, "LONGEST_LINE", 50)
    for name, text, message in (
        ("a.csv", "a\n1\n" + 60 * "x", "line 3 has more than 50 bytes"),
        ("b.jsonl", '{"a": 1}\n\n{]', "line 3 is not JSON"),
        ("c.jsonl", '{"b": 1}\n', "no column 'a'"),
        ("d.tsv", 'a\tb\n1\t"2\n', "line 2: unexpected end of data"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            list(read_pieces(str(path), ["a"]))
    assert csv.field_size_limit() == limit


def test_values_as_text() -> None:
    assert [text_of(v) for v in (None, "é", 5, ["é"])] == [None, "é", "5", '["é"]']
