"""Folders of images as pairs: captions from a table, text files or folder names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import fsspec
import xxhash

from manifests import disk
from manifests.schema import CAPTION_FILES, CLASS_FOLDERS, Source
from manifests.text import valid_text
from pipeline.archives import reject
from pipeline.crawl.tables import PAGE_COLUMNS, PairTable, Row, file_in

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif", ".bmp", ".tif", ".tiff")
)
CAPTION_SUFFIX = ".txt"


def rows_of_folder(folder: str, source: Source, counts: Counter[str]) -> Iterator[Row]:
    """The images of a folder and of the folders in it as rows of PAIRS.

    `counts` gets `links` (images, and rows of the captions table), `pairs` and every reason for
    which one is no pair: no_caption for an image without one, bad_url for a name that is not UTF-8.
    A row of the table whose image is not there is a pair: fetch gives it the reason missing_file.
    """
    folder = absolute_folder(folder)
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        yield from _captioned_by_files(folder, str(source.captions), counts)
    else:
        yield from _captioned_by_table(folder, source, counts)


def absolute_folder(folder: str) -> str:
    """A folder as the URLs of its images begin: a URL, or an absolute path."""
    return folder.rstrip("/") if disk.is_url(folder) else os.path.abspath(disk.local_path(folder))


def files_in(folder: str) -> list[str]:
    """Every file in a folder and the folders in it, relative to it, sorted; hidden ones are left
    out. Links to folders are followed, each folder once."""
    if disk.is_url(folder):
        fs, root = fsspec.core.url_to_fs(folder)
        paths = [path.removeprefix(root).lstrip("/") for path in fs.find(root)]
    else:
        paths = _local_files(folder)
    return sorted(path for path in paths if not any(p.startswith(".") for p in path.split("/")))


def _local_files(folder: str) -> list[str]:
    paths, visited = [], set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders.sort()
        inside = os.path.relpath(parent, folder)
        paths += names if inside == "." else [f"{inside}/{name}" for name in names]
    return paths


def is_image(name: str) -> bool:
    """True where a name ends as an image's does, in capitals or not."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def _captioned_by_files(folder: str, captions: str, counts: Counter[str]) -> Iterator[Row]:
    files = files_in(folder)
    present = set(files)
    for number, name in enumerate(filter(is_image, files)):
        counts["links"] += 1
        try:
            if valid_text(name) != name:
                raise ValueError("bad_url")
            if captions == CLASS_FOLDERS:
                caption = PurePosixPath(name).parent.name
            else:
                caption = _caption_beside(folder, name, present)
            if not caption.strip():
                raise ValueError("no_caption")
        except ValueError as reason:
            reject(counts, str(reason), repr(name))
            continue
        counts["pairs"] += 1
        yield _row(folder, name, caption, number)


def _caption_beside(folder: str, name: str, present: set[str]) -> str:
    """The text of the file beside an image; "" where there is none."""
    caption_file = str(PurePosixPath(name).with_suffix(CAPTION_SUFFIX))
    if caption_file not in present:
        return ""
    try:
        text = disk.read_bytes(disk.join(folder, caption_file)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("damaged") from None
    return text.strip()


def _row(folder: str, name: str, caption: str, number: int) -> Row:
    url = file_in(folder, name)
    uid = disk.uid_of(url, caption)
    return (uid, url, caption, *PAGE_COLUMNS, PurePosixPath(folder).name, None, number)


def _captioned_by_table(folder: str, source: Source, counts: Counter[str]) -> Iterator[Row]:
    table, named = folder_table(folder, source), set[str]()
    table.on_address = lambda name: named.add(file_in(folder, name))
    yield from table.rows(disk.join(folder, str(source.captions)), counts)
    for name in filter(is_image, files_in(folder)):
        if file_in(folder, name) not in named:
            counts["links"] += 1
            reject(counts, "no_caption", f"{name!r} is not in {source.captions}")


def folder_table(folder: str, source: Source) -> PairTable:
    """How the captions table of a folder is read."""
    return PairTable(
        source.file_column,
        source.caption_column,
        source.extra_columns,
        lambda name: file_in(folder, name),
    )


def check_folder(folder: str, source: Source) -> None:
    """ValueError where the captions table is not there or lacks a column."""
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        return
    path = disk.join(folder, str(source.captions))
    if not disk.exists(path):
        raise ValueError(
            f"there is no {path}; captions names a table inside each folder of paths, or is "
            f"{CAPTION_FILES} (a text file beside each image) or {CLASS_FOLDERS} (the name of the "
            "folder that holds the image)"
        )
    folder_table(folder, source).check(path)


def folder_content(folder: str, source: Source) -> dict[str, Any]:
    """What identifies what is read of a folder: the names of its images, and its captions."""
    folder = absolute_folder(folder)
    digest = xxhash.xxh3_128()
    files = files_in(folder)
    present = set(files)
    images = [name for name in files if is_image(name)]
    for name in images:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    captions: list[str] = []
    if source.captions == CAPTION_FILES:
        beside = [str(PurePosixPath(name).with_suffix(CAPTION_SUFFIX)) for name in images]
        captions = [name for name in beside if name in present]
    elif source.captions != CLASS_FOLDERS:
        captions = [str(source.captions)]
    for name in captions:
        digest.update(disk.read_bytes(disk.join(folder, name)) + b"\0")
    return {"files": len(images), "digest": digest.hexdigest()}


def is_folder_unchanged(folder: str, source: Source, content: Mapping[str, Any]) -> bool:
    """True where a folder still has the content that `folder_content` gave."""
    try:
        return not content or folder_content(folder, source) == content
    except FileNotFoundError:  # the captions table is gone
        return False
