"""Tars of strangers: forms that public reports show, rebuilt small, with their right outcomes.

Each row is adopted by the command. `outcomes` are those of its rows in the order of the tar: the
caption of a stored one, the reason of another. `says` is what the refusal, or the message of each
row that is not stored, names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests.schema import Source
from clipmill.pipeline.external.adopt import tar_tickets
from tests.support import commands
from tests.support.other_tars import Members, pack, picture, rows, take

STORED = {"status": "success"}


@dataclass(frozen=True, kw_only=True)
class Row:
    source: str
    why: str
    members: Members
    beside: list[dict[str, Any]] | None = None  # rows of the parquet beside the tar
    keys: dict[str, Any] = field(default_factory=dict)  # of the recipe's source
    outcomes: tuple[tuple[str, str], ...] = ()  # ("caption", …) or (reason, …)
    urls: tuple[str, ...] = ()
    status: int = 0
    says: tuple[str, ...] = ()


def sample(key: str, caption: bytes = b"a", ending: str = "jpg") -> Members:
    return [(f"{key}.{ending}", picture()), (f"{key}.txt", caption)]


def with_json(key: str, **values: Any) -> Members:
    return [(f"{key}.jpg", picture()), (f"{key}.json", json.dumps(values).encode())]


def listed(*keys: Any) -> list[dict[str, Any]]:
    return [{"key": key, "url": f"http://p.test/{key}", **STORED} for key in keys]


def stored(*captions: str) -> tuple[tuple[str, str], ...]:
    return tuple(("stored", caption) for caption in captions)


def lost(*reasons: str) -> tuple[tuple[str, str], ...]:
    return tuple((reason, "") for reason in reasons)


STEREO: Members = [("1.left.png", picture(kind="PNG")), ("1.right.png", picture(kind="PNG"))]
OTHER: Members = [("1.img", picture()), ("1.cap", b"a cat")]
FOLDERS = [*sample("a/001", b"in a"), *sample("b/001", b"in b")]
OLD_AND_NEW: Members = [
    *with_json("1", caption="old", re_caption="new"),
    ("1.txt", b"old"),
]
ROWS = [
    # keys with dots
    Row(
        source="webdataset/webdataset#237",
        why="samples whose keys have dots are as many rows",
        members=[*sample("235 Track 2.0 (Clean)"), *sample("235 Track 2.1 (Live)")],
        outcomes=lost("missing_file", "missing_file"),
        says=("has a dot",),
    ),
    Row(
        source="huggingface/datasets#7144",
        why="one such sample beside a good one",
        members=[*sample("22.05", ending="png"), *sample("23", b"good")],
        outcomes=(*lost("missing_file"), *stored("good")),
        says=("22.05.png", "has a dot"),
    ),
    Row(
        source="huggingface/datasets#7150",
        why="right: dots in the names of folders",
        members=[*sample("./some/path/22.0/1", b"one"), *sample("train.v1/2", b"two")],
        outcomes=stored("one", "two"),
    ),
    # members
    Row(
        source="webdataset/webdataset#20",
        why="several pictures: the message names the option",
        members=[*STEREO, ("1.txt", b"a")],
        outcomes=lost("missing_file"),
        says=("left.png", "image_member"),
    ),
    Row(
        source="webdataset/webdataset#375",
        why="right: the option names one of them",
        members=[*STEREO, ("1.txt", b"a")],
        keys={"image_member": "left.png"},
        outcomes=stored("a"),
        urls=("1.left.png",),
    ),
    Row(
        source="rom1504/clip-retrieval#14",
        why="right: other endings that the recipe names, in capitals or not",
        members=OTHER,
        keys={"image_member": "IMG", "caption_member": "cap"},
        outcomes=stored("a cat"),
    ),
    Row(
        source="robvanvolt/DALLE-models: README.md",
        why="a member that no sample has",
        members=OTHER,
        keys={"image_member": "image", "caption_member": "cap"},
        status=3,
        says=("image_member", "'image'", "cap, img"),
    ),
    Row(
        source="mlfoundations/open_clip#480",
        why="right: the caption of several texts",
        members=[("1.jpg", picture()), ("1.short.txt", b"s"), ("1.long.txt", b"l")],
        keys={"caption_member": "long.txt"},
        outcomes=stored("l"),
    ),
    # captions
    Row(
        source="mlfoundations/open_clip#637",
        why="right: the column that the recipe names, not .txt",
        members=OLD_AND_NEW,
        keys={"caption_column": "re_caption"},
        outcomes=stored("new"),
    ),
    Row(
        source="rom1504/clip-retrieval#98",
        why="a column that nothing has",
        members=OLD_AND_NEW,
        keys={"caption_column": "recaption"},
        status=3,
        says=("no column 'recaption'", "'re_caption'"),
    ),
    Row(
        source="mlfoundations/open_clip#1183",
        why="of a list of captions the first that is not blank",
        members=[*with_json("1", caption=["", "one", "two"]), *with_json("2", caption=[])],
        outcomes=(*stored("one"), *lost("no_caption")),
    ),
    Row(
        source="redcaps-dataset/redcaps-downloader#3",
        why="right: captions of the JSON alone; a number is none",
        members=[*with_json("1", caption="one"), *with_json("2", caption=float("nan"))],
        outcomes=(*stored("one"), *lost("no_caption")),
    ),
    Row(
        source="keymanapp/keyman#1916",
        why="a byte order mark is no part of a caption",
        members=[*sample("1", b"\xef\xbb\xbfone"), *sample("2", "späť".encode())],
        outcomes=stored("one", "späť"),
    ),
    Row(
        source="zer0int/CLIP-fine-tune#1",
        why="a caption of more bytes than the recipe permits",
        members=[*sample("1", b"abcd"), *sample("2", b"abc")],
        keys={"max_caption_bytes": 3},
        outcomes=(*lost("long_caption"), *stored("abc")),
    ),
    Row(
        source="mlfoundations/open_clip#569",
        why="numbers of classes are no captions: the member is named, and the option for a text",
        members=[("1.jpg", picture()), ("1.cls", b"3")],
        outcomes=lost("no_caption"),
        says=("only cls", "caption_member"),
    ),
    Row(
        source="webdataset/webdataset#11",
        why="the name of the text has the ending of the picture",
        members=[("1.jpg", picture()), ("1.jpg.txt", b"a")],
        outcomes=lost("no_caption"),
        says=("only jpg.txt", "caption_member"),
    ),
    Row(
        source="webdataset/webdataset#11 (the way)",
        why="right: what the message says",
        members=[("1.jpg", picture()), ("1.jpg.txt", b"a")],
        keys={"caption_member": "jpg.txt"},
        outcomes=stored("a"),
    ),
    Row(
        source="facebookresearch/MetaCLIP#59",
        why="texts under another name in the JSON: its names are said",
        members=with_json("1", texts=[["alt", "a cat"]]),
        outcomes=lost("no_caption"),
        says=("its JSON has texts", "caption_column"),
    ),
    Row(
        source="facebookresearch/MetaCLIP#59 (named)",
        why="pairs of a name and a text are no text",
        members=with_json("1", texts=[["alt", "a cat"]]),
        keys={"caption_column": "texts"},
        outcomes=lost("no_caption"),
        says=("its texts is no text", '[["alt","a cat"]]'),
    ),
    # names
    Row(
        source="logicminds/bmclib#20",
        why="right: what macOS packs beside a file is no sample",
        members=[("._1.jpg", b"\0\5"), *sample("1"), ("._1.txt", b"\0\5"), ("README", b"x")],
        outcomes=stored("a"),
    ),
    Row(
        source="webdataset/webdataset#428",
        why="right: a name of more than a hundred characters",
        members=sample("k" * 200),
        outcomes=stored("a"),
    ),
    Row(
        source="ray-project/ray#65044",
        why="right: the members of a sample need not lie together",
        members=[("0.jpg", picture()), ("1.jpg", picture()), ("0.txt", b"a"), ("1.txt", b"b")],
        outcomes=stored("a", "b"),
    ),
    # formats
    Row(
        source="pillow-avif-plugin#5",
        why="formats that are not read are named so",
        members=[
            ("1.gif", picture(kind="GIF")), ("1.txt", b"a"),
            ("2.bmp", picture(kind="BMP")), ("2.txt", b"a"),
            ("3.jfif", picture()), ("3.txt", b"a JPEG"),
        ],
        outcomes=(*lost("format", "format"), *stored("a JPEG")),
    ),
    Row(
        source="jhc13/taggui#18",
        why="UTF-16 without a mark, which is UTF-8 with NULs",
        members=[*sample("1", "a cat".encode("utf-16-le")), *sample("2", b"b")],
        outcomes=(*lost("encoding"), *stored("b")),
        says=("UTF-8",),
    ),
    # links
    Row(
        source="mxmlnkn/ratarmount#28",
        why="a picture that is a link has no bytes of its own: it is named so",
        members=[*sample("1"), ("2.jpg", "1.jpg"), ("2.txt", b"b")],
        outcomes=(*stored("a"), *lost("missing_file")),
        says=("2.jpg is a link", "--hard-dereference"),
    ),
    Row(
        source="bytedance/coconut_cvpr2024#21",
        why="samples of nothing but links, and a caption that is one, are counted",
        members=[*sample("1"), ("2.png", "../2.png"), ("3.jpg", picture()), ("3.txt", "1.txt")],
        outcomes=(*stored("a"), *lost("no_caption", "missing_file")),
        says=("is a link",),
    ),
    # the parquet beside a tar
    Row(
        source="webdataset/webdataset#327",
        why="a name in two folders: keys with the folder tell them apart",
        members=FOLDERS,
        beside=listed("b/001", "a/001"),
        outcomes=stored("in a", "in b"),
        urls=("a/001", "b/001"),
    ),
    Row(
        source="macrodata-labs/refiner#124",
        why="a key that fits samples of two folders",
        members=FOLDERS,
        beside=listed("001", "002"),
        status=3,
        says=("'001'", "a/001 or b/001"),
    ),
    Row(
        source="webdataset/webdataset#288",
        why="right: a key without its folder, where it fits one sample",
        members=[*sample("a/001", b"x"), *sample("b/002", b"y")],
        beside=listed("002", "./a/001"),
        outcomes=stored("x", "y"),
        urls=("./a/001", "002"),
    ),
    Row(
        source="rom1504/img2dataset: img2dataset/writer.py",
        why="right: numbers, which lost the zeros of the keys, and a row that is not in the tar",
        members=[*sample("000000003", b"x"), *sample("000000011", b"y")],
        beside=listed(11, 3, 4),
        outcomes=(*stored("x", "y"), *lost("missing_file")),
        urls=("3", "11", "4"),
    ),
    Row(
        source="iejMac/video2dataset#249",
        why="a number that fits two samples",
        members=[*sample("03"), *sample("3")],
        beside=listed(3),
        status=3,
        says=("the key 3", "03 or 3"),
    ),
    Row(
        source="LAION-AI/dataset-spec#2",
        why="two keys of one sample",
        members=sample("a/1"),
        beside=listed("a/1", "1"),
        status=3,
        says=("'a/1' and '1'",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
def test_a_tar_is_read_as_it_is_meant_or_counted(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(tmp_path / "0.tar", row.members)
    if row.beside is not None:
        pq.write_table(pa.Table.from_pylist(row.beside), tmp_path / "0.parquet")
    recipe = {"name": "r", "source": {"kind": "shards", "paths": ["0.tar"], **row.keys}}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    words = ["--out", str(tmp_path / "pool"), "--until", "fetch", "--engine", "inline"]
    status = commands.build([str(tmp_path / "r.yaml"), *words])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    if row.status:
        assert status == row.status
        assert all(text in error for text in row.says), error
        return
    adopted = rows(tmp_path / "pool")
    assert (
        tuple(
            (each["reason"] or "stored", "" if each["reason"] else each["caption"])
            for each in adopted
        )
        == row.outcomes
    ), error
    assert status == 0
    for each in adopted:
        if each["reason"] and row.says:
            assert all(text in each["error_message"] for text in row.says)
    for url, each in zip(row.urls, adopted, strict=False):
        assert each["url"].endswith(url)


def test_members_of_no_sample_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """logicminds/bmclib#20: what is left out of a tar is counted."""
    path = pack(tmp_path / "0.tar", [("._1.jpg", b"\0\5"), *sample("1"), ("README", b"x")])
    take(tmp_path / "pool", path)
    assert "0.tar: 2 members are no part of a sample, such as ._1.jpg" in caplog.text


