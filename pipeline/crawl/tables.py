"""Tables, caption lists and image folders as pairs."""

from __future__ import annotations

import functools
import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import xxhash

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, extra_column
from clipmill.manifests.schema import CAPTION_FILES, CLASS_FOLDERS, Source
from clipmill.manifests.text import valid_text
from clipmill.pipeline.archives.urls import SPACE, reject, resolve, shortened
from clipmill.pipeline.table_files import (
    CASTS,
    LONE_WORDS,
    PARQUET,
    PROBE,
    QUOTED,
    MissingColumn,
    as_json,
    as_text,
    check_image_column,
    class_names,
    is_null,
    refuse_notation,
    row_addresses,
    table_ending,
    unlisted,
    utf_16,
    values,
)

# --------------------------------------------------------------------------------------------------
# Rows of tables as pairs: URL lists, and lists of local image files, with a recipe's extra
# columns.


logger = logging.getLogger(__name__)
Row = tuple[Any, ...]  # one row of PAIRS and the values of the extra columns
FILE_COLUMN = "file"  # of a captions list
FILE_URL = re.compile(r"(?i)\s*file:(?://(?:localhost)?)?(?=/)")  # in front of a path
NUMBER = re.compile(r"\s*[-+]?\d+(?:\.\d*)?\s*")
PAGE_COLUMNS = (None,) * (PAIRS.names.index("wat") - 3)  # a table says nothing about the page


