"""Scores that strangers computed, as public reports show them: rebuilt small, joined to the rows of
a pool by the command `score`.

Each row says what the column is, of the two rows of the pool, or what the refusal or the log line
says.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests.commits import read_commits
from clipmill.manifests.pool import Pool
from tests.support import commands
from tests.support.small_pool import Row as PoolRow
from tests.support.small_pool import make_pool

NAN = float("nan")
A, B = "00" * 15 + "0a", "ab" * 16


@dataclass(frozen=True, kw_only=True)
class Row:
    source: str
    why: str
    files: dict[str, Any]  # a table, bytes, text, or arrays of an .npz
    take: str = "float"
    keys: dict[str, str] = field(default_factory=dict)  # of the filter
    values: tuple[Any, Any] | None = None  # None: it is refused
    says: str = ""


def column(values: list[Any] | pa.Array, uid: Any = (A, B), name: str = "v") -> pa.Table:
    return pa.table({"uid": uid if isinstance(uid, pa.Array) else list(uid), name: values})


def csv(first: str, second: str) -> str:
    return f"uid,v\n{A},{first}\n{B},{second}\n"


def scored(scores: Any, rows: int = 2) -> dict[str, Any]:
    """DataComp's metadata: a table of scores with the embeddings of its rows."""
    ones = np.ones((rows, 4), np.float16)
    table = pa.table({"uid": [A, B][:rows], "clip_l14_similarity_score": scores})
    return {"m/0.parquet": table, "m/0.npz": {"l14_img": ones, "l14_txt": ones}}


EMPTY = scored(pa.array([], pa.float64()), 0)
ARRAY = [1.0] * 4
KEYS = ["000000000", "000000001"]
URLS = ["http://page.test/0.jpg", "http://page.test/1.jpg"]

