"""Folders of images: three ways to caption them, odd names, and a reason for each image without."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import Source
from clipmill.pipeline.crawl.crawler import crawl
from clipmill.pipeline.crawl.sources import parts
from clipmill.pipeline.crawl.tables import ImageFolder
from clipmill.pipeline.pool.lease import PoolWriter

ODD_NAMES = ("a b.jpg", "c#1.PNG", "50%25.jpeg", "line\nbreak.webp", "東京/é.jpg", "deep/er/x.JPG")


def images(folder: Path, *names: str) -> str:
    """A folder of empty files with these names: crawl looks at names only."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


def crawled(folder: Path, **keys: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and totals of a folder."""
    source = Source(kind="image_folder", paths=(str(folder),), **keys)
    pool = str(folder.parent / "pool")
    totals = crawl(source, PoolWriter(pool), "inline")
    assert totals["links"] == totals["pairs"] + sum(totals["reasons"].values())
    rows = disk.read_parquet(disk.join(pool, "pairs/part-00000.parquet")).to_pylist()
    assert all(row["uid"] == disk.uid_of(row["url"], row["caption"]) for row in rows)
    return rows, totals


def test_captions_from_a_table_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    images(folder, "a.jpg", "sub/b.png", "c.jpg", "no row.jpg", "README.txt", ".hidden.jpg")
    (folder / "metadata.csv").write_text(
        "name,text,label\na.jpg,an a,1\n./sub/b.png,a b,2\nc.jpg,,3\nnot there.jpg,gone,4\n"
    )
    columns = {"file_column": "name", "caption_column": "text", "extra_columns": {"label": "int"}}
    pairs, totals = crawled(folder, captions="metadata.csv", **columns)
    assert [(row["url"], row["caption"], row["label"]) for row in pairs] == [
        (str(folder / "a.jpg"), "an a", 1),
        (str(folder / "sub/b.png"), "a b", 2),
        (str(folder / "not there.jpg"), "gone", 4),  # fetch says missing_file
    ]
    assert totals["reasons"] == {"empty_alt": 1, "no_caption": 1}


def test_captions_from_a_text_file_beside_each_image(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    images(folder, *ODD_NAMES, "none.jpg", "blank.jpg", "broken.jpg", "README.txt", "notes.pdf")
    for number, name in enumerate(ODD_NAMES):
        (folder / name).with_suffix(".txt").write_text(f" caption {number}\n", encoding="utf-8-sig")
    (folder / "blank.txt").write_text(" \n")
    (folder / "broken.txt").write_bytes(b"caf\xe9")
    rows, totals = crawled(folder, captions="txt")
    assert {row["url"]: row["caption"] for row in rows} == {
        str(folder / name): f"caption {number}" for number, name in enumerate(ODD_NAMES)
    }
    assert [row["url"] for row in rows] == sorted(row["url"] for row in rows)
    assert totals["reasons"] == {"no_caption": 2, "damaged": 1}


def test_captions_from_the_folders_names(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    images(folder, "cat/1.jpg", "dog/2.jpg", "old/hot dog/3.jpg", "no class.jpg", "cat/labels.csv")
    rows, totals = crawled(folder, captions="class_folders")
    assert [(row["caption"], row["link"]) for row in rows] == [
        ("cat", 0),
        ("dog", 1),
        ("hot dog", 3),
    ]
    assert totals["reasons"] == {"no_caption": 1}


def test_a_name_that_is_not_utf8_costs_itself(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    images(folder, "cat/1.jpg")
    Path(os.fsdecode(os.fsencode(folder) + b"/cat/caf\xe9.jpg")).touch()
    rows, totals = crawled(folder, captions="class_folders")
    assert ([row["caption"] for row in rows], totals["reasons"]) == (["cat"], {"bad_url": 1})
    (folder / "metadata.csv").write_text("file_name,caption\ncat/1.jpg,one\n")
    shutil.rmtree(tmp_path / "pool")
    rows, totals = crawled(folder, captions="metadata.csv")
    assert ([row["caption"] for row in rows], totals["reasons"]) == (["one"], {"no_caption": 1})


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    images(tmp_path / "store/cat", "1.jpg")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat").symlink_to(tmp_path / "store/cat")
    (tmp_path / "store/cat/loop").symlink_to(tmp_path / "photos")
    source = Source(kind="image_folder", paths=("p",), captions="class_folders", links_outside=True)
    assert ImageFolder(str(tmp_path / "photos"), source).names() == ["cat/1.jpg"]


@pytest.mark.parametrize("captions", ["class_folders", "txt", "metadata.csv"])
def test_nothing_outside_of_the_folder_is_read(captions: str, tmp_path: Path) -> None:
    private = tmp_path / "private"
    images(private, "passport.jpg", "deep/visa.jpg")
    (private / "secret.txt").write_text("a secret")
    folder = tmp_path / "photos"
    images(folder, "cat/a.jpg", "cat/b.jpg")
    (folder / "cat/a.txt").write_text("an a")
    (folder / "cat/inner.jpg").symlink_to("a.jpg")
    (folder / "cat/inner.txt").write_text("linked")
    (folder / "cat/b.txt").symlink_to(private / "secret.txt")
    (folder / "cat/link.jpg").symlink_to(private / "passport.jpg")
    (folder / "cat/link.txt").write_text("a link")
    (folder / "linked").symlink_to(private)
    named = [
        "cat/a.jpg", f"{folder}/cat/b.jpg", "cat/inner.jpg", "cat/link.jpg",
        "../private/passport.jpg", str(private / "passport.jpg"), "linked/deep/visa.jpg",
        "cat/../../private/passport.jpg", "..",
    ]  # fmt: skip
    (folder / "metadata.csv").write_text(
        "\n".join(["file_name,caption", *(f"{n},x" for n in named)])
    )
    inside = {
        "class_folders": ["cat/a.jpg", "cat/b.jpg", "cat/inner.jpg"],
        "txt": ["cat/a.jpg", "cat/inner.jpg"],
        "metadata.csv": ["cat/a.jpg", "cat/b.jpg", "cat/inner.jpg"],
    }[captions]
    outside = {"class_folders": 2, "txt": 3, "metadata.csv": 6}[captions]
    pairs, totals = crawled(folder, captions=captions)
    assert [row["url"] for row in pairs] == [str(folder / name) for name in inside]
    assert totals["reasons"].pop("outside_folder") == outside
    assert set(totals["reasons"]) <= {"no_caption"}
    shutil.rmtree(tmp_path / "pool")
    pairs, totals = crawled(folder, captions=captions, links_outside=True)
    assert len(pairs) > len(inside)


def test_a_captions_table_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos", "a.jpg")
    (tmp_path / "metadata.csv").write_text("file_name,caption\na.jpg,a\n")
    (tmp_path / "photos/metadata.csv").symlink_to(tmp_path / "metadata.csv")
    with pytest.raises(ValueError, match=r"leads out of .*photos; name the table that it leads to"):
        crawled(Path(folder), captions="metadata.csv")
    assert len(crawled(Path(folder), captions="metadata.csv", links_outside=True)[0]) == 1


def test_cocos_annotations_lie_beside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "train2017"
    images(folder, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    (tmp_path / "annotations").mkdir()
    document = {
        "info": {"year": 2017},
        "licenses": [],
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": n} for n in (1, 2, 3)],
        "annotations": [
            {"id": 7, "image_id": 2, "caption": "two"},
            {"id": 8, "image_id": 1, "caption": "eins, groß"},
            {"id": 9, "image_id": 2, "caption": "zwei"},
            {"id": 10, "image_id": 5, "caption": "of no image"},
            {"id": 11, "caption": "of none"},
            17,
        ],
    }
    (tmp_path / "annotations/captions.json").write_text(json.dumps(document))
    named: dict[str, Any] = {"captions": "../annotations/captions.json"}
    rows, totals = crawled(folder, **named, extra_columns={"side": "width:int"})
    assert [(row["url"][-5:], row["caption"], row["side"]) for row in rows] == [
        ("1.jpg", "eins, groß", 1),
        ("2.jpg", "two", 2),
        ("2.jpg", "zwei", 2),
    ]
    # 3.jpg has no annotation, 4.jpg no image; three annotations have no image, one is none.
    assert totals["reasons"] == {"no_alt": 2, "no_caption": 1, "bad_url": 2}
    shutil.rmtree(tmp_path / "pool")
    rows, _ = crawled(folder, **named, caption_list="first")
    assert [row["caption"] for row in rows] == ["eins, groß", "two"]
    store = f"memory://{tmp_path}/coco"
    disk.write_bytes(f"{store}/train/1.jpg", b"")
    disk.write_json(f"{store}/annotations/captions.json", document)
    source = Source(kind="image_folder", paths=(f"{store}/train",), **named)
    assert crawl(source, PoolWriter(str(tmp_path / "of a store")), "inline")["pairs"] == 3


def test_a_folder_at_a_url(tmp_path: Path) -> None:
    root = f"memory://{tmp_path}/photos"
    for name in ("cat/1.jpg", "dog/2 #.jpg"):
        disk.write_bytes(f"{root}/{name}", b"")
    source = Source(kind="image_folder", paths=(root,), captions="class_folders")
    pool = f"{root}-pool"
    assert crawl(source, PoolWriter(pool), "inline")["pairs"] == 2
    rows = disk.read_parquet(f"{pool}/pairs/part-00000.parquet").to_pylist()
    assert [row["url"] for row in rows] == [f"{root}/cat/1.jpg", f"{root}/dog/2 #.jpg"]


@pytest.mark.parametrize("captions", ["txt", "metadata.csv"])
def test_a_folder_that_changed_is_noticed(captions: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    images(folder, "cat/1.jpg")
    (folder / "cat/1.txt").write_text("one")
    (folder / "metadata.csv").write_text("file_name,caption\ncat/1.jpg,one\n")
    crawled(folder, captions=captions)
    crawled(folder, captions=captions)
    (folder / "cat/1.txt").write_text("two")
    (folder / "metadata.csv").write_text("file_name,caption\ncat/1.jpg,two\n")
    with pytest.raises(ValueError, match=r"photos has changed since .*/pool/pairs was made of it"):
        crawled(folder, captions=captions)


def test_folders_that_cannot_be_read_are_refused_with_what_to_write(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos", "a.jpg")
    source = Source(kind="image_folder", paths=(folder,), captions="metadata.csv")
    with pytest.raises(
        ValueError, match=r"there is no .*/photos/metadata\.csv; captions names a tab"
    ):
        crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")
    (tmp_path / "photos/metadata.csv").write_text("file,caption\na.jpg,a\n")
    with pytest.raises(ValueError, match=r"no column 'file_name'; did you mean 'file'"):
        crawl(source, PoolWriter(str(tmp_path / "pool")), "inline")
    source = Source(kind="image_folder", paths=(f"{folder}/metadata.csv",), captions="txt")
    with pytest.raises(ValueError, match=r"which is no folder: .* write kind: files"):
        parts(source)
    source = Source(kind="image_folder", paths=(str(tmp_path / "none"),), captions="txt")
    with pytest.raises(ValueError, match="which does not exist"):
        parts(source)