class PairTable:
    """Which columns of a table become pairs.

    `url_of` turns the text of the address column into a URL or an absolute path; ValueError whose
    text is the reason why it cannot. `addresses` of the rows, in place of such a column.
    `caption_column` None: the captions are empty.
    """

    def __init__(
        self,
        source: Source,
        address_column: str | None,
        caption_column: str | None,
        url_of: Callable[[str], str] = str,
        addresses: Iterable[str] = (),
    ) -> None:
        self.source, self.url_of, self.addresses = source, url_of, addresses
        self.caption_column = caption_column
        self.surely_short = source.max_caption_bytes // 4  # characters
        self.on_address: Callable[[str], object] = str  # is told every address that can be read
        extra = [extra_column(name, kind) for name, kind in source.extra_columns.items()]
        self.casts = [CASTS[kind] for _, kind in extra]
        self.has_address, self.has_captions = address_column is not None, caption_column is not None
        pair = [name for name in (address_column, caption_column) if name is not None]
        self.columns = [*pair, *(column for column, _ in extra)]

    def rows(self, path: str, counts: Counter[str]) -> Iterator[Row]:
        """The pairs of a table; those of a row whose caption is a list follow one another. A value
        that cannot be cast to its type is None.

        `counts` gets `links`, `pairs` and every reason for which a row is no pair. ValueError where
        the table lacks a column, or cannot be read further.
        """
        name = path if disk.is_url(path) else disk.local_path(path).name
        addresses, names = iter(self.addresses), self._class_names(path)
        for number, row in enumerate(self._values(path)):
            address = None if row is None else row[0] if self.has_address else next(addresses)
            for value in self._captions(row, names):
                counts["links"] += 1
                try:
                    if row is None:
                        raise ValueError("damaged")
                    url, caption = self._pair(address, value)
                except ValueError as reason:
                    shown = "" if row is None else f": {address!r}"
                    reject(counts, str(reason), f"{name} row {number + 1}{shown}")
                    continue
                counts["pairs"] += 1
                uid = disk.uid_of(url, caption)
                yield (uid, url, caption, *PAGE_COLUMNS, name, None, number, *self._extra(row))

    def _class_names(self, path: str) -> Sequence[str]:
        """The captions that the numbers of a column of labels stand for."""
        is_parquet = self.has_captions and table_ending(path) == PARQUET
        return class_names(path, self.caption_column) if is_parquet else ()

    def _captions(self, row: Sequence[object] | None, names: Sequence[str]) -> Sequence[Any]:
        """The values that are captions of a row, at least one."""
        value = row[int(self.has_address)] if row is not None and self.has_captions else None
        value = unlisted(value)
        if isinstance(value, str):
            return [value]
        value = labelled(value, names)
        if not isinstance(value, list) or _is_nested(value):
            return [value]
        if self.source.caption_list == "first":
            value = [each for each in value if (as_text(each) or "").strip()][:1]
        return value or [None]

    def _pair(self, address: object, caption: object) -> tuple[str, str]:
        """URL and caption of a row. ValueError whose text is the reason why it has none."""
        link = _readable_text(address) or ""
        if link.strip(SPACE):
            self.on_address(link)
        if not self.has_captions:
            return self.url_of(link), ""
        if not isinstance(caption, str) and isinstance(caption, (list, tuple, Mapping)):
            raise ValueError("damaged")  # its JSON is no caption
        text = _readable_text(caption)
        if text is None:
            raise ValueError("no_alt")
        if not text.strip():
            raise ValueError("empty_alt")
        if len(text) > self.surely_short and is_too_long(text, self.source):
            raise ValueError("long_caption")
        return self.url_of(link), text

    def _extra(self, row: Sequence[object] | None) -> list[Any]:
        assert row is not None
        own = row[len(row) - len(self.casts) :]
        return [cast(value) for cast, value in zip(self.casts, own, strict=True)]

    def check(self, path: str) -> None:
        """ValueError where a table is no regular file, lacks a column, or has no text for a
        caption, as far as its first PROBE rows show; captions that are numbers are told."""
        if not disk.is_url(path):
            disk.check_source_file(disk.local_path(path))
        captions = []
        with closing(self._values(path)) as rows, suppress(OSError, EOFError):
            try:
                for row in islice(rows, PROBE + 1):
                    if row is not None and self.has_captions:
                        captions.append(row[int(self.has_address)])
            except FileNotFoundError:  # the stage names another one that cannot be read
                raise ValueError(f"source.paths names {path}, which does not exist") from None
        captions = [unlisted(each) for each in captions if each is not None]
        refuse_notation(path, self.caption_column, captions)
        if table_ending(path) == ".tsv" and _are_quoted(captions):
            raise ValueError(
                f"{path}: the values of {self.caption_column!r} are in quotation marks, and those "
                "inside are doubled; a .tsv is read without quotation marks: name the file .csv "
                'and write delimiter: "\\t"'
            )
        if captions and _are_words(captions):
            example = shortened(as_json(captions[0]) or "")
            raise ValueError(
                f"{path}: the values of {self.caption_column!r} are the words of one caption, as "
                f"in {example}, and each text of a list would be a caption: write the words as one "
                "text, or name another caption_column"
            )
        if captions and all(map(_is_nested, captions)):
            example = shortened(as_json(captions[0]) or type(captions[0]).__name__)
            raise ValueError(
                f"{path}: the values of {self.caption_column!r} are structs, as in {example}; a "
                "caption is a text, or a list of texts: name another caption_column, or write the "
                "texts into a column of their own"
            )
        texts = [text for text in map(as_text, captions) if text and text.strip()]
        if texts and all(map(NUMBER.fullmatch, texts)) and not self._class_names(path):
            text = "%s: the captions, which are the values of %r, are numbers, such as %s"
            logger.warning(text, path, self.caption_column, texts[0].strip())

    def _values(self, path: str) -> Generator[Sequence[Any] | None]:
        """The columns of a table, row by row."""
        try:
            yield from values(path, self.columns, self.source.columns, self.source.delimiter)
        except MissingColumn as missing:
            if self.source.kind != "files":
                raise
            raise ValueError(
                f"{missing}: a source of kind files reads the columns "
                f"{' and '.join(self.columns)}; name those of the table as file_column and "
                "caption_column"
            ) from None


def _readable_text(value: object) -> str | None:
    """A value as text; None for NULL. ValueError("damaged") where it is not valid text."""
    text = as_text(value)
    if text is None and not is_null(value):
        raise ValueError("damaged")
    return text