def test_members_of_no_sample_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """logicminds/bmclib#20: by the build and by the audit of its pool, in lines and in --json."""
    for number in range(2):
        pack(tmp_path / f"{number}.tar", [("._1.jpg", b"\0\5"), *sample("1"), ("README", b"x")])
    recipe, pool = tmp_path / "r.yaml", str(tmp_path / "pool")
    recipe.write_text("name: r\nsource: {kind: shards, paths: ['*.tar']}\nviews: {raw: []}\n")
    build = [str(recipe), "--out", pool, "--engine", "inline"]
    counted = []
    for command, words in ((commands.build, build), (commands.audit, [pool])):
        assert command(words) == 0
        assert "4 members of " in (out := capsys.readouterr().out)
        assert "tars are no part of a sample" in out
        assert command([*words, "--json"]) == 0
        counted.append(json.loads(capsys.readouterr().out.splitlines()[-1])["fetch"]["strays"])
    assert counted == [4, 4]


def test_a_folder_of_compressed_tars_is_named_so(tmp_path: Path) -> None:
    """LAION-AI/CLIP_benchmark#47."""
    (tmp_path / "0.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ValueError, match=r"no tar at .*; 0\.tar\.gz is compressed: unpack it"):
        tar_tickets(Source(kind="shards", paths=(str(tmp_path),)))
