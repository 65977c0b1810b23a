"""Tables of strangers: forms that public reports show, rebuilt small, with their right outcomes.

Each row is crawled by the command. `captions` are those of its pairs in their order, `reasons` what
its other rows are counted as; `says` what a refusal names. U1, U2, … stand for URLs.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk
from clipmill.manifests.hashes import KnownBad
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.crawl.parts import examples, part_totals, read_parts
from tests.support import commands

CSV = "url,caption\n"
U1, U2 = "http://p.test/1.jpg", "http://p.test/2.jpg"


@dataclass(frozen=True, kw_only=True)
class Row:
    source: str
    why: str
    files: dict[str, Any]  # text, bytes or a table
    keys: dict[str, Any] = field(default_factory=dict)  # of the recipe's source
    captions: tuple[str, ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    status: int = 0
    says: tuple[str, ...] = ()


def urls(count: int) -> list[str]:
    return [f"http://p.test/{number}.jpg" for number in range(count)]


def table(captions: Any, **columns: Any) -> pa.Table:
    return pa.table({"url": urls(len(captions)), "caption": captions, **columns})


def labels(feature: Any, column: pa.Array) -> pa.Table:
    """A table as `datasets` writes it, with the features in its schema."""
    info = {"info": {"features": {"url": {"_type": "Value"}, "caption": feature}}}
    return table(column).replace_schema_metadata({"huggingface": json.dumps(info)})


def packed(captions: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    defaults: dict[str, Any] = {"compression": "zstd", "write_statistics": False}
    pq.write_table(table(captions), sink, **(defaults | options))
    return sink.getvalue().to_pybytes()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


AGENT = {"user_agent": "test (+http://t.example)"}
CLASSES = {"names": ["cat", "dog"], "_type": "ClassLabel"}
LINES = (CSV + "".join(f"{url},number {url}\n" for url in urls(3000))).encode()
FOX = [f"caption {n},http://p.test/{n}.jpg" for n in range(9)]
FOX[2], FOX[6] = '"A fox,http://p.test/2.jpg', 'a 24",http://p.test/6.jpg'
# One text of 30 MiB, which 4,000 rows name by its number
LONG = pa.DictionaryArray.from_arrays(pa.array([0] * 4000), pa.array(["y" * 30 * 2**20]))
MANY = [f"c{n}" for n in range(30)]

ROWS = [
    # quotation marks of a .csv
    Row(
        source="cldf/csvw#52",
        why="a mark that never closes costs its row, not those behind it",
        files={"t.csv": CSV + 'U1,"open\nU2,b\nU3,c\n'},
        captions=("b", "c"),
        reasons={"damaged": 1},
    ),
    Row(
        source="brightcode/fastest-csv#8",
        why="the last field of the file is not closed",
        files={"t.csv": CSV + 'U1,a\nU2,"b'},
        captions=("a",),
        reasons={"damaged": 1},
    ),
    Row(
        source="arnaudroger/SimpleFlatMapper#692",
        why="a mark that another row's inch closes: by the letter one row, in truth five",
        files={"t.csv": "caption,url\n" + "\n".join(FOX) + "\n"},
        captions=(
            "caption 0",
            "caption 1",
            "caption 3",
            "caption 4",
            "caption 5",
            'a 24"',
            "caption 7",
            "caption 8",
        ),
        reasons={"damaged": 1},
    ),
    Row(
        source="Keyang/node-csvtojson#372",
        why="the same where the address stands first",
        files={"t.csv": CSV + 'U1,"A fox\nU2,b\nU3,a screen of 24"\nU4,d\n'},
        captions=("b", 'a screen of 24"', "d"),
        reasons={"damaged": 1},
    ),
    Row(
        source="mafintosh/csv-parser#44",
        why="a mark that a backslash escapes",
        files={"t.csv": 'url,caption,n\n"U1","a","x"\n"U2","T\\"WO","y"\n"U3","c","z"\n'},
        captions=("a", "c"),
        reasons={"damaged": 1},
    ),
    Row(
        source="pola-rs/polars#15022",
        why="one escaped mark in a field, twice: rows must not be joined",
        files={"t.csv": CSV + 'U1,"text with \\" one"\nU2,b\nU3,"also \\" one"\nU4, d\n'},
        captions=("b", " d"),
        reasons={"damaged": 2},
    ),
    Row(
        source="adaltas/node-csv-parse#277",
        why="text behind a closing mark",
        files={"t.csv": CSV + 'U1,"Moon" and stars\nU2,b\n'},
        captions=("b",),
        reasons={"damaged": 1},
    ),
    Row(
        source="max-mapper/binary-csv#7",
        why="right: inches in texts without quotes are characters",
        files={"t.csv": CSV + 'U1,that is 16"\nU2,a 24" screen\nU3,12"\n'},
        captions=('that is 16"', 'a 24" screen', '12"'),
    ),
    Row(
        source="metmuseum/openaccess#10",
        why="right: quoted texts of several lines, with commas and a URL",
        files={"t.csv": CSV + 'U1,"one, two\nsee http://x.test/, three\n\nend"\nU2,"b\n"\n'},
        captions=("one, two\nsee http://x.test/, three\n\nend", "b\n"),
    ),
    Row(
        source="mafintosh/csv-parser#41",
        why="right: nothing but doubled marks",
        files={"t.csv": CSV + 'U1,""""""\nU2,test\n'},
        captions=('""', "test"),
    ),
    Row(
        source="stevehansen/csv#35",
        why="right: a backslash is a character, also before a doubled mark",
        files={"t.csv": CSV + 'U1,"B \\"" "\nU2,"C:\\"\n'},
        captions=('B \\" ', "C:\\"),
    ),
    # separators
    Row(
        source="close2/csv#68",
        why="a line for spreadsheets in front",
        files={"t.csv": '"sep=;"\nurl;caption\nU1;a\n'},
        status=2,
        says=("sep=;", 'delimiter: ";"'),
    ),
    Row(
        source="HXLStandard/hxl-proxy#178",
        why="semicolons",
        files={"t.csv": '"url";"caption"\n"U1";"a"\n'},
        status=2,
        says=("semicolons", 'delimiter: ";"'),
    ),
    Row(
        source="timeseer-ai/kukur#205",
        why="right: semicolons that the recipe names",
        files={"t.csv": 'url;caption\nU1;"a; b"\nU2;c, d\n'},
        keys={"delimiter": ";"},
        captions=("a; b", "c, d"),
    ),
    Row(
        source="mlfoundations/open_clip#144",
        why="tabs in a .csv",
        files={"t.csv": "url\tcaption\nU1\ta\n"},
        status=2,
        says=("tabs", "delimiter"),
    ),
    Row(
        source="JuliaData/CSV.jl#351",
        why="a comment in front of the header",
        files={"t.csv": "# not begun yet\nurl,caption\nU1,a\n"},
        status=2,
        says=("comment",),
    ),
    Row(
        source="stevehansen/csv#65",
        why="right: a value that begins with #",
        files={"t.csv": "caption,url\n#New,U1\n"},
        captions=("#New",),
    ),
    Row(
        source="docs/reference/recipe.md",
        why="a delimiter is for a .csv only",
        files={"t.jsonl": '{"url": "U1", "caption": "a"}\n'},
        keys={"delimiter": ";"},
        status=2,
        says=("delimiter",),
    ),
    Row(
        source="johnkerl/miller#438",
        why="a .tsv whose values are quoted as in a .csv",
        files={"t.tsv": 'url\tcaption\nU1\t"lorem ""ipsum"" sit"\nU2\tmoo\n'},
        status=2,
        says=("quotation marks", "doubled", 'delimiter: "\\t"'),
    ),
    Row(
        source="johnkerl/miller#438 (the way)",
        why="right: what the message says",
        files={"t.csv": 'url\tcaption\nU1\t"lorem ""ipsum"" sit"\nU2\tmoo\n'},
        keys={"delimiter": "\t"},
        captions=('lorem "ipsum" sit', "moo"),
    ),
    Row(
        source="pytorch/text#612",
        why="right: marks of a .tsv that are no quoting",
        files={"t.tsv": 'url\tcaption\nU1\t"Second\nU2\tThird "one"\nU3\t"whole"\nU4\t""a"\n'},
        captions=('"Second', 'Third "one"', '"whole"', '""a"'),
    ),
    # encodings
    Row(
        source="genspark-ai/genoffice#438",
        why="UTF-16 without a mark",
        files={"t.csv": f"{CSV}{U1},a\n".encode("utf-16-le")},
        status=2,
        says=("UTF-16LE", "iconv -f UTF-16LE"),
    ),
    Row(
        source="genspark-ai/genoffice#438 (JSON)",
        why="the other order of bytes, in lines that would all be damaged",
        files={"t.jsonl": json.dumps({"url": U1, "caption": "a"}).encode("utf-16-be")},
        status=2,
        says=("UTF-16BE",),
    ),
    # JSON
    Row(
        source="pandas-dev/pandas#28557",
        why="columns whose keys have another order are joined by key",
        files={"t.json": '{"url": {"0": "U1", "1": "U2"}, "caption": {"1": "b", "0": "a"}}'},
        captions=("a", "b"),
    ),
    Row(
        source="pandas-dev/pandas#4838",
        why="columns with other keys",
        files={"t.json": '{"url": {"0": "U1", "1": "U2"}, "caption": {"1": "b", "2": "a"}}'},
        status=2,
        says=("have other keys",),
    ),
    Row(
        source="yakew7/Fair-Code#405",
        why="rows by their index are no columns",
        files={"t.json": '{"a": {"url": "U1", "caption": "x"}, "b": {"url": "U2", "caption": 1}}'},
        status=2,
        says=("no column 'url'",),
    ),
    Row(
        source="rom1504/img2dataset#46",
        why="no caption, written as NaN or Infinity, also as a number too large",
        files={
            "t.jsonl": '{"url": "U1", "caption": NaN}\n{"url": "U2", "caption": "b"}\n'
            '{"url": "U3", "caption": -Infinity}\n{"url": "U4", "caption": 1e999}\n'
        },
        captions=("b",),
        reasons={"no_alt": 3},
    ),
    Row(
        source="kohya-ss/sd-scripts#2068",
        why="the same in a column of numbers; a number is a caption",
        files={"t.parquet": table(pa.array([1.5, float("nan"), float("inf")]))},
        captions=("1.5",),
        reasons={"no_alt": 2},
    ),
    Row(
        source="aqlaboratory/openfold-3#167",
        why="NaN in another column keeps the row",
        files={"t.jsonl": '{"url": "U1", "caption": "a", "s": NaN}\n'},
        keys={"extra_columns": {"s": "float"}},
        captions=("a",),
    ),
    Row(
        source="VowpalWabbit/vowpal_wabbit#3738",
        why="half a surrogate pair in another column keeps the row, as a caption it costs it",
        files={
            "t.jsonl": '{"url": "U1", "caption": "a", "s": "\\ud83d"}\n'
            '{"url": "U2", "caption": "\\ud83d"}\n'
        },
        keys={"extra_columns": {"s": "string"}},
        captions=("a",),
        reasons={"damaged": 1},
    ),
    # files
    Row(
        source="databricks/spark-csv#418",
        why="right: a part of no rows has no header either",
        files={"d/0.csv": CSV + "U1,a\n", "d/1.csv": "", "d/2.tsv": "", "d/3.csv.gz": b""},
        keys={"paths": ["d"]},
        captions=("a",),
    ),
    Row(
        source="togethercomputer/RedPajama-Data#34",
        why="a download that was cut off",
        files={"t.csv.gz": gzip.compress(LINES)[:-200]},
        status=3,
        says=("t.csv.gz", "cut off"),
    ),
    Row(
        source="huggingface/datasets#3060",
        why="the same of zstd",
        files={"t.csv.zst": zstd(LINES)[:-200]},
        status=3,
        says=("t.csv.zst", "cut off"),
    ),
    Row(
        source="google-research-datasets/natural-questions#24",
        why="right: whole ones",
        files={
            "a.jsonl.gz": gzip.compress(b'{"url": "http://p.test/1", "caption": "a"}\n'),
            "b.csv.zst": zstd(b"url,caption\nhttp://p.test/2,b\n"),
        },
        captions=("a", "b"),
    ),
    Row(
        source="duckdb/duckdb#2543",
        why="right: an ending in capitals",
        files={"d/A.Parquet": table(["a"]), "d/B.CSV": CSV + "U1,b\n"},
        keys={"paths": ["d"]},
        captions=("a", "b"),
    ),
    Row(
        source="DOI-NPS/NPSdataverse#56",
        why="right: the same by a pattern",
        files={"A.CSV": CSV + "U1,b\n"},
        keys={"paths": ["*.csv"]},
        captions=("b",),
    ),
    Row(
        source="hyperspy/hyperspy#1325",
        why="right: brackets in a name that a pattern has",
        files={"signal[200-300]eV.csv": CSV + "U1,a\n"},
        keys={"paths": ["signal[200-300]*.csv"]},
        captions=("a",),
    ),
    Row(
        source="huggingface/datasets#7468",
        why="right: brackets in the name of a folder; [0-1] is a set where no name has it",
        files={"[D]/0.csv": CSV + "U1,a\n", "[D]/1.csv": CSV + "U2,b\n", "[D]/2.csv": "x"},
        keys={"paths": ["[D]/[0-1]*"]},
        captions=("a", "b"),
    ),
    # captions that are no text
    Row(
        source="argilla-io/argilla#5613",
        why="lists of labels are lists of their names",
        files={
            "t.parquet": labels(
                {"feature": CLASSES, "_type": "Sequence"},
                pa.array([[0, 1], [1], [7]]),
            )
        },
        captions=("cat", "dog", "dog"),
        reasons={"no_alt": 1},
    ),
    Row(
        source="huggingface/datasets#850",
        why="the other spelling of such a list, and the first label only",
        files={"t.parquet": labels([CLASSES], pa.array([[1, 0], [0]]))},
        keys={"caption_list": "first"},
        captions=("dog", "cat"),
    ),
    Row(
        source="huggingface/datasets#5262",
        why="right: a list of texts, whose feature has no names",
        files={"t.parquet": labels({"feature": {"_type": "Value"}}, pa.array([["a"]]))},
        captions=("a",),
    ),
    Row(
        source="huggingface/datasets#7337",
        why="talks are no captions",
        files={"t.parquet": table([[{"from": "human", "value": "hi"}]] * 2)},
        status=2,
        says=("'caption'", "struct", "human"),
    ),
    Row(
        source="facebookresearch/vilbert-multi-task#24",
        why="the words of one caption are no captions",
        files={
            "t.jsonl": '{"url": "U1", "caption": ["a", "dog", "runs", "."]}\n'
            '{"url": "U2", "caption": ["two", "cats"]}\n'
        },
        status=2,
        says=("'caption'", "words of one caption", '["a","dog","runs","."]'),
    ),
    Row(
        source="clipmill: tags",
        why="right: a list of single words is a list of captions",
        files={"t.jsonl": '{"url": "U1", "caption": ["dog", "running"]}\n'},
        captions=("dog", "running"),
    ),
    Row(
        source="pipilurj/G-LLaVA#20",
        why="the same in JSON",
        files={"t.jsonl": '{"url": "U1", "caption": {"en": "a", "de": "b"}}\n' * 2},
        status=2,
        says=("'caption'", "struct"),
    ),
    Row(
        source="apache/parquet-format#332",
        why="a map is no list of captions",
        files={
            "t.parquet": table(
                pa.array([[("en", "a"), ("de", "b")]], pa.map_(pa.string(), pa.string()))
            )
        },
        status=2,
        says=("'caption'",),
    ),
    Row(
        source="clipmill: a struct among texts",
        why="a struct among texts costs itself",
        files={"t.jsonl": '{"url": "U1", "caption": {"en": "a"}}\n{"url": "U2", "caption": "b"}\n'},
        captions=("b",),
        reasons={"damaged": 1},
    ),
    # notations of captions
    Row(
        source="nlphuji/flickr30k: flickr_annotations_30k.csv",
        why="a list of captions, as JSON in one text; an empty one is none",
        files={"t.csv": CSV + 'U1,"[""a, b"", ""c""]"\nU2,[]\nU3,[sic] d\n'},
        captions=("a, b", "c", "[sic] d"),
        reasons={"no_alt": 1},
    ),
    Row(
        source="NVIDIA/cudf#14547",
        why="as Python writes it: marks of both kinds, escapes, Python 2's u",
        files={"t.csv": CSV + 'U1,"[\'a\', ""it\'s""]"\nU2,"[u\'caf\\xe9 \\u732b\', \'\\\\é\']"\n'},
        captions=("a", "it's", "caf\xe9 \u732b", "\\é"),
    ),
    Row(
        source="huggingface/datasets#4673",
        why="as NumPy writes it, which has no commas",
        files={"t.csv": CSV + "U1,\"['a cat' 'a kitten'\n 'b']\"\n"},
        captions=("a cat", "a kitten", "b"),
    ),
    Row(
        source="pandas-dev/pandas#9712",
        why="bytes as Python writes them",
        files={"t.csv": CSV + 'U1,b\'a cat\'\nU2,"b""a dog\'s tail"""\n'},
        status=2,
        says=("'caption'", "bytes as Python", "b'a cat'", "decode()"),
    ),
    Row(
        source="pandas-dev/pandas#9712 (one)",
        why="right: one text that looks so among others",
        files={"t.csv": CSV + "U1,b'a cat'\nU2,100%20\n"},
        captions=("b'a cat'", "100%20"),
    ),
    Row(
        source="facebookresearch/SLIP: make_dataset.py",
        why="titles of YFCC100M are URL-encoded",
        files={"t.tsv": "url\tcaption\nU1\tLake+at+night%21\nU2\tIMG_1\nU3\tDu+c%C3%B4t%C3%A9\n"},
        status=2,
        says=("'caption'", "URL-encoded", "Lake+at+night%21", "unquote_plus"),
    ),
    # widths
    Row(
        source="Rdatatable/data.table#763",
        why="R writes no name above those of the rows: the reason is said before the work",
        files={"t.csv": '"url","caption"\n"1","U1","a"\n"2","U2","b"\n'},
        status=2,
        says=("each row has 3 values", "2 names", "R writes none"),
    ),
    Row(
        source="cdjkim/audiocaps#23",
        why="a text that an unquoted line break has cut is no caption, nor is its rest",
        files={"t.csv": "n,url,caption\n1,U1,a man speaks and\na dog barks\n2,U2,b\n3,U3,"},
        captions=("b",),
        reasons={"damaged": 2, "empty_alt": 1},
    ),
    Row(
        source="entitize/Fakeddit#4",
        why="right: columns without names",
        files={"t.tsv": "\t\t\turl\tcaption\n1\t2\t3\tU1\ta\n4\t5\t\tU2\tb\n"},
        captions=("a", "b"),
    ),
    # lines and objects of JSON
    Row(
        source="unslothai/unsloth#8759",
        why="a last line that was not ended has the first row of the next file behind it",
        files={
            "t.jsonl": '{"url": "U1", "caption": "a"}{"url": "U2", "caption": "b"}\n'
            '{"url": "U3", "caption": "c"} c\n'
        },
        captions=("a", "b"),
        reasons={"damaged": 1},
    ),
    Row(
        source="webrecorder/browsertrix-crawler#327",
        why="right: a first line about the file is no pair",
        files={"t.jsonl": '{"format": "pages-1.0"}\n{"url": "U1", "caption": "a"}\n'},
        captions=("a",),
        reasons={"no_alt": 1},
    ),
    Row(
        source="rom1504/img2dataset: dataset_examples/SBUcaptions.md",
        why="right: one object of columns",
        files={"t.json": '{"image_urls": ["U1"], "user_ids": ["x"], "captions": ["a"]}'},
        keys={"url_column": "image_urls", "caption_column": "captions"},
        captions=("a",),
    ),
    # folders
    Row(
        source="rom1504/img2dataset#405",
        why="tables in the folders of a folder: they are named",
        files={"d/lang=de/0.csv": CSV + "U1,a\n", "d/lang=en/0.csv": CSV + "U2,b\n"},
        keys={"paths": ["d"]},
        status=2,
        says=("2 folders", "lang=de", "lang=en"),
    ),
    Row(
        source="duckdb/duckdb#16466",
        why="right: what macOS leaves beside a file is none",
        files={"d/t.csv": CSV + "U1,a\n", "d/._t.csv": b"\0\5\x16\7\0\2\0\0Mac OS X"},
        keys={"paths": ["d"]},
        captions=("a",),
    ),
    # sizes
    Row(
        source="hyparam/demos#22",
        why="a caption of more than 64 KiB, in letters of two bytes too",
        files={"t.parquet": table(["a" * 65536, "a" * 65537, "é" * 32769, "b"])},
        captions=("a" * 65536, "b"),
        reasons={"long_caption": 2},
    ),
    Row(
        source="duckdb/duckdb#2815",
        why="right: a limit of the recipe",
        files={"t.csv": f"{CSV}U1,{'a' * 70_000}\nU2,abc\n"},
        keys={"max_caption_bytes": 70_000},
        captions=("a" * 70_000, "abc"),
    ),
    Row(
        source="apache/datafusion#9814",
        why="one row group of a small file unpacks to 40 MiB: it costs itself",
        files={
            "t.parquet": packed(
                ["a", "x" * 40 * 2**20, "c"], row_group_size=1, use_dictionary=False
            )
        },
        captions=("a", "c"),
        reasons={"damaged": 1},
    ),
    Row(
        source="marcboeker/go-duckdb#255",
        why="a long text that many rows name by its number",
        files={"t.parquet": packed(LONG)},
        reasons={"damaged": 4000},
    ),
    Row(
        source="databendlabs/databend#20283",
        why="right: 20,000 rows of one short text pack well",
        files={"t.parquet": packed(MANY * 4)},
        captions=tuple(MANY * 4),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
def test_a_table_is_read_as_it_is_meant_or_counted(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in row.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, str):
            path.write_text(re.sub(r"\bU(\d)", r"http://p.test/\1.jpg", content))
        else:
            path.write_bytes(content)
    source = {"kind": "table", "paths": sorted(row.files), **row.keys}
    recipe = {"name": "r", "source": source, "fetch": AGENT}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    words = ["--out", str(tmp_path / "pool"), "--until", "crawl", "--engine", "inline"]
    status = commands.build([str(tmp_path / "r.yaml"), *words])
    answer = capsys.readouterr()
    assert status == row.status, answer.err
    for text in row.says:
        assert text in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err
    if status:
        return
    pairs = []
    for path in sorted((tmp_path / "pool" / "pairs").glob("part-*.parquet")):
        pairs += disk.read_parquet(path).to_pylist()
    assert tuple(pair["caption"] for pair in pairs) == row.captions
    parts = read_parts(PoolLayout(str(tmp_path / "pool")))
    totals = part_totals(parts)
    assert totals["reasons"] == row.reasons
    assert totals["links"] == len(row.captions) + sum(row.reasons.values())
    assert set(examples(parts)) == set(row.reasons)
    for name in row.keys.get("extra_columns", ()):
        assert {pair[name] for pair in pairs} == {None}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (table(pa.array([1.5, float("nan")])), "1.5"),  # kohya-ss/sd-scripts#2068
        (table(["3", "17"]), "3"),
        (table(["3", "a dog"]), ""),
        (labels(CLASSES, pa.array([1, 0])), ""),
    ],
)
def test_captions_that_are_numbers_are_told(
    content: pa.Table, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(content, path)
    recipe = {"name": "r", "source": {"kind": "table", "paths": [str(path)]}, "fetch": AGENT}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    words = ["--out", str(tmp_path / "pool"), "--until", "crawl", "--engine", "inline"]
    assert commands.build([str(tmp_path / "r.yaml"), *words]) == 0
    said = f"{path}: the captions, which are the values of 'caption', are numbers, such as {told}"
    assert (said in caplog.text) == bool(told)


def test_a_list_of_hashes_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """scrapy/scrapy#6195, of another list of lines."""
    (tmp_path / "bad.txt").write_text("a" * 64 + "\n", encoding="utf-8-sig")
    assert KnownBad.read(str(tmp_path / "bad.txt"), 4).digests.tolist() == [b"\xaa" * 32]