def _is_nested(value: object) -> bool:
    """Whether a value is a struct or a map, or a list of nothing but these, and of lists."""
    if isinstance(value, list) and value:
        return all(isinstance(each, (Mapping, list, tuple)) for each in value)
    return isinstance(value, (Mapping, tuple))


def _are_quoted(captions: Sequence[object]) -> bool:
    """Whether texts are as a .csv has them: some have doubled quotation marks in a pair of them,
    and none begins with one and is no such value."""
    marked = [each for each in captions if isinstance(each, str) and each.startswith('"')]
    return any('""' in each[1:-1] for each in marked) and all(map(QUOTED.fullmatch, marked))


def _are_words(captions: Sequence[object]) -> bool:
    """Whether each value is a list of the words of one caption: none has a blank, and some words
    are no caption."""
    words = [word for each in captions if isinstance(each, list) for word in each]
    return (
        all(isinstance(each, list) for each in captions)
        and all(isinstance(word, str) and len(word.split()) < 2 for word in words)
        and any(map(LONE_WORDS.fullmatch, words))
    )


def labelled(value: object, names: Sequence[str] | None) -> Any:
    """The name of a label, or those of a list of labels; None for a number that has none."""
    if names and isinstance(value, list):
        return [labelled(each, names) for each in value]
    if not names or not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def is_too_long(caption: str, source: Source) -> bool:
    """Whether a caption has more bytes than the recipe permits."""
    return len(caption.encode("utf-8", "surrogatepass")) > source.max_caption_bytes


def url_table(source: Source) -> PairTable:
    """Kind table: the columns that the recipe names."""
    return PairTable(
        source, source.url_column, source.caption_column, lambda link: resolve("", link)
    )


def file_table(source: Source, path: str) -> PairTable:
    """Kind files: the columns `file`, relative to the table's folder, and `caption`, or those that
    the source names."""
    if disk.is_url(path):
        folder = path.rpartition("/")[0]
    else:
        folder = str(disk.local_path(path).absolute().parent)
    file = FILE_COLUMN if source.file_column == "file_name" else source.file_column
    return PairTable(source, file, source.caption_column, lambda name: file_in(folder, name))


def image_table(source: Source, path: str) -> PairTable:
    """Kind image_table: the images are in the rows, whose addresses are their URLs."""
    absolute = disk.absolute_path(path)
    return PairTable(
        source,
        None,
        source.caption_column,
        addresses=row_addresses(absolute, source.image_column),
    )


def check_image_table(path: str, source: Source) -> None:
    """ValueError where the column of the images or another one is missing, or of no such type."""
    image_table(source, path).check(path)
    with suppress(OSError):  # as in `check`
        check_image_column(path, source.image_column)


def file_in(folder: str, name: str) -> str:
    """The absolute path of a file that is named relative to `folder`. ValueError("bad_url") where
    the name is blank."""
    if not name.strip(SPACE):
        raise ValueError("bad_url")
    if disk.is_url(folder):
        return disk.join(folder, name)
    if url := FILE_URL.match(name):
        name = unquote(name[url.end() :])
    return os.path.abspath(os.path.join(folder, name))


# --------------------------------------------------------------------------------------------------
# Folders of images as pairs: captions from a table, text files or folder names.


# What is read, and what fetch counts as `format`.
IMAGE_SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif", ".bmp", ".tif", ".tiff",
    ".heic", ".heif", ".hif", ".jxl", ".jp2", ".j2k", ".jpf", ".jpx", ".jxr", ".svg", ".ico",
    ".cur", ".psd", ".psb", ".eps", ".icns", ".dds", ".xcf", ".exr", ".qoi", ".ppm", ".pgm",
    ".pbm", ".pnm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
))  # fmt: skip
CAPTION_SUFFIX = ".txt"


