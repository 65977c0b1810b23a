"""Folders of pictures of public reports, rebuilt small, through the command: names and texts in
other spellings than a program expects.

The right outcome of a row was written down before it was run. A file of None is a picture.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.pipeline.audit.counts import count_pool
from tests.support import commands
from tests.support.other_tars import picture

CAFE = "café é.jpg"
NFC, NFD = (unicodedata.normalize(form, CAFE) for form in ("NFC", "NFD"))
HEAD = "file_name,caption\n"
TABLE = {"kind": "image_folder", "captions": "metadata.csv"}


@dataclass(frozen=True, kw_only=True)
class Row:
    source: str
    why: str
    files: dict[str, str | bytes | None]
    keys: dict[str, Any] = field(default_factory=lambda: TABLE)
    stored: dict[str, str]  # caption by the end of the address
    reasons: dict[str, int] = field(default_factory=dict)


ROWS = [
    Row(
        source="llmsresearch/paperbanana#234",
        why="a name in the form of Unicode that macOS does not write",
        files={NFD: None, "metadata.csv": f"{HEAD}{NFC},one\n"},
        stored={NFD: "one"},
    ),
    Row(
        source="llmsresearch/paperbanana#234 (turned)",
        why="the same the other way round",
        files={NFC: None, "metadata.csv": f"{HEAD}{NFD},one\n"},
        stored={NFC: "one"},
    ),
    Row(
        source="ieee8023/covid-chestxray-dataset#96",
        why="names without their endings; of several pictures it is not guessed",
        files={
            "RA-1.jpg": None,
            "2.jpg": None,
            "2.png": None,
            "metadata.csv": f"{HEAD}RA-1,one\n2,two\n",
        },
        stored={"RA-1.jpg": "one"},
        reasons={"missing_file": 1, "no_caption": 2},
    ),
    Row(
        source="open-edge-platform/datumaro#151",
        why="an ending in capitals, and a path of Windows",
        files={
            "A.JPEG": None,
            "sub/c.jpg": None,
            "metadata.csv": f"{HEAD}a.jpeg,one\nsub\\C.jpg,two\n",
        },
        stored={"A.JPEG": "one", "sub/c.jpg": "two"},
    ),
    Row(
        source="clipmill: names that two spellings fit",
        why="right: a name that is there is that file, also in lower case, and a folder stays one",
        files={
            "a.jpg": None,
            "A.jpg": None,
            "metadata.csv": f"{HEAD}A.jpg,large\na.jpg,small\n../b.jpg,out\nb.jpg,gone\n",
        },
        stored={"A.jpg": "large", "a.jpg": "small"},
        reasons={"outside_folder": 1, "missing_file": 1},
    ),
    Row(
        source="rom1504/clip-retrieval#329",
        why="right: one name in two folders, with endings in capitals",
        files={"x/1.PNG": None, "x/1.txt": "one", "y/1.JPG": None, "y/1.txt": "two"},
        keys={"kind": "image_folder", "captions": "txt"},
        stored={"x/1.PNG": "one", "y/1.JPG": "two"},
    ),
    Row(
        source="jhc13/taggui#18",
        why="texts as Windows writes them; cp1252 cannot be told and is counted",
        files={
            **{f"{number}.jpg": None for number in range(5)},
            "0.txt": "a café".encode("utf-16"),
            "1.txt": "a café".encode("utf-16-le"),
            "2.txt": "a café".encode("utf-8-sig"),
            "3.txt": "a caf\xe9".encode("cp1252"),
            "4.txt": "a cat".encode("utf-16-be"),
        },
        keys={"kind": "image_folder", "captions": "txt"},
        stored={"0.jpg": "a café", "1.jpg": "a café", "2.jpg": "a café", "4.jpg": "a cat"},
        reasons={"damaged": 1},
    ),
    Row(
        source="rom1504/img2dataset#428",
        why="files named by URLs",
        files={"i/a b.jpg": None, "i/c.jpg": None, "t.csv": "file,caption\nFOLDER/i/a%20b.jpg,one\n"
               "file://localhostFOLDER_PATH/i/c.jpg,two\n"},
        keys={"kind": "files"},
        stored={"i/a b.jpg": "one", "i/c.jpg": "two"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
def test_a_picture_is_found_by_what_its_table_means(row: Row, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for number, (name, content) in enumerate(row.files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = content.replace("FOLDER_PATH", str(folder)).replace("FOLDER", folder.as_uri())
            content = content.encode()
        path.write_bytes(picture(shade=number) if content is None else content)
    source = {"paths": [str(folder / "t.csv" if row.keys["kind"] == "files" else folder)]}
    recipe = {"name": "r", "source": source | row.keys, "fetch": {"image_size": 64}}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    pool = tmp_path / "pool"
    words = ["--out", str(pool), "--engine", "inline", "--until", "fetch"]
    assert commands.build([str(tmp_path / "r.yaml"), *words]) == 0
    found = {}
    for path in (pool / "shards").glob("*.parquet"):
        for each in disk.read_parquet(path).to_pylist():
            if each["reason"] is None:
                found[each["url"]] = each["caption"]
    assert found == {str(folder / name): text for name, text in row.stored.items()}, row.why
    counts = count_pool(read_commits(str(pool)))
    assert counts.crawl is not None
    assert {**counts.crawl.reasons, **counts.fetch.reasons} == row.reasons
