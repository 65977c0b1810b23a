"""Tables as files: formats, damaged rows, and lines without end, which cost themselves."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Source
from clipmill.pipeline import table_files as tables
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.parts import read_parts, reason_totals
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.table_files import bounded_lines
from tests.support import commands
from tests.support.url_tables import read, table, texts

A, B = ('{"url": "http://p.test/1", "caption": "a"}', '{"url": "http://p.test/2", "caption": "b"}')


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"[{A}, {B}]", "ab"),
        (A, "a"),
        (f"{A}\n{B}\n", "ab"),
        ('{"url": ["http://p.test/1", "http://p.test/2"], "caption": ["a", "b"]}', "ab"),
        ('{"url": {"0": "http://p.test/1", "1": "u"}, "caption": {"0": "a", "1": "b"}}', "a"),
        ("[]", ""),
        ("", ""),
    ],
)
def test_a_json_file_is_an_array_one_object_or_several(
    text: str, left: str, tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text(text)
    assert "".join(caption for _, caption in texts(tmp_path / "t.json")) == left


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"url": "http://p.test/1" "caption": "a"}]', "is no JSON from its character 1 on"),
        (f'[{A}, {{"u": ', "ends in the middle of its array"),
        ('{"url": ["http://p.test/1"], "caption": ["a", "b"]}', "whose columns differ in length"),
        (f'[{A}, "{"x" * 300}"]', "more than 256 characters: write it as jsonl"),
    ],
)
def test_a_json_file_that_cannot_be_read_on_is_an_error(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LARGEST_JSON", 256)
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "t.json")


def test_a_cut_gzip_file_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    for name in ("t.csv.gz", "t.jsonl.gz", "t.json.gz"):
        whole = Path(table(tmp_path / name)).read_bytes()
        (tmp_path / name).write_bytes(whole[:-12])
        with pytest.raises(disk.DamagedTable, match="cannot be unpacked: it is cut off"):
            read(tmp_path / name)


def test_a_field_without_end_costs_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = csv.field_size_limit(100)
    try:
        (tmp_path / "t.csv").write_text(
            f'url,caption\nhttp://p.test/1,a\n"{"x" * 200}",b\nhttp://p.test/3,c\n'
        )
        rows, counts = read(tmp_path / "t.csv")
    finally:
        csv.field_size_limit(old)
    assert [row["caption"] for row in rows] == ["a", "c"]
    assert counts["damaged"] == 1


def test_a_tsv_caption_that_begins_with_a_quotation_mark_costs_nothing(tmp_path: Path) -> None:
    lines = [f"http://p.test/{i}.jpg\tcaption {i}" for i in range(20_000)]
    lines[100] = 'http://p.test/100.jpg\t"Never closed'
    lines[200] = 'http://p.test/200.jpg\t"closed"'
    (tmp_path / "t.tsv").write_text("\n".join(["url\tcaption", *lines, ""]))
    rows, counts = read(tmp_path / "t.tsv")
    assert counts == {"links": 20_000, "pairs": 20_000}
    assert [rows[100]["caption"], rows[200]["caption"]] == ['"Never closed', '"closed"']
    (tmp_path / "t.tsv").write_text('"url"\t"caption"\n"http://p.test/1"\t"a"\n')
    with pytest.raises(
        ValueError, match=r"no column 'url'; a \.tsv is read without quotation mark"
    ):
        read(tmp_path / "t.tsv")


def test_a_csv_quotation_mark_that_never_closes_costs_its_row(tmp_path: Path) -> None:
    lines = [f"http://p.test/{i}.jpg,caption {i}" for i in range(1000)]
    lines[10] = 'http://p.test/10.jpg,"two\nlines ""quoted"""'
    lines[500] = 'http://p.test/500.jpg,"Never closed'
    (tmp_path / "t.csv").write_text("\n".join(["url,caption", *lines, ""]))
    rows, counts = read(tmp_path / "t.csv")
    assert counts == {"links": 1000, "pairs": 999, "damaged": 1}
    assert rows[10]["caption"] == 'two\nlines "quoted"'
    assert [row["link"] for row in rows] == [i for i in range(1000) if i != 500]