class ImageFolder:
    """A folder of images. Nothing outside of it is opened: a table that came with the images, or a
    link among them, may name any file of this machine. `links_outside` permits the links.
    """

    def __init__(self, folder: str, source: Source) -> None:
        is_url = disk.is_url(folder)  # as the URLs of its images begin
        self.path = folder.rstrip("/") if is_url else os.path.abspath(disk.local_path(folder))
        self.source, self.links_outside = source, source.links_outside
        self._real = "" if disk.is_url(folder) else os.path.realpath(self.path)

    def file(self, name: str) -> str:
        """The path of a file that is named relative to the folder. ValueError("bad_url") for a name
        that no file has, ValueError("outside_folder") where it leads out of the folder."""
        path = file_in(self.path, name)
        if "\0" in name:
            raise ValueError("bad_url")
        if disk.is_url(path):
            leads_out = name.startswith("/") or "://" in name or ".." in name.split("/")
        else:
            leads_out = not _lies_in(self.path, path) or self.is_link_outside(path)
        if leads_out:
            raise ValueError("outside_folder")
        return path

    def table(self, name: str) -> str:
        """The path of the captions table, which the recipe may name outside of the folder, as in
        ../annotations/captions.json. ValueError("outside_folder") for a link that leads out."""
        scheme, _, folder = self.path.rpartition("://")
        path = os.path.normpath(os.path.join(folder, name))
        if scheme:
            return f"{scheme}://{path}"
        if _lies_in(self.path, path) and self.is_link_outside(path):
            raise ValueError("outside_folder")
        return path

    def is_link_outside(self, path: str) -> bool:
        """Whether a local path of the folder leads out of it by a symbolic link that may not."""
        return not self.links_outside and not _lies_in(self._real, os.path.realpath(path))

    def names(self) -> list[str]:
        """Every file in the folder and the folders in it, relative to it, sorted; hidden ones are
        left out. Links to folders are followed, each folder once; of those that lead outside the
        link itself is listed."""
        if disk.is_url(self.path):
            fs, root = disk.filesystem(self.path)
            paths = [path.removeprefix(root).lstrip("/") for path in fs.find(root)]
        else:
            paths = self._local_names()
        return sorted(path for path in paths if not any(p.startswith(".") for p in path.split("/")))

    def _local_names(self) -> list[str]:
        paths = []
        for parent, folders, names in disk.walk(self.path):
            outside = [name for name in folders if self.is_link_outside(os.path.join(parent, name))]
            folders[:] = [name for name in folders if name not in outside]
            inside = os.path.relpath(parent, self.path)
            names += outside
            paths += names if inside == "." else [f"{inside}/{name}" for name in names]
        return paths

    def images(self) -> list[str]:
        """The names that end as an image's do, and links to folders outside."""
        return [name for name in self.names() if is_image(name) or self._is_folder(name)]

    def _is_folder(self, name: str) -> bool:
        return bool(self._real) and os.path.isdir(os.path.join(self.path, name))

    def caption_beside(self, name: str) -> bytes | None:
        """The content of the text file beside an image; None where there is none, ValueError with
        the reason where it may not or cannot be read."""
        try:
            return disk.read_bytes(self.file(str(PurePosixPath(name).with_suffix(CAPTION_SUFFIX))))
        except FileNotFoundError:
            return None
        except disk.NotRegular:
            raise ValueError("damaged") from None


