"""Tables as pairs: every format gives the same pairs, extra columns keep their types, and a row
that is no pair is counted with its reason.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, with_extra
from clipmill.manifests.schema import Source
from clipmill.pipeline.archives.urls import PartCounts
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.sources import parts
from clipmill.pipeline.crawl.tables import url_table
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support.url_tables import FORMATS, left, read, table, texts, write


@pytest.mark.parametrize("name", FORMATS)
def test_tables_in_every_format_give_the_same_pairs(tmp_path: Path, name: str) -> None:
    pool = str(tmp_path / "pool")
    totals = crawl(
        Source(kind="table", paths=(table(tmp_path / name),)), PoolWriter(pool), "inline"
    )
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


def test_columns_by_other_names_and_folders_of_tables(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in/a.parquet", ("n", "URL", "TEXT"))
    table(tmp_path / "in/b.csv", ("n", "URL", "TEXT"))
    (tmp_path / "in/_SUCCESS").touch()
    source = Source(
        kind="table", paths=(str(tmp_path / "in"),), url_column="URL", caption_column="TEXT"
    )
    assert [Path(path).name for path in parts(source)] == ["a.parquet", "b.csv"]
    totals = crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")
    assert (totals["pairs"], totals["reasons"]["duplicate_pair"]) == (3, 5)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.json", "t.jsonl"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path, name: str) -> None:
    path = table(tmp_path / name, ("n", "URL", "TEXT"))
    source = Source(kind="table", paths=(path,), url_column="URL", caption_column="TEXTS")
    with pytest.raises(ValueError, match=r"has no column 'TEXTS'; did you mean 'TEXT'"):
        crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")
    with pytest.raises(ValueError, match=r"has no column 'url'; did you mean 'URL'"):
        read(path)
    with pytest.raises(ValueError, match=r"has no column 'similarity'"):
        read(path, url_column="URL", caption_column="TEXT", extra_columns={"similarity": "float"})
    good = table(tmp_path / "good.csv", ("n", "URL", "TEXTS"))
    failed = crawl(
        replace(source, paths=(good, path)), PoolWriter(str(tmp_path / "pool")), "inline"
    )["failed"]
    assert "has no column 'TEXTS'" in failed[path]


EXTRA = {"score": "float", "n": "int", "nsfw": "bool", "boxes": "json"}
EXTRA |= {"label": "string", "source_key": "key:string"}


@pytest.mark.parametrize("name", FORMATS)
def test_extra_columns_stand_behind_the_pair_in_their_types(tmp_path: Path, name: str) -> None:
    boxes: Any = [[0, 0, 0.5, 1]] if "json" in name or "parquet" in name else "[[0,0,0.5,1]]"
    row = {"url": "http://p.test/1", "caption": "a", "n": 7, "score": 0.5, "nsfw": True}
    path = write(tmp_path / name, [{**row, "boxes": boxes, "label": "x", "key": "000"}])
    rows, _ = read(path, extra_columns=EXTRA)
    values = {column: rows[0][column] for column in EXTRA}
    values["boxes"] = json.loads(values["boxes"])
    assert values == {
        "score": 0.5, "n": 7, "nsfw": True, "boxes": [[0, 0, 0.5, 1]], "label": "x",
        "source_key": "000"
    }  # fmt: skip
    pool = str(tmp_path / "pool")
    crawl(Source(kind="table", paths=(path,), extra_columns=EXTRA), PoolWriter(pool), "inline")
    part = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet"))
    assert part.schema.equals(with_extra(PAIRS, EXTRA))
    assert part["n"].to_pylist() == [7]


def test_rows_that_cannot_be_read_cost_themselves(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        b"url,caption\nhttp://p.test/1,a\nhttp://p.test/2,b,c\n\nhttp://p.test/3,\xff\n"
    )
    (tmp_path / "t.jsonl").write_text(
        '{"url": "http://p.test/4", "caption": "d"}\n{"url": \n[1]\n{"url": "http://p.test/5"}\n'
        '{"url": 6, "caption": "e"}\n{"url": ["http://p.test/7"], "caption": "f"}\n'
    )
    assert texts(tmp_path / "t.csv") == [("1", "a")]
    rows, counts = read(tmp_path / "t.jsonl")
    assert [row["caption"] for row in rows] == ["d"]
    assert counts == {"links": 6, "pairs": 1, "damaged": 2, "no_alt": 1, "bad_url": 2}


def test_files_become_absolute_paths_and_nothing_is_downloaded(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "captions.csv").write_text(
        "file,caption,label\na.jpg,an a,1\nsub/b.jpg,a b,2\n,no file,3\nc.jpg,,4\n"
    )
    pool = str(tmp_path / "pool")
    totals = crawl(
        Source(kind="files", paths=(str(folder / "captions.csv"),)), PoolWriter(pool), "inline"
    )
    rows = disk.read_parquet(disk.join(pool, "pairs", "part-00000.parquet")).to_pylist()
    assert [(r["url"], r["caption"]) for r in rows] == [
        (f"{folder}/a.jpg", "an a"),
        (f"{folder}/sub/b.jpg", "a b"),
    ]
    assert totals["reasons"] == {"bad_url": 1, "empty_alt": 1}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("file_name,caption", "has no column 'file'.* reads the columns file and caption; name"),
        ("file,captions", "has no column 'caption'; did you mean 'captions'"),
    ],
)
def test_a_captions_list_of_other_columns_is_told_to_rename_them(
    header: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "c.csv").write_text(f"{header}\na.jpg,a cat\n")
    source = Source(kind="files", paths=(str(tmp_path / "c.csv"),))
    with pytest.raises(ValueError, match=message):
        crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a": "\\ud800"}', '["\\udc00x", 1]'])
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
        totals = crawl(source, PoolWriter(str(tmp_path / f"pool-{name}")), "inline")
        assert (totals["failed"], totals["pairs"]) == ({}, 1)


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