DEEP = "[" * 100_000 + "]" * 100_000
BAD_ROWS = {
    "half a surrogate pair": '{"url": "http://p.test/bad", "caption": "a \\ud800 b", "n": "x"}',
    "half a surrogate pair in the address": '{"url": "http://p.test/\\udfff", "caption": "c"}',
    "nested 100,000 deep": f'{{"url": "http://p.test/bad", "caption": "c", "n": {DEEP}}}',
    "a number of 5,000 digits": f'{{"url": "http://p.test/bad", "caption": {"9" * 5000}}}',
    "no comma": '{"url": "http://p.test/bad" "caption": "c"}',
}


@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_row_of_json_costs_itself(bad: str, name: str, tmp_path: Path) -> None:
    """What is no JSON costs the file, where that is one document."""
    good = [f'{{"url": "http://p.test/{i}", "caption": "c{i}", "n": "x"}}' for i in range(3)]
    lines = [good[0], BAD_ROWS[bad], *good[1:]]
    array = f"[{','.join(lines)}]"
    (tmp_path / name).write_text(array if name == "t.json" else "\n".join(lines))
    pool = str(tmp_path / "pool")
    source = Source(
        kind="table", paths=(str(tmp_path / name),), extra_columns={"n": "string", "j": "n:json"}
    )
    if name == "t.json" and "surrogate" not in bad:
        with pytest.raises(ValueError, match="is no JSON from its character"):
            crawl(source, PoolWriter(pool), "inline")
        return
    totals = crawl(source, PoolWriter(pool), "inline")
    assert (totals["failed"], totals["pairs"], totals["reasons"]) == ({}, 3, {"damaged": 1})
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [row["caption"] for row in rows] == ["c0", "c1", "c2"]


def test_invalid_utf8_in_a_parquet_column_costs_its_row(tmp_path: Path) -> None:
    values = {
        "url": [b"http://p.test/1", b"http://p.test/2\xff", b"http://p.test/3", b"http://p.test/4"],
        "caption": [b"a", b"b", b"c\xe9", "é".encode()],
        "label": [b"\xff", b"l", b"l", b"l"],
    }
    columns = {name: pa.array(texts).view(pa.string()) for name, texts in values.items()}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows, counts = read(tmp_path / "t.parquet", extra_columns={"label": "string"})
    assert [(row["caption"], row["label"]) for row in rows] == [("a", None), ("é", "l")]
    assert counts == {"links": 4, "pairs": 2, "damaged": 2}


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"has no column 'similarity'"):
        list(tables.values(path, ["url", "similarity"]))
    parquet = tmp_path / "t.parquet"
    doubled = pa.Table.from_arrays([pa.array(["x"])] * 2, names=["url", "url"])
    pq.write_table(doubled, parquet)
    with pytest.raises(ValueError, match=r"t\.parquet has two columns 'url'; give one of them"):
        list(tables.values(str(parquet), ["url"]))
    for content in (b"", b"url,caption\n"):
        parquet.write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.parquet is damaged, or no Parquet file"):
            list(tables.values(str(parquet), ["url"]))
    names = ("a.csv.gz", "a.parquet.gz", "a.xls")
    assert [tables.is_table(name) for name in names] == [True, False, False]


