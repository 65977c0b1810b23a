"""One small table of URLs in every format that crawl reads, and its rows as pairs."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests.columns import PAIRS, with_extra
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl.tables import url_table

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
