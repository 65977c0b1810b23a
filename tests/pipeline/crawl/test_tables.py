"""Url lists: every format gives the same pairs, extra columns keep their types, and what is wrong is said."""

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
from pipeline.crawl import tables
from pipeline.crawl.crawler import crawl, parts
from pipeline.crawl.tables import rows_of_table

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
            writer = csv.DictWriter(f, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
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
    rows = [dict(zip(names, row, strict=True)) for row in rows_of_table(str(path), source, counts)]
    assert counts["links"] == counts["pairs"] + counts.total() - counts["links"] - counts["pairs"]
    return rows, counts


def texts(path: str | Path, **fields: Any) -> list[tuple[str, str]]:
    return [(row["url"].rpartition("/")[2], row["caption"]) for row in read(path, **fields)[0]]


# --- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_tables_in_every_format_give_the_same_pairs(tmp_path: Path, name: str) -> None:
    pool = str(tmp_path / "pool")
    totals = crawl(Source(kind="table", paths=(table(tmp_path / name),)), pool, "inline")
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [(r["url"], r["caption"], r["link"]) for r in rows] == LEFT
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
    with pytest.raises(ValueError, match=r"list of URLs, one a line: .* say caption_column: null"):
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
            '[{"url": "http://p.test/1", "caption": "a"}, {"url": "http://p.test/2", "caption": "b"}]',
            "ab",
        ),
        ('{"url": "http://p.test/1", "caption": "a"}', "a"),
        (
            '{"url": "http://p.test/1", "caption": "a"}\n{"url": "http://p.test/2", "caption": "b"}\n',
            "ab",
        ),
        ('{"url": ["http://p.test/1", "http://p.test/2"], "caption": ["a", "b"]}', "ab"),
        (
            '{"url": {"0": "http://p.test/1", "1": "http://p.test/2"}, "caption": {"0": "a", "1": "b"}}',
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
    monkeypatch.setattr(tables, "CHUNK", 64)
    monkeypatch.setattr(tables, "LARGEST_VALUE", 256)
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "t.json")


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_chunks_of_a_json_file_may_end_anywhere(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CHUNK", chunk)
    rows, counts = read(table(tmp_path / "t.json"), extra_columns={"n": "int"})
    assert [(row["url"], row["caption"], row["link"]) for row in rows if row["n"] != 5] == LEFT
    assert counts["links"] == 7


def test_a_cut_gzip_file_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    for name in ("t.csv.gz", "t.jsonl.gz", "t.json.gz"):
        whole = Path(table(tmp_path / name)).read_bytes()
        (tmp_path / name).write_bytes(whole[:-12])
        with pytest.raises(EOFError):
            read(tmp_path / name)


# --- columns -------------------------------------------------------------------------------------------------------


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
        "score": 0.5, "n": 7, "nsfw": True, "boxes": [[0, 0, 0.5, 1]], "label": "x", "source_key": "000"
    }  # fmt: skip
    pool = str(tmp_path / "pool")
    crawl(Source(kind="table", paths=(path,), extra_columns=EXTRA), pool, "inline")
    part = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet"))
    assert part.schema.equals(with_extra(PAIRS, EXTRA))
    assert part["n"].to_pylist() == [7]


# --- rows that cannot be read --------------------------------------------------------------------------------------


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
        tables.CHUNK, chunk = 1 << 14, tables.CHUNK
        tracemalloc.start()
        try:
            assert sum(1 for _ in tables.values(path, ["url", "caption"])) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            tables.CHUNK = chunk
    assert peaks[1] < 1.5 * peaks[0]