def test_whatever_bit_of_a_parquet_footer_is_damaged_it_is_read_or_named(tmp_path: Path) -> None:
    """pyarrow ends the process at some of them."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"url": ["http://p.test/1"]}), sink, store_schema=False)
    data, path = sink.getvalue(), tmp_path / "t.parquet"
    end = len(data) - 8
    damaged = 0
    for bit in range(8 * (end - int.from_bytes(data[-8:-4], "little")), 8 * end, 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert len(list(tables.values(str(path), ["url"]))) <= 1
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            damaged += 1
    assert damaged > 100


def test_a_footer_that_names_more_than_it_holds_ends(tmp_path: Path) -> None:
    footer = b"\x49\xf1" + b"\xff" * 7 + b"\x01"  # row groups: a list of 2^50 truth values
    size = len(footer).to_bytes(4, "little")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + footer + size + b"PAR1")
    with pytest.raises(OSError, match="it ends too early"):
        tables.row_groups(tmp_path / "t.parquet")


def test_the_checksum_of_a_page_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = pa.table({"url": [f"http://p.test/{i}" for i in range(3)]})  # one is no extreme
    pq.write_table(rows, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"p.test/1", b"q.test/1", 1))
    with pytest.raises(disk.DamagedTable, match="CRC"):
        list(tables.values(str(path), ["url"]))


def test_zeros_in_place_of_a_text_are_no_encoding(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(bytes(500))
    with pytest.raises(disk.DamagedTable, match=r"t\.csv begins with zeros and no text; get"):
        list(tables.values(str(tmp_path / "t.csv"), ["url"]))


def test_what_is_read_from_a_footer_is_what_pyarrow_reads(tmp_path: Path) -> None:
    rows = {
        "a": [None, "x", "y" * 100] * 50,
        "b": [{"bytes": b"1", "n": [1.5, None]}] * 150,
        "c": [True, None, False] * 50,
    }
    pq.write_table(pa.table(rows), tmp_path / "t.parquet", row_group_size=7)
    footer = pq.read_metadata(tmp_path / "t.parquet")
    groups = disk.read_with(tmp_path / "t.parquet", tables.row_groups)
    assert len(groups) == footer.num_row_groups == 22
    for number, group in enumerate(groups):
        chunks = [footer.row_group(number).column(i) for i in range(footer.num_columns)]
        assert group.rows == footer.row_group(number).num_rows
        assert group.chunks == [
            (
                c.path_in_schema, c.num_values, c.statistics.null_count,
                c.total_compressed_size, c.total_uncompressed_size,
            )
            for c in chunks
        ]  # fmt: skip


def test_a_table_without_a_header(tmp_path: Path) -> None:
    """CC3M has captions first, CC12M URLs; both are .tsv files whose first line is a row."""
    lines = ['a "quoted cat\thttp://p.test/1', "größe, 1\thttp://p.test/2\r", "one field", "\t"]
    for name in ("cc3m.tsv", "cc3m.tsv.gz"):
        data = "\n".join(lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        rows, counts = read(tmp_path / name, columns=("caption", "url"))
        assert [(row["url"], row["caption"], row["link"]) for row in rows] == [
            ("http://p.test/1", 'a "quoted cat', 0),
            ("http://p.test/2", "größe, 1", 1),
        ]
        assert (counts["damaged"], counts["empty_alt"]) == (1, 1)
        with pytest.raises(ValueError, match=r"a table without a header needs columns: \[NAME, "):
            read(tmp_path / name)
        with pytest.raises(ValueError, match=r"no column 'text'"):
            read(tmp_path / name, columns=("caption", "url"), caption_column="text")
    (tmp_path / "t.csv").write_text('http://p.test/1,"a, ""b\nc"\nhttp://p.test/2,d\n')
    assert texts(tmp_path / "t.csv", columns=("url", "caption")) == [("1", 'a, "b\nc'), ("2", "d")]
    for name in ("t.parquet", "t.jsonl"):
        table(tmp_path / name)
        with pytest.raises(ValueError, match=r"only \.tsv, \.csv, \.txt can be; leave it out"):
            read(tmp_path / name, columns=("url", "caption"))


def test_coco_as_a_table_of_urls(tmp_path: Path) -> None:
    document = {
        "images": [{"id": "x", "coco_url": "http://p.test/x"}, 3, {"id": 1}],
        "annotations": [{"image_id": "x", "caption": "a"}, {"image_id": "x", "caption": {"b": 1}}],
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    rows, counts = read(tmp_path / "c.json", url_column="coco_url")
    assert [(row["url"], row["caption"]) for row in rows] == [("http://p.test/x", "a")]
    assert counts == {"links": 4, "pairs": 1, "damaged": 2, "no_alt": 1}


@pytest.mark.parametrize("ending", [".csv.gz", ".tsv.gz", ".jsonl.gz", ".json.gz", ".txt.gz"])
def test_a_table_whose_compressed_bytes_are_damaged_is_a_failed_task(
    tmp_path: Path, ending: str
) -> None:
    """zlib's error is no OSError: it must not end the check before the first task."""
    rows = "".join(f"http://p.test/{i},a b {i * 7919}\n" for i in range(3000))
    content = bytearray(gzip.compress(f"url,caption\n{rows}".encode()))
    content[40] ^= 0xFF
    path = tmp_path / f"t{ending}"
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"t\..* cannot be unpacked"):
        list(tables.values(str(path), ["url"]))
    source = Source(kind="table", paths=(str(path),), caption_column=None)
    failed = crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")["failed"]
    assert list(failed) == [str(path)]
    assert "cannot be unpacked" in failed[str(path)]


