"""Columns of tables that other programs made, joined by a key: nothing is computed again. Captions
that another program wrote are such a column."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa

from clipmill.filters.base import FREE, PLACE, FilterBase, described
from clipmill.manifests import disk
from clipmill.manifests.columns import EXTRA_TYPES
from clipmill.manifests.content import content_digest

LIST_TYPE = re.compile(r"fp16\[([1-9]\d{0,4})\]")
COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
PARQUET, UID_LIST = ".parquet", ".npy"
# Text files, in UTF-8: a header and values (in a .csv in quotes); one JSON object a line.
TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson")
TEXT_TABLES = tuple(text + packed for text in TEXTS for packed in ("", ".gz", ".zst"))
ENDINGS = (PARQUET, UID_LIST, *TEXT_TABLES)
# Columns of the sidecars whose values are texts of any length; others hold uids.
TEXT_KEYS = ("url", "key", "sha256", "image_name")


@dataclass(kw_only=True)
class Table(FilterBase):
    """The columns that `take` names, from Parquet files and the .npz beside each, or from .csv,
    .tsv and .jsonl files, also packed (.gz, .zst).

    paths: files, folders and patterns (`*.parquet`). on: the column of the pool's sidecars that
    says which row is which: `uid` or another one of 32 hex digits, or `url`, `key`, `sha256` or
    `image_name`, whose texts are compared letter by letter. key: the column of the files that has
    the same values. take: name -> TYPE or COLUMN:TYPE, with a type of `extra_columns` or
    fp16[WIDTH], an array of the .npz of the same name. A path that ends in .npy is a list of uids
    (DataComp's subset form); `take` then has one column of type bool, true for the rows of the
    list. A row that the tables do not have is NULL, as are NaN and a blank number; any other value
    that is not of its type is an error. Of several table rows with one key the first counts, in the
    order of the files.
    """

    name = "table"
    version = 2
    blank_is_null: ClassVar[bool] = False  # of texts
    adds: ClassVar[dict[str, pa.DataType]] = {}
    paths: tuple[str, ...] | str = field(metadata=PLACE)  # identity() covers what is in them
    take: dict[str, str]
    key: str = "uid"
    on: str = "uid"

    def __post_init__(self) -> None:
        if not self.paths or not self.take:
            raise ValueError("filter table needs paths and take, as in {take: {score: float}}")
        if isinstance(self.paths, str):
            self.paths = (self.paths,)
        super().__post_init__()
        for name, form in self.take.items():
            if not COLUMN_NAME.fullmatch(name):
                raise ValueError(
                    f"filter table: a column cannot be named {name!r}; use a-z, 0-9, _"
                )
            type_of(form)
        is_list = [path.endswith(UID_LIST) for path in self.paths]
        if any(is_list) and not (all(is_list) and list(self.take.values()) == ["bool"]):
            raise ValueError(
                "filter table: lists of uids (.npy) give one column, as in {take: {listed: bool}}, "
                "and cannot be mixed with other files"
            )

    @property
    def hashed_keys(self) -> bool:
        """Whether keys are texts of any length, and not 32 hex digits."""
        return self.on in TEXT_KEYS

    @property
    def of_uid_lists(self) -> bool:
        """True where the files are lists of uids."""
        return self.paths[0].endswith(UID_LIST)

    def columns(self) -> dict[str, pa.DataType]:
        return {name: type_of(form) for name, form in self.take.items()}

    def source_columns(self) -> dict[str, str]:
        """Name -> column of the Parquet file, or array of the .npz."""
        return {name: form.rpartition(":")[0] or name for name, form in self.take.items()}

    def files(self) -> list[str]:
        """The files in their order. ValueError for a path that leads to none."""
        files: list[str] = []
        for path in self.paths:
            found = _files_at(path)
            if not found:
                raise ValueError(
                    f"filter {self.name}: there is no table at {path}; a table is a file that "
                    f"ends in {', '.join([PARQUET, UID_LIST, *TEXTS])} (a text also with .gz or "
                    f".zst behind), or a folder of such files but {UID_LIST}"
                )
            files += found
        return files

    def arrays_beside(self, file: str) -> str:
        """The .npz that belongs to a Parquet file."""
        return f"{file.removesuffix(PARQUET)}.npz"

    def identity(self) -> str:
        """Hash of the names and contents of the files."""
        content = hashlib.sha256()
        with_arrays = any(map(is_array, self.take.values()))
        for file in self.files():
            beside = [self.arrays_beside(file)] if with_arrays else []
            for path in [file, *beside]:
                if not disk.exists(path):
                    raise ValueError(
                        f"filter {self.name}: {path} is missing: fp16[WIDTH] is an array of the "
                        ".npz beside a Parquet file; a column of lists in the file itself is json"
                    )
                content.update(f"{path.rpartition('/')[2]}\0{content_digest(path)}\0".encode())
        return content.hexdigest()


@dataclass(kw_only=True)
class CaptionFile(Table):
    """caption_file: the text that a file has for a row; NULL where it has none or a blank one.

    paths: files, folders and patterns of .parquet, .csv, .tsv or .jsonl files. by: the column of
    the pool's sidecars that says which row a text is for: `uid`, `url` (as the crawl wrote it) or
    `sha256` (of the image's bytes as they were received: every row with this image has the text).
    key: the column of the files that has the same values (default: the name of `by`). column: the
    column of the texts. Of several rows with one key the first counts, in the order of the files.
    """

    name = "caption_file"
    blank_is_null: ClassVar[bool] = True
    adds, meanings = described(
        caption_file=(pa.string(), "the text that a file has for the row"),
    )
    by: Literal["uid", "url", "sha256"] = "uid"
    key: str = ""
    column: str = "caption"
    take: dict[str, str] = field(init=False, default_factory=dict, metadata=FREE)
    on: str = field(init=False, default="uid", metadata=FREE)

    def __post_init__(self) -> None:
        self.key = self.key or self.by
        self.on = self.by
        self.take = {"caption_file": f"{self.column}:string"}
        for path in (self.paths,) if isinstance(self.paths, str) else self.paths:
            if path.endswith(UID_LIST):
                raise ValueError(
                    f"filter caption_file: {path} has no captions; give a file that ends in "
                    f"{', '.join([PARQUET, *TEXTS])}"
                )
        super().__post_init__()


def is_array(form: str) -> bool:
    """Whether `TYPE` or `COLUMN:TYPE` is an array of an .npz."""
    return LIST_TYPE.fullmatch(form.rpartition(":")[2]) is not None


def type_of(form: str) -> pa.DataType:
    """The type of `TYPE` or `COLUMN:TYPE`. ValueError for another one."""
    name = form.rpartition(":")[2]
    if match := LIST_TYPE.fullmatch(name):
        return pa.list_(pa.float16(), int(match[1]))
    if name not in EXTRA_TYPES:
        raise ValueError(
            f"filter table: {name!r} is not one of {', '.join(EXTRA_TYPES)}, fp16[WIDTH]"
        )
    return EXTRA_TYPES[name]


def _files_at(path: str) -> list[str]:
    folder, _, last = path.rstrip("/").rpartition("/")
    if "*" in last or "?" in last:
        names = [name for name in disk.list_names(folder) if fnmatch.fnmatch(name, last)]
        return [disk.join(folder, name) for name in names]
    if path.endswith(ENDINGS):
        return [path] if disk.exists(path) else []
    names = disk.list_names(path)
    chosen = [name for name in names if name.endswith(PARQUET)]
    chosen = chosen or [name for name in names if name.endswith(TEXT_TABLES)]
    return [disk.join(path, name) for name in chosen]
