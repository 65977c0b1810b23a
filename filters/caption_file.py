"""Captions that another program wrote, as a text column: joined by uid, URL or sha256."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa

from filters.base import FREE
from filters.table import PARQUET, TEXT_TABLES, UID_LIST, Table


@dataclass(kw_only=True)
class CaptionFile(Table):
    """caption_file: the text that a file has for a row; NULL where it has none or a blank one.

    paths: files, folders and patterns of .parquet, .csv, .tsv or .jsonl files. by: the column of
    the pool's sidecars that says which row a text is for: `uid`, `url` (as the crawl wrote it) or
    `sha256` (of the image's bytes as they were received: every row with this image has the text).
    key: the column of the files that has the same values (default: the name of `by`). column: the
    column of the texts. Of several rows with one key the first counts, in the order of the files.
    """

    name: ClassVar[str] = "caption_file"
    blank_is_null: ClassVar[bool] = True
    adds: ClassVar[dict[str, pa.DataType]] = {"caption_file": pa.string()}
    meanings: ClassVar[dict[str, str]] = {"caption_file": "the text that a file has for the row"}
    by: Literal["uid", "url", "sha256"] = "uid"
    key: str = ""
    column: str = "caption"
    take: dict[str, str] = field(init=False, default_factory=dict, metadata=FREE)
    on: str = field(init=False, default="uid", metadata=FREE)

    def __post_init__(self) -> None:
        self.key = self.key or self.by
        self.on = self.by
        self.take = {"caption_file": f"{self.column}:string"}
        self.hashed_keys = self.by != "uid"  # type: ignore[misc]
        for path in (self.paths,) if isinstance(self.paths, str) else self.paths:
            if path.endswith(UID_LIST):
                raise ValueError(
                    f"filter caption_file: {path} has no captions; give a file that ends in "
                    f"{', '.join([PARQUET, *TEXT_TABLES])}"
                )
        super().__post_init__()