def crawled(path: Path, source: str = "") -> tuple[int, list[dict[str, Any]], dict[str, int]]:
    """A build from a table of strangers: its status, its pairs and the rows that it dropped."""
    recipe, pool = path.with_suffix(".yaml"), path.with_suffix(".pool")
    recipe.write_text(
        f"name: r\nsource: {{kind: table, paths: [{path.name}]{source}}}\n"
        "fetch: {user_agent: 'test (+http://clipmill.example)'}\n"
    )
    words = [str(recipe), "--out", str(pool), "--until", "crawl", "--engine", "inline"]
    status = commands.build(words)
    parts = read_parts(PoolLayout(str(pool)))
    if status or parts is None:
        return status, [], {}
    pairs = disk.read_parquet(pool / "pairs" / "part-00000.parquet").to_pylist()
    return status, pairs, {name: count for name, count in reason_totals(parts).items() if count}


BYTES = {
    "t.csv": b'url,caption,n\nU1,"caf\xe9\nau lait",1\nU2,plain,2\nU3\xff,ok,3\nU4,plain,\xe9\n',
    "t.tsv": b"url\tcaption\tn\nU1\tcaf\xe9\t1\nU2\tplain\t2\nU3\xff\tok\t3\nU4\tplain\t\xe9\n",
    "t.json": b'[{"url": "U1", "caption": "caf\xe9"}, {"url": "U2", "caption": "plain", "n": "2"}, '
    b'{"url": "U3\xc3", "caption": "ok"}, {"url": "U4", "caption": "plain", "n": "\xe9"}]',
}


@pytest.mark.parametrize("name", BYTES)
def test_text_that_is_not_utf8_costs_its_row_and_is_never_changed(
    name: str, tmp_path: Path
) -> None:
    """A bad byte of an extra column costs its value."""
    path = tmp_path / name
    path.write_bytes(BYTES[name].replace(b"U", b"http://p.test/"))
    status, pairs, dropped = crawled(path, ", extra_columns: {n: int, text: 'n:string'}")
    assert (status, dropped) == (0, {"damaged": 2})
    expected = [("http://p.test/2", "plain", 2, "2"), ("http://p.test/4", "plain", None, None)]
    assert [(pair["url"], pair["caption"], pair["n"], pair["text"]) for pair in pairs] == expected


def test_a_url_list_that_is_not_utf8_costs_its_lines(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"http://p.test/\xe9.jpg\nhttp://p.test/1.jpg\n")
    status, pairs, dropped = crawled(tmp_path / "t.txt", ", caption_column: null")
    assert (status, dropped) == (0, {"damaged": 1})
    assert [pair["url"] for pair in pairs] == ["http://p.test/1.jpg"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "url,caption\nhttp://p.test/1,a\n".encode("utf-16"), "is UTF-16; write it"),
        ("t.jsonl", '{"url": "u", "caption": "c"}\n'.encode("utf-16-be"), "is UTF-16BE; write"),
        ("t.jsonl", '\ufeff{"url": "u", "caption": "c"}\n'.encode("utf-16-be"), "is UTF-16"),
        ("t.tsv", b"url\tl\xe9gende\nhttp://p.test/1\ta\n", "its header is not UTF-8"),
        ("t.csv", b"url,caption,caption\nhttp://p.test/1,a,b\n", "has two columns 'caption'"),
        ("t.tsv", b"url\turl\tcaption\nhttp://p.test/1\ta\tb\n", "has two columns 'url'"),
        ("t.csv", b"url,caption,n,n\nhttp://p.test/1,a,b,c\n", None),  # no rule reads it
    ],
)
def test_a_table_that_cannot_be_read_as_it_is_meant_is_refused_by_name(
    name: str,
    content: bytes,
    message: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    status, pairs, dropped = crawled(tmp_path / name)
    if message is None:
        assert (status, len(pairs) + dropped.get("damaged", 0)) == (0, 1)
        return
    assert status == 2
    assert message in capsys.readouterr().err


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
