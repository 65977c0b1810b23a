"""Url lists: every format gives the same pairs, extra columns keep their types, and what is wrong
is said.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.columns import PAIRS, with_extra
from manifests.schema import Source
from pipeline.archives import PartCounts
from pipeline.crawl import table_files
from pipeline.crawl.crawler import crawl, parts
from pipeline.crawl.tables import url_table

ROWS = [
    ("http://p.test/a.jpg", "plain"),
    ("http://p.test/b.jpg", 'with "quotes", commas\nand a second line'),
    ("ftp://p.test/c.jpg", "not for us"),
    ("no address", "text"),
    ("http://p.test/d.jpg", ""),
    ("http://p.test/a.jpg", "plain"),
    ("  http://p.test/é.jpg#x", "東京 \u00a0"),
]
LEFT = [
    ("http://p.test/a.jpg", "plain", 0),
    ("http://p.test/b.jpg", 'with "quotes", commas\nand a second line', 1),
    ("http://p.test/é.jpg", "東京 \u00a0", 6),
]
FORMATS = [
    "t.parquet",
    *(f"t.{kind}{gz}" for kind in ("csv", "tsv", "json", "jsonl", "ndjson") for gz in ("", ".gz")),
]


def left(name: str) -> list[tuple[str, str, int]]:
    """LEFT as a format can hold it: a .tsv has no line breaks inside a value."""
    one_line = name.removesuffix(".gz").endswith(".tsv")
    return [(url, text.replace("\n", " ") if one_line else text, row) for url, text, row in LEFT]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """Rows in the format of the name."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
        return str(path)
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8-sig" if kind == "csv" else "utf-8", newline="") as f:
        if kind in ("jsonl", "ndjson"):
            f.writelines(json.dumps(row) + "\n" for row in rows)
        elif kind == "json":
            json.dump(rows, f, indent=1)
        else:
            header = list(rows[0])
            if kind == "tsv":
                lines = [
                    header,
                    *([str(row[name]).replace("\n", " ") for name in header] for row in rows),
                ]
                f.writelines("\t".join(line) + "\n" for line in lines)
            else:
                writer = csv.DictWriter(f, header)
                writer.writeheader()
                writer.writerows(rows)
    return str(path)


def table(path: Path, columns: tuple[str, str, str] = ("n", "url", "caption")) -> str:
    """ROWS with a number before them."""
    return write(path, [dict(zip(columns, (i, *row), strict=True)) for i, row in enumerate(ROWS)])


