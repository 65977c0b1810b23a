"""A pool in the hands of strangers, by `look`, `export` and `audit` and from Python: words, lists
and calls that public reports show, each with what comes of it.

In words and lists %P is the pool, %D a folder, %U a uid of the pool and %V that uid in capitals.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clipmill
from tests.support import commands
from tests.support.small_pool import make_pool, rows

RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
filters: [tokens]
views: {long: [{words: original_width > 100}]}
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pools")
    made = make_pool(folder / "pool", rows(24))
    (folder / "r.yaml").write_text(RECIPE)
    words = [made, "--recipe", str(folder / "r.yaml")]
    assert commands.score([*words, "--engine", "inline"]) == 0
    assert commands.filter_pool(words) == 0
    return made


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Words:
    source: str
    why: str
    words: str  # the name of a command and its words
    list: bytes = b""  # %D/list
    ending: str = ""  # of the list
    status: int = 2
    says: str
    leaves: str = ""  # a file of %D that is there then


WORDS = [
    Words(
        source="vshulcz/deja-vu#1620",
        why="a uid in capitals had no row",
        words="audit explain %P %V",
        status=0,
        says="uid     %U",
    ),
    Words(
        source="pi-hole/FTL#2703",
        why="the mark in front of a list that Windows wrote, and lines that end as there",
        list=b"\xef\xbb\xbf# gone\r\n\r\nuid=%V\r\n",
        words="audit purge %P %D/list --dry-run",
        status=0,
        says="1 rows would be purged",
    ),
    Words(
        source="microsoft/vscode-docs#3118",
        why="a list that PowerShell wrote",
        list="uid=%U\n".encode("utf-16"),
        words="audit purge %P %D/list --dry-run",
        says="%D/list is UTF-16; write it as UTF-8",
    ),
    Words(
        source="ckan/ckanext-datastorer#64",
        why="a packed list",
        list=b"uid=%U\n",
        ending=".gz",
        words="audit purge %P %D/list.gz --dry-run",
        status=0,
        says="1 rows would be purged",
    ),
    Words(
        source="mlfoundations/datacomp#90",
        why="a subset of DataComp is no list of lines",
        list=b"\x93NUMPY\x01\x00v\x00",
        words="audit purge %P %D/list --dry-run",
        says="%D/list, line 1: it is no text in UTF-8",
    ),
    Words(
        source="mkb2091/blockconvert#17",
        why="the line of a long list that cannot be used is named",
        list=b"domain=a.example\n# more\nb.example\n",
        words="audit purge %P %D/list --dry-run",
        says="%D/list, line 3: b.example: write url=URL, domain=HOST",
    ),
    Words(
        source="TechnitiumSoftware/DnsServer#59",
        why="no row had a host with a star in its name, and nothing said why",
        words="audit purge %P domain=*.example --dry-run",
        says="a domain is the name of a host",
    ),
    Words(
        source="blokadaorg/blokada#661",
        why="a page in the place of its host: the host was read as https",
        words="audit purge %P domain=https://img1.example/1.jpg --dry-run",
        says="domain=https://img1.example/1.jpg: a domain is the name of a host",
    ),
    Words(
        source="duckdb/duckdb#2543",
        why="an ending in capitals became a folder of tars",
        words="export %P long --to %D/a/x.Parquet",
        status=0,
        says="view long: ",
        leaves="a/x.Parquet",
    ),
    Words(
        source="duckdb/duckdb-web#130",
        why="endings of files that no export writes became folders",
        words="export %P long --to %D/b/x.parq",
        says="an export is a .parquet, .csv or .npy file",
    ),
    Words(
        source="manojkarthick/pqrs#14",
        why="a file where a folder shall be",
        list=b"mine",
        words="export %P long --to %D/list",
        says="%D/list is a file, and without an ending of one a folder is written",
    ),
    Words(
        source="huggingface/neuralcoref#33",
        why="a file in the place of the pool",
        words="look %P/shards/00000.parquet --out %D/x.html",
        says="%P/shards/00000.parquet is a file; a pool is a folder",
    ),
    Words(
        source="abhishekkrthakur/tez#4",
        why="the same of a command that counts",
        words="audit %P/shards/00000.tar",
        says="%P/shards/00000.tar is a file; a pool is a folder",
    ),
    Words(
        source="eclipse-sumo/sumo#16891",
        why="a page under the name of another form",
        words="look %P --out %D/x.pdf",
        says="the page is HTML, and its name ends in .html",
    ),
]


@pytest.mark.parametrize("row", WORDS, ids=[row.source for row in WORDS])
def test_words(pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Words) -> None:
    uid = clipmill.open_pool(pool).table(["uid"])["uid"][0].as_py()
    named = {"%P": pool, "%D": str(tmp_path), "%U": uid, "%V": uid.upper()}

    def filled(text: str) -> str:
        return re.sub("%[PDUV]", lambda match: named[match[0]], text)

    content = row.list
    for name in ("%U", "%V"):
        for coding in ("utf-8", "utf-16-le"):
            content = content.replace(name.encode(coding), named[name].encode(coding))
    if row.list:
        packed = gzip.compress(content) if row.ending else content
        (tmp_path / f"list{row.ending}").write_bytes(packed)
    status = commands.run(row.words.split()[0], filled(row.words).split()[1:])
    printed = capsys.readouterr()
    assert status == row.status, printed.err
    assert filled(row.says) in printed.out + printed.err
    assert not row.leaves or (tmp_path / row.leaves).is_file()


# --- Python ---------------------------------------------------------------------------------------


def loader(data: Any, **options: Any) -> clipmill.Loader:
    return clipmill.Loader(data, **{"batch_size": 4, "image_size": 16, **options})


CALLS: list[tuple[str, str, Callable[[Any], Any], str]] = [
    (
        "Quantco/datajudge#152",
        "a text is no list of names: its letters were looked for",
        lambda pool: pool.table("uid"),
        "columns is 'uid'; give a list of names, as in ['uid']",
    ),
    (
        "gigisr/data_etl#26",
        "the same of images",
        lambda pool: next(pool.images(columns="caption")),
        "columns is 'caption'; give a list",
    ),
    (
        "scverse/scanpy#1315",
        "the same of one rule",
        lambda pool: pool.where("width > 1", "uid"),
        "columns is 'uid'; give a list",
    ),
    (
        "pyjanitor-devs/pyjanitor#810",
        "the same of a Loader",
        lambda pool: loader(f"{pool.path}/long", columns="url"),
        "columns is 'url'; give a list",
    ),
    (
        "static-frame/static-frame#412",
        "the digits of one shard were shards: the first one came four times",
        lambda pool: list(pool.scan(["uid"], shards="00000")),
        "shards is '00000'; give a list, as in ['00000']",
    ),
    (
        "brad-sp/cuckoo-modified#1",
        "a number is no list of shards",
        lambda pool: list(pool.scan(["uid"], shards=0)),
        "shards is 0; give a list, as in [0]",
    ),
    (
        "rom1504/clip-retrieval#149",
        "a shard by the name of its tar",
        lambda pool: list(pool.scan(["uid"], shards=["00000.tar"])),
        "has no shard 00000.tar; a shard is a number",
    ),
    (
        "juaml/julearn#128",
        "what describes a view in the place of its name",
        lambda pool: pool.table(["uid"], view=pool.views["long"]),
        "view is a ViewDocument; give the name of one: long",
    ),
    (
        "leoxiaobin/deep-high-resolution-net.pytorch#109",
        "a number is no key: it has lost its zeros",
        lambda pool: pool.explain(12),
        "row is 12; give a text: a uid, a URL, a key or a file name",
    ),
    (
        "MannLabs/scPortrait#375",
        "a file is no pool",
        lambda pool: clipmill.open_pool(f"{pool.path}/shards/00000.tar"),
        "00000.tar is a file; a pool is a folder",
    ),
    (
        "hytseng0509/CrossDomainFewShot#37",
        "a list of views has no weights",
        lambda pool: loader([f"{pool.path}/long"]),
        "the data are a list; give POOL/VIEW, {POOL/VIEW: weight}",
    ),
    (
        "CogStack/MedCATtrainer#78",
        "a weight that is a text",
        lambda pool: loader({f"{pool.path}/long": "1"}),
        "the weight of 'pool/long' is '1'",
    ),
    (
        "jfzhang95/pytorch-video-recognition#10",
        "a state of something else",
        lambda pool: loader(f"{pool.path}/long").load_state_dict({"step": 3}),
        "this is no state of a Loader: it has no 'order'",
    ),
]


@pytest.mark.parametrize(("source", "why", "call", "says"), CALLS, ids=[row[0] for row in CALLS])
def test_calls(pool: str, source: str, why: str, call: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        call(clipmill.open_pool(pool))


def test_numbers_of_numpy_are_numbers(pool: str) -> None:
    """pytorch/pytorch#86315: np.int64(4) was no whole number."""
    view = f"{pool}/long"
    with (
        loader(view, batch_size=np.int64(4), seed=np.int64(3)) as numpy,
        loader(view, seed=3) as own,
    ):
        assert next(iter(numpy)).keys == next(iter(own)).keys
