"""Rows of tables as pairs: URL lists, and lists of local image files, with a recipe's extra
columns.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any

from manifests import disk
from manifests.casting import CASTS, as_text
from manifests.columns import PAIRS, extra_column
from manifests.schema import Source
from pipeline.archives import SPACE, reject, resolve
from pipeline.crawl.table_files import PROBE, MissingColumn, values

Row = tuple[Any, ...]  # one row of PAIRS and the values of the extra columns
FILE_COLUMNS = ("file", "caption")  # of a captions list
PAGE_COLUMNS = (None,) * (PAIRS.names.index("wat") - 3)  # a table says nothing about the page


class PairTable:
    """Which columns of a table become pairs.

    `url_of` turns the text of the address column into a URL or an absolute path; ValueError whose
    text is the reason why it cannot. `caption_column` None: the captions are empty.
    """

    def __init__(
        self,
        address_column: str,
        caption_column: str | None,
        extra_columns: dict[str, str],
        url_of: Callable[[str], str],
    ) -> None:
        self.has_captions = caption_column is not None
        self.url_of = url_of
        self.fixed_columns: tuple[str, ...] = ()  # named by the kind, not by the recipe
        self.on_address: Callable[[str], object] = str  # is told every address that can be read
        extra = [extra_column(name, kind) for name, kind in extra_columns.items()]
        self.casts = [CASTS[kind] for _, kind in extra]
        pair = [address_column] if caption_column is None else [address_column, caption_column]
        self.columns = [*pair, *(column for column, _ in extra)]

    def rows(self, path: str, counts: Counter[str]) -> Iterator[Row]:
        """The pairs of a table. A value that cannot be cast to its type is None.

        `counts` gets `links`, `pairs` and every reason for which a row is no pair. ValueError where
        the table lacks a column, or cannot be read further.
        """
        name = path if disk.is_url(path) else disk.local_path(path).name
        for number, row in enumerate(self._values(path)):
            counts["links"] += 1
            try:
                url, caption = self._pair(row)
            except ValueError as reason:
                address = "" if row is None else f": {row[0]!r}"
                reject(counts, str(reason), f"{name} row {number + 1}{address}")
                continue
            counts["pairs"] += 1
            uid = disk.uid_of(url, caption)
            yield (uid, url, caption, *PAGE_COLUMNS, name, None, number, *self._extra(row))

    def _pair(self, row: Sequence[Any] | None) -> tuple[str, str]:
        """URL and caption of a row. ValueError whose text is the reason why it has none."""
        if row is None:
            raise ValueError("damaged")
        link, caption = _readable_text(row[0]) or "", ""
        if link.strip(SPACE):
            self.on_address(link)
        if self.has_captions:
            text = _readable_text(row[1])
            if text is None:
                raise ValueError("no_alt")
            if not text.strip():
                raise ValueError("empty_alt")
            caption = text
        return self.url_of(link), caption

    def _extra(self, row: Sequence[Any] | None) -> list[Any]:
        assert row is not None
        own = row[len(row) - len(self.casts) :]
        return [cast(value) for cast, value in zip(self.casts, own, strict=True)]

    def check(self, path: str) -> None:
        """ValueError where a table lacks a column, as far as its first PROBE rows show."""
        with closing(self._values(path)) as rows, suppress(OSError, EOFError):
            deque(islice(rows, PROBE + 1), maxlen=0)  # the stage names a file that cannot be read

    def _values(self, path: str) -> Generator[Sequence[Any] | None]:
        """The columns of a table, row by row."""
        try:
            yield from values(path, self.columns)
        except MissingColumn as missing:
            if missing.name not in self.fixed_columns:
                raise
            own = repr(missing.close) if missing.close else "the column that holds it"
            raise ValueError(
                f"{path} has no column {missing.name!r}: a source of kind files reads the columns "
                f"{' and '.join(self.fixed_columns)}; rename {own} to {missing.name!r} in the table"
            ) from None


def _readable_text(value: Any) -> str | None:
    """A value as text; None for NULL. ValueError("damaged") where it is not valid text."""
    text = as_text(value)
    if text is None and value is not None:
        raise ValueError("damaged")
    return text


def url_table(source: Source) -> PairTable:
    """Kind table: the columns that the recipe names."""
    return PairTable(
        source.url_column,
        source.caption_column,
        source.extra_columns,
        lambda link: resolve("", link),
    )


def file_table(source: Source, path: str) -> PairTable:
    """Kind files: the columns `file`, relative to the table's folder, and `caption`."""
    if disk.is_url(path):
        folder = path.rpartition("/")[0]
    else:
        folder = str(disk.local_path(path).absolute().parent)
    table = PairTable(*FILE_COLUMNS, source.extra_columns, lambda name: file_in(folder, name))
    table.fixed_columns = FILE_COLUMNS
    return table


def file_in(folder: str, name: str) -> str:
    """The absolute path of a file that is named relative to `folder`. ValueError("bad_url") where
    the name is blank."""
    if not name.strip(SPACE):
        raise ValueError("bad_url")
    if disk.is_url(folder):
        return disk.join(folder, name)
    return os.path.abspath(os.path.join(folder, name))