def read(path: str | Path, **fields: Any) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows of a table as dicts, and the counts, which must add up."""
    source = Source(kind="table", paths=(str(path),), **fields)
    names = with_extra(PAIRS, source.extra_columns).names
    counts: Counter[str] = Counter()
    rows = url_table(source).rows(str(path), counts)
    rows = [dict(zip(names, row, strict=True)) for row in rows]
    assert counts["links"] == counts["pairs"] + counts.total() - counts["links"] - counts["pairs"]
    return rows, counts


def texts(path: str | Path, **fields: Any) -> list[tuple[str, str]]:
    return [(row["url"].rpartition("/")[2], row["caption"]) for row in read(path, **fields)[0]]


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_tables_in_every_format_give_the_same_pairs(tmp_path: Path, name: str) -> None:
    pool = str(tmp_path / "pool")
    totals = crawl(Source(kind="table", paths=(table(tmp_path / name),)), pool, "inline")
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [(r["url"], r["caption"], r["link"]) for r in rows] == left(name)
    assert {r["wat"] for r in rows} == {name}
    assert rows[0]["uid"] == disk.uid_of("http://p.test/a.jpg", "plain")
    assert totals["reasons"] == {"bad_url": 1, "duplicate_pair": 1, "empty_alt": 1, "scheme": 1}
    assert totals["links"] == totals["pairs"] + sum(totals["reasons"].values()) == 7


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_list_of_urls_has_no_captions(tmp_path: Path, name: str) -> None:
    data = b"\xef\xbb\xbfhttp://p.test/a.jpg\r\n\n  http://p.test/b.jpg \nftp://p.test/c.jpg\nhttp://p.test/d.jpg"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    rows, counts = read(tmp_path / name, caption_column=None)
    assert [(row["url"], row["caption"], row["link"]) for row in rows] == [
        ("http://p.test/a.jpg", "", 0),
        ("http://p.test/b.jpg", "", 1),
        ("http://p.test/d.jpg", "", 3),
    ]
    assert rows[0]["uid"] == disk.uid_of("http://p.test/a.jpg", "")
    assert counts == {"links": 4, "pairs": 3, "scheme": 1}
    with pytest.raises(
        ValueError, match=r"list of URLs, one per line: .* write caption_column: null"
    ):
        read(tmp_path / name)


@pytest.mark.parametrize("name", FORMATS)
def test_no_caption_column_means_no_captions(tmp_path: Path, name: str) -> None:
    rows, counts = read(table(tmp_path / name), caption_column=None)
    assert {row["caption"] for row in rows} == {""}
    assert counts == {"links": 7, "pairs": 5, "scheme": 1, "bad_url": 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            '[{"url": "http://p.test/1", "caption": "a"}, '
            '{"url": "http://p.test/2", "caption": "b"}]',
            "ab",
        ),
        ('{"url": "http://p.test/1", "caption": "a"}', "a"),
        (
            '{"url": "http://p.test/1", "caption": "a"}\n'
            '{"url": "http://p.test/2", "caption": "b"}\n',
            "ab",
        ),
        ('{"url": ["http://p.test/1", "http://p.test/2"], "caption": ["a", "b"]}', "ab"),
        (
            '{"url": {"0": "http://p.test/1", "1": "http://p.test/2"}, '
            '"caption": {"0": "a", "1": "b"}}',
            "ab",
        ),
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
        (
            '[{"url": "http://p.test/1", "caption": "a"}, {"url": ',
            "is no JSON from its character 45 on",
        ),
        ('[{"url": "http://p.test/1", "caption": "a"}, ', "ends in the middle of its array"),
        ('{"url": ["http://p.test/1"], "caption": ["a", "b"]}', "whose columns differ in length"),
        (
            '[{"url": "' + "x" * 300 + '", "caption": "a"}]',
            "a value of more than 256 characters: write it as jsonl",
        ),
    ],
)
def test_a_json_file_that_cannot_be_read_on_is_an_error(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK", 64)
    monkeypatch.setattr(table_files, "LARGEST_VALUE", 256)
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "t.json")


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_chunks_of_a_json_file_may_end_anywhere(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK", chunk)
    rows, counts = read(table(tmp_path / "t.json"), extra_columns={"n": "int"})
    assert [(row["url"], row["caption"], row["link"]) for row in rows if row["n"] != 5] == LEFT
    assert counts["links"] == 7


def test_a_cut_gzip_file_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    for name in ("t.csv.gz", "t.jsonl.gz", "t.json.gz"):
        whole = Path(table(tmp_path / name)).read_bytes()
        (tmp_path / name).write_bytes(whole[:-12])
        with pytest.raises(EOFError):
            read(tmp_path / name)


# --- columns --------------------------------------------------------------------------------------


def test_columns_by_other_names_and_folders_of_tables(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in/a.parquet", ("n", "URL", "TEXT"))
    table(tmp_path / "in/b.csv", ("n", "URL", "TEXT"))
    (tmp_path / "in/_SUCCESS").touch()
    source = Source(
        kind="table", paths=(str(tmp_path / "in"),), url_column="URL", caption_column="TEXT"
    )
    assert [Path(path).name for path in parts(source)] == ["a.parquet", "b.csv"]
    totals = crawl(source, str(tmp_path / "pool"), "inline")
    assert (totals["pairs"], totals["reasons"]["duplicate_pair"]) == (3, 5)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.json", "t.jsonl"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path, name: str) -> None:
    path = table(tmp_path / name, ("n", "URL", "TEXT"))
    source = Source(kind="table", paths=(path,), url_column="URL", caption_column="TEXTS")
    with pytest.raises(ValueError, match=r"has no column 'TEXTS'; did you mean 'TEXT'"):
        crawl(source, str(tmp_path / "pool"), "inline")
    with pytest.raises(ValueError, match=r"has no column 'url'; did you mean 'URL'"):
        read(path)
    with pytest.raises(ValueError, match=r"has no column 'similarity'"):
        read(path, url_column="URL", caption_column="TEXT", extra_columns={"similarity": "float"})
    other = Source(
        **{
            **disk.to_plain(source),
            "paths": (table(tmp_path / "good.csv", ("n", "URL", "TEXTS")), path),
        }
    )
    assert "has no column 'TEXTS'" in crawl(other, str(tmp_path / "pool"), "inline")["failed"][path]


EXTRA = {
    "score": "float",
    "n": "int",
    "nsfw": "bool",
    "boxes": "json",
    "label": "string",
    "source_key": "key:string",
}


@pytest.mark.parametrize("name", FORMATS)
def test_extra_columns_stand_behind_the_pair_in_their_types(tmp_path: Path, name: str) -> None:
    boxes: Any = [[0, 0, 0.5, 1]] if "json" in name or "parquet" in name else "[[0,0,0.5,1]]"
    row = {
        "url": "http://p.test/1",
        "caption": "a",
        "n": 7,
        "score": 0.5,
        "nsfw": True,
        "boxes": boxes,
    }
    path = write(tmp_path / name, [{**row, "label": "x", "key": "000"}])
    rows, _ = read(path, extra_columns=EXTRA)
    found = {column: rows[0][column] for column in EXTRA}
    found["boxes"] = json.loads(found["boxes"])
    assert found == {
        "score": 0.5, "n": 7, "nsfw": True, "boxes": [[0, 0, 0.5, 1]], "label": "x",
        "source_key": "000"
    }  # fmt: skip
    pool = str(tmp_path / "pool")
    crawl(Source(kind="table", paths=(path,), extra_columns=EXTRA), pool, "inline")
    part = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet"))
    assert part.schema.equals(with_extra(PAIRS, EXTRA))
    assert part["n"].to_pylist() == [7]


# --- rows that cannot be read ---------------------------------------------------------------------


def test_rows_that_cannot_be_read_cost_themselves(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        b"url,caption\nhttp://p.test/1,a\nhttp://p.test/2,b,c\n\nhttp://p.test/3,\xff\n"
    )
    (tmp_path / "t.jsonl").write_text(
        '{"url": "http://p.test/4", "caption": "d"}\n{"url": \n[1]\n{"url": "http://p.test/5"}\n'
        '{"url": 6, "caption": "e"}\n{"url": ["http://p.test/7"], "caption": "f"}\n'
    )
    assert texts(tmp_path / "t.csv") == [("1", "a"), ("3", "�")]
    rows, counts = read(tmp_path / "t.jsonl")
    assert [row["caption"] for row in rows] == ["d"]
    assert counts == {"links": 6, "pairs": 1, "damaged": 2, "no_alt": 1, "bad_url": 2}


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


def test_files_become_absolute_paths_and_nothing_is_downloaded(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "captions.csv").write_text(
        "file,caption,label\na.jpg,an a,1\nsub/b.jpg,a b,2\n,no file,3\nc.jpg,,4\n"
    )
    pool = str(tmp_path / "pool")
    totals = crawl(Source(kind="files", paths=(str(folder / "captions.csv"),)), pool, "inline")
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [(r["url"], r["caption"]) for r in rows] == [
        (f"{folder}/a.jpg", "an a"),
        (f"{folder}/sub/b.jpg", "a b"),
    ]
    assert totals["reasons"] == {"bad_url": 1, "empty_alt": 1}


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    import tracemalloc

    peaks = []
    for count in (2_000, 40_000):
        path = write(
            tmp_path / "t.json",
            [{"url": f"http://p.test/{i}", "caption": f"c{i}"} for i in range(count)],
        )
        table_files.CHUNK, chunk = 1 << 14, table_files.CHUNK
        tracemalloc.start()
        try:
            assert sum(1 for _ in table_files.values(path, ["url", "caption"])) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            table_files.CHUNK = chunk
    assert peaks[1] < 1.5 * peaks[0]


# --- one bad row costs itself -------------------------------------------------------------------


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
@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_of_json_costs_itself(name: str, bad: str, tmp_path: Path) -> None:
    good = [f'{{"url": "http://p.test/{i}", "caption": "c{i}", "n": "x"}}' for i in range(3)]
    lines = [good[0], bad, *good[1:]]
    array = f"[{','.join(lines)}]"
    (tmp_path / name).write_text(array if name == "t.json" else "\n".join(lines))
    pool = str(tmp_path / "pool")
    source = Source(
        kind="table", paths=(str(tmp_path / name),), extra_columns={"n": "string", "j": "n:json"}
    )
    totals = crawl(source, pool, "inline")
    assert (totals["failed"], totals["pairs"], totals["reasons"]) == ({}, 3, {"damaged": 1})
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [row["caption"] for row in rows] == ["c0", "c1", "c2"]


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a": "\\ud800"}', DEEP, '["\\udc00x", 1]'])
def test_an_extra_value_that_no_column_can_hold_is_null(text: str, tmp_path: Path) -> None:
    row = f'{{"url": "http://p.test/1", "caption": "c", "n": {json.dumps(text)}}}'
    (tmp_path / "t.json").write_text(f"[{row}, {row.replace(json.dumps(text), text)}]")
    (tmp_path / "t.jsonl").write_text(row + "\n")
    for name in ("t.json", "t.jsonl"):
        source = Source(
            kind="table",
            paths=(str(tmp_path / name),),
            extra_columns={"n": "json", "s": "n:string"},
        )
        totals = crawl(source, str(tmp_path / f"pool-{name}"), "inline")
        assert (totals["failed"], totals["pairs"]) == ({}, 1)


def test_invalid_utf8_in_a_parquet_column_costs_its_row(tmp_path: Path) -> None:
    def text(*values: bytes) -> pa.Array:
        offsets = [0]
        for value in values:
            offsets.append(offsets[-1] + len(value))
        buffers = [None, pa.py_buffer(pa.array(offsets, pa.int32()).buffers()[1]), b"".join(values)]
        buffers[2] = pa.py_buffer(buffers[2])
        return pa.Array.from_buffers(pa.string(), len(values), buffers)

    columns = {
        "url": text(
            b"http://p.test/1", b"http://p.test/2\xff", b"http://p.test/3", b"http://p.test/4"
        ),
        "caption": text(b"a", b"b", b"c\xe9", "é".encode()),
        "label": text(b"\xff", b"l", b"l", b"l"),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows, counts = read(tmp_path / "t.parquet", extra_columns={"label": "string"})
    assert [(row["caption"], row["label"]) for row in rows] == [("a", None), ("é", "l")]
    assert counts == {"links": 4, "pairs": 2, "damaged": 2}


def test_each_reason_has_the_first_row_as_its_example(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "url,caption\n/local/a.jpg,a\nb.jpg,b\nhttp://p.test/c,\n1,2,3\n"
    )
    counts = PartCounts()
    assert not list(
        url_table(Source(kind="table", paths=("t.csv",))).rows(str(tmp_path / "t.csv"), counts)
    )
    assert counts.examples == {
        "bad_url": "t.csv row 1: '/local/a.jpg'",
        "empty_alt": "t.csv row 3: 'http://p.test/c'",
        "damaged": "t.csv row 4",
    }


# --- messages that say what to write instead ------------------------------------------------------


def test_a_folder_of_images_is_no_folder_of_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "README.txt").write_text("Read me.")
    for kind in ("files", "table"):
        with pytest.raises(
            ValueError, match=r"has no tables .* write kind: image_folder with capt"
        ):
            parts(Source(kind=kind, paths=(str(tmp_path),)))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"a\.jpg is no table.* write kind: image_folder"):
            parts(Source(kind=kind, paths=(str(tmp_path / "a.jpg"),)))  # type: ignore[arg-type]


def test_a_readme_beside_a_table_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("Read me.")
    (tmp_path / "captions.csv").write_text("file,caption\na.jpg,a\n")
    source = Source(kind="files", paths=(str(tmp_path),), extra_columns={})
    assert [Path(path).name for path in parts(source)] == ["captions.csv"]


def test_a_captions_list_brings_its_other_columns(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption,label\na.jpg,an a,1\n")
    source = Source(
        kind="files", paths=(str(tmp_path / "captions.csv"),), extra_columns={"label": "int"}
    )
    crawl(source, str(tmp_path / "pool"), "inline")
    rows = disk.read_parquet(str(tmp_path / "pool/pairs/part-00000.parquet")).to_pylist()
    assert [(row["url"], row["label"]) for row in rows] == [(str(tmp_path / "a.jpg"), 1)]