ROWS = [
    Row(
        source="apache/arrow#2043",
        why="pandas has whole numbers with gaps as floats: NaN is no value, 3.0 is 3",
        files={"t.parquet": column([3.0, NAN])},
        take="int",
        values=(3, None),
    ),
    Row(
        source="astronomy-commons/lsdb#27",
        why="the same in a .csv",
        files={"t.csv": csv("7337.0", "")},
        take="int",
        values=(7337, None),
    ),
    Row(
        source="pandas-dev/pandas#16698",
        why="a gap in a column of yes and no is no yes",
        files={"t.parquet": column([0.0, NAN])},
        take="bool",
        values=(False, None),
    ),
    Row(
        source="huggingface/blog#2631",
        why="the probability of a watermark is neither yes nor no: each one above 0 was a yes",
        files={"t.parquet": column([0.61, 0.0])},
        take="bool",
        says="column 'v' is not of type bool: 0.61 is neither 0 nor 1",
    ),
    Row(
        source="WordPress/openverse-catalog#517",
        why="a label of -1 for what is not known was a yes",
        files={"t.parquet": column(pa.array([-1, 1], pa.int8()))},
        take="bool",
        says="-1.0 is neither 0 nor 1",
    ),
    Row(
        source="augerai/a2ml#269",
        why="Postgres writes t and f",
        files={"t.csv": csv("t", "f")},
        take="bool",
        values=(True, False),
    ),
    Row(
        source="opensafely/documentation#816",
        why="flags with gaps in a .csv of pandas",
        files={"t.csv": csv("1.0", "0.0")},
        take="bool",
        values=(True, False),
    ),
    Row(
        source="JohnOmernik/sqlalchemy-drill#54",
        why="texts of numbers, NaN and Infinity: these are no values",
        files={"t.parquet": column(["0.5", "Infinity"])},
        values=(0.5, None),
    ),
    Row(
        source="catalyst-cooperative/pudl#291",
        why="a word for a gap is not guessed; the value is named",
        files={"t.csv": csv("0.5", "NA")},
        says="column 'v' is not of type float: 'NA'; where there is no value write nothing",
    ),
    Row(
        source="paddymul/buckaroo#937",
        why="a text that is JSON already was made a JSON string",
        files={"t.parquet": column(['{"a": 1}', None])},
        take="json",
        values=('{"a": 1}', None),
    ),
    Row(
        source="bzkf/onco-analytics-on-fhir#567",
        why="times, decimals and NaN inside of structs; NaN is no JSON",
        files={
            "t.parquet": column(
                [{"t": datetime(2020, 1, 1), "d": Decimal("1.5"), "s": [0.5, NAN]}, None]
            )
        },
        take="json",
        values=('{"t": "2020-01-01T00:00:00", "d": "1.5", "s": [0.5, null]}', None),
    ),
    Row(
        source="commandprompt/pgcolumnar#103",
        why="a time is no number: its unit would be guessed",
        files={"t.parquet": column([datetime(2020, 1, 1)] * 2)},
        take="int",
        says="column 'v' is not of type int: it is of type timestamp",
    ),
    Row(
        source="pola-rs/polars#581",
        why="categories are the texts that they stand for, in keys and values",
        files={
            "t.parquet": column(
                pa.array(["UNSURE", "NSFW"]).dictionary_encode(),
                pa.array([A, B]).dictionary_encode(),
            )
        },
        take="string",
        values=("UNSURE", "NSFW"),
    ),
    Row(
        source="reichlab/variant-nowcast-hub#265",
        why="large texts of Polars, and decimals of DuckDB",
        files={
            "t.parquet": column(
                pa.array([Decimal("0.31"), None]), pa.array([A, B], pa.large_string())
            )
        },
        values=(0.31, None),
    ),
    Row(
        source="pola-rs/polars#25572",
        why="half floats",
        files={"t.parquet": column(pa.array(np.array([0.5, NAN], np.float16)))},
        values=(0.5, None),
    ),
    Row(
        source="crafatar/crafatar#29",
        why="uids in capitals, as databases write hexadecimal numbers",
        files={"t.parquet": column([0.25, 0.5], [A.upper(), B.upper()])},
        values=(0.25, 0.5),
    ),
    Row(
        source="apache/arrow#45009",
        why="a file without a row group among others",
        files={
            "m/0.parquet": column(pa.array([], pa.float64()), []),
            "m/1.parquet": column([1, 2]),
        },
        keys={"paths": "m"},
        values=(1.0, 2.0),
    ),
    Row(
        source="ClickHouse/ClickHouse#107746",
        why="metadata of no rows with embeddings of no rows: an IndexError",
        files={**EMPTY, **{k.replace("0", "1"): v for k, v in scored([1.0, 1.0]).items()}},
        take="l14_img:fp16[4]",
        keys={"paths": "m"},
        values=(ARRAY, ARRAY),
    ),
    Row(
        source="mlfoundations/datacomp#20",
        why="scores as texts beside embeddings: a TypeError",
        files=scored(["1.0", None]),
        take="l14_img:fp16[4]",
        keys={"paths": "m"},
        values=(ARRAY, ARRAY),
    ),
    Row(
        source="NVIDIA-NeMo/Curator#254",
        why="embeddings as lists in the table itself: no file was missing",
        files={"t.parquet": column([[0.1, 0.2]] * 2)},
        take="fp16[2]",
        says="a column of lists in the file itself is json",
    ),
    Row(
        source="mlfoundations/datacomp#77",
        why="scores of the samples of tars have their keys, and no uid",
        files={"t.parquet": pa.table({"key": KEYS[::-1], "v": [0.5, 0.25]})},
        keys={"key": "key", "on": "key"},
        values=(0.25, 0.5),
    ),
    Row(
        source="fastai/fastai#1008",
        why="keys that have lost their zeros belong to no row, and both spellings are shown",
        files={"t.csv": "key,v\n0,0.5\n1,0.25\n"},
        keys={"key": "key", "on": "key"},
        values=(None, None),
        says="0 of 2 stored rows have one of the 2 keys .* such as '000000000', .* such as '0'",
    ),
    Row(
        source="rom1504/clip-retrieval#213",
        why="metadata that has URLs and no other key",
        files={"t.parquet": pa.table({"url": URLS, "v": [0.5, 0.25]})},
        keys={"key": "url", "on": "url"},
        values=(0.5, 0.25),
    ),
    Row(
        source="rom1504/clip-retrieval#393",
        why="without these words the columns that are there are named",
        files={"t.parquet": pa.table({"url": URLS, "v": [0.5, 0.25]})},
        says=r"has no column 'uid' \(it has 'url', 'v'\)",
    ),
    Row(
        source="theislab/dca#7",
        why="a packed .csv was no table",
        files={"t.csv.gz": gzip.compress(csv("0.5", "0.25").encode())},
        values=(0.5, 0.25),
    ),
    Row(
        source="rapidsai/libgdf#168",
        why="lines that end as on Windows",
        files={"t.csv": ("\ufeff" + csv('"0.5"', "")).replace("\n", "\r\n").encode()},
        values=(0.5, None),
    ),
    Row(
        source="mlfoundations/datacomp#80",
        why="a folder of subsets: a pattern names them",
        files={"m/s.npy": b""},
        take="bool",
        keys={"paths": "m"},
        says="or a folder of such files but .npy",
    ),
    Row(
        source="HXLStandard/hxl-proxy#178",
        why="semicolons: no option of the filter that it does not have is named",
        files={"t.csv": csv("0.5", "0.25").replace(",", ";")},
        says="its first line must name its columns, with commas between them",
    ),
]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [
        PoolRow(caption="dog", url=url, more={"uid": uid})
        for uid, url in zip((A, B), URLS, strict=True)
    ]
    return make_pool(tmp_path_factory.mktemp("pools") / "pool", rows)


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
def test_a_table_of_scores(
    pool: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    row: Row,
) -> None:
    for name, content in row.files.items():
        write(tmp_path / name, content)
    given = {"paths": next(iter(row.files)), "take": {"v": row.take}, **row.keys}
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\nsource: {kind: files, paths: [x.csv]}\n"
        f"filters: [{{t: {{table: {json.dumps(given)}}}}}]\n"
    )
    caplog.set_level(logging.INFO)
    status = commands.score([pool, "--recipe", str(recipe), "--engine", "inline", "--json"])
    printed = capsys.readouterr()
    assert status == (2 if row.values is None else 0), printed.err
    assert re.search(row.says, printed.err + caplog.text)
    if row.values is not None:
        (name,) = json.loads(printed.out)["sets"]
        read = Pool(read_commits(pool)).read(0, ["t_v"], {"t_v": name})
        assert tuple(read["t_v"].to_pylist()) == row.values
