"""Lines without end cost themselves, in every kind of table."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest

from pipeline import table_files as tables
from pipeline.table_files import bounded_lines

LONG = "x" * 300
TABLES = {
    "t.csv": f"url,caption\nhttp://p.test/1,a\nhttp://p.test/2,{LONG}\nhttp://p.test/3,c\n",
    "quoted.csv": f'url,caption\nhttp://p.test/1,a\nhttp://p.test/2,"b\n{LONG}"\n'
    "http://p.test/3,c\n",
    "t.tsv": f"url\tcaption\nhttp://p.test/1\ta\nhttp://p.test/2\t{LONG}\nhttp://p.test/3\tc\n",
    "t.jsonl": '{"url": "http://p.test/1", "caption": "a"}\n'
    f'{{"url": "http://p.test/2", "caption": "{LONG}"}}\n'
    '{"url": "http://p.test/3", "caption": "c"}\n',
    "t.txt": f"http://p.test/1\nhttp://p.test/{LONG}\nhttp://p.test/3\n",
}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("length", range(9, 14))
def test_a_line_of_any_length_is_whole_or_none(
    ending: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LONGEST_LINE", 11)
    lines = ["short" + ending, "y" * length + ending, ending, "last"]
    binary = list(bounded_lines(io.BytesIO("".join(lines).encode())))
    fits = len(lines[1]) <= 11
    assert binary == [line.encode() if fits or line != lines[1] else None for line in lines]
    # In text a "\r" at the limit ends a line too; the "\n" behind it is an empty line: no row.
    text = bounded_lines(io.StringIO("".join(lines), newline=""))
    stripped = [line if line is None else line.strip() for line in text]
    in_text = "y" * length if fits or length == 10 else None
    assert [line for line in stripped if line != ""] == ["short", in_text, "last"]


@pytest.mark.parametrize("name", TABLES)
def test_a_line_without_end_costs_its_row(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LONGEST_LINE", 200)
    (tmp_path / name).write_text(TABLES[name])
    columns = ["url"] if name.endswith(".txt") else ["url", "caption"]
    rows = list(tables.values(str(tmp_path / name), columns))
    assert [row[0] for row in rows if row] == ["http://p.test/1", "http://p.test/3"]
    assert None in rows


def test_a_header_without_end_is_a_missing_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LONGEST_LINE", 200)
    for name in ("t.csv", "t.tsv"):
        (tmp_path / name).write_text(LONG + "\nhttp://p.test/1\n")
        with pytest.raises(tables.MissingColumn, match="has no column 'url'"):
            list(tables.values(str(tmp_path / name), ["url"]))


def test_a_small_file_that_unpacks_to_one_line_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LONGEST_LINE", 1 << 16)
    with gzip.open(tmp_path / "t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"url\n" + bytes(1 << 24) + b"\nhttp://p.test/1\n")
    tracemalloc.start()
    try:
        rows = list(tables.values(str(tmp_path / "t.csv.gz"), ["url"]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == [None, ["http://p.test/1"]]
    assert peak < 1 << 21