def _lies_in(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def rows_of_folder(folder: str, source: Source, counts: Counter[str]) -> Iterator[Row]:
    """The images of a folder and of the folders in it as rows of PAIRS.

    `counts` gets `links` (images, and rows of the captions table), `pairs` and every reason for
    which one is no pair: no_caption for an image without one, bad_url for a name that is not UTF-8,
    outside_folder for one that leads out of the folder. A row of the table whose image is not there
    is a pair: fetch gives it the reason missing_file.
    """
    images = ImageFolder(folder, source)
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        yield from _captioned_by_files(images, str(source.captions), counts)
    else:
        yield from _captioned_by_table(images, source, counts)


def is_image(name: str) -> bool:
    """True where a name ends as an image's does, in capitals or not."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def _captioned_by_files(images: ImageFolder, captions: str, counts: Counter[str]) -> Iterator[Row]:
    for number, name in enumerate(images.images()):
        counts["links"] += 1
        try:
            if valid_text(name) != name:
                raise ValueError("bad_url")
            url = images.file(name)
            if captions == CLASS_FOLDERS:
                caption = PurePosixPath(name).parent.name
            else:
                content = images.caption_beside(name) or b""
                caption = content.decode(utf_16(content) or "utf-8-sig").strip()
            if not caption.strip():
                raise ValueError("no_caption")
            if is_too_long(caption, images.source):
                raise ValueError("long_caption")
        except ValueError as error:
            reason = "damaged" if isinstance(error, UnicodeDecodeError) else str(error)
            reject(counts, reason, repr(name))
            continue
        counts["pairs"] += 1
        uid = disk.uid_of(url, caption)
        folder = PurePosixPath(images.path).name
        yield (uid, url, caption, *PAGE_COLUMNS, folder, None, number)


def _captioned_by_table(images: ImageFolder, source: Source, counts: Counter[str]) -> Iterator[Row]:
    table, named, names = folder_table(images, source), set[str](), images.images()
    found = functools.lru_cache(maxsize=1)(_Spellings(images, names))  # asked twice a row
    table.url_of = lambda name: images.file(found(name))
    table.on_address = lambda name: named.add(file_in(images.path, found(name)))
    yield from table.rows(images.table(str(source.captions)), counts)
    for name in names:
        if file_in(images.path, name) not in named:
            counts["links"] += 1
            reject(counts, "no_caption", f"{name!r} is not in {source.captions}")


class _Spellings:
    """The image that a table of a folder names, in the folder's spelling: tables have backslashes,
    other capitals, another normal form of Unicode (macOS has its own), or no ending.
    """

    def __init__(self, images: ImageFolder, names: Sequence[str]) -> None:
        self._folder, self._names = images.path, names
        self._listed = set(names) if disk.is_url(images.path) else None
        self._spelled: dict[str, str | None] = {}  # None: of several images

    def __call__(self, name: str) -> str:
        path = file_in(self._folder, name)
        if os.path.lexists(path) if self._listed is None else name in self._listed:
            return name
        if not self._spelled:
            for image in self._names:
                for key in (_key(image), _key(os.path.splitext(image)[0])):
                    self._spelled[key] = None if key in self._spelled else image
        return self._spelled.get(_key(path.removeprefix(f"{self._folder}/"))) or name


def _key(name: str) -> str:
    name = os.path.normpath(name.strip().replace("\\", "/"))
    return unicodedata.normalize("NFC", name).casefold()


def folder_table(images: ImageFolder, source: Source) -> PairTable:
    """How the captions table of a folder is read."""
    return PairTable(source, source.file_column, source.caption_column, images.file)


def check_folder(folder: str, source: Source) -> None:
    """ValueError where the captions table is not there or lacks a column."""
    if source.captions in (CAPTION_FILES, CLASS_FOLDERS):
        return
    images = ImageFolder(folder, source)
    try:
        path = images.table(str(source.captions))
    except ValueError:
        raise ValueError(
            f"captions is {source.captions!r}, a symbolic link that leads out of {images.path}; "
            "name the table that it leads to, or set links_outside: true if you trust it"
        ) from None
    if not disk.exists(path):
        raise ValueError(
            f"there is no {path}; captions names a table by its path from each folder of paths, or "
            f"is {CAPTION_FILES} (a text file beside each image) or {CLASS_FOLDERS} (the name of "
            "the folder that holds the image)"
        )
    folder_table(images, source).check(path)


def folder_content(folder: str, source: Source) -> dict[str, object]:
    """What identifies what is read of a folder: the names of its images, and its captions."""
    images, digest = ImageFolder(folder, source), xxhash.xxh3_128()
    names = images.images()
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    if source.captions == CAPTION_FILES:
        for name in names:
            with suppress(ValueError):
                content = images.caption_beside(name)
                digest.update(b"" if content is None else content + b"\0")
    elif source.captions != CLASS_FOLDERS:
        digest.update(disk.read_bytes(images.table(str(source.captions))) + b"\0")
    return {"files": len(names), "digest": digest.hexdigest()}
