"""Tables of other programs: the keys of a file, and the values of some of its rows.

A Parquet file is read row group by row group. An array of the .npz beside it belongs to the row of
the same number. That is checked: both have as many rows, and where CLIP scores and embeddings are
both there (DataComp's metadata), the scores of some rows are computed and compared.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filters.table import TEXT_TABLES, Table, is_array
from manifests import disk
from pipeline.foreign_columns.keys import key_records
from pipeline.foreign_columns.text_files import read_pieces, text_of
from pipeline.foreign_columns.uid_arrays import read_uid_array
from pipeline.pool import Bytes

CHECKED_ROWS = 64  # of a file, whose embeddings are compared with their score
TOLERANCE = 0.02  # of a cosine of fp16 embeddings; that of other rows differs by 0.1 and more
# DataComp's column of scores -> its arrays of the .npz
SCORED_ARRAYS = {
    "clip_b32_similarity_score": ("b32_img", "b32_txt"),
    "clip_l14_similarity_score": ("l14_img", "l14_txt"),
}
Rows = npt.NDArray[np.int64]


class TableFile:
    """One file of a table."""

    def __init__(self, table: Table, path: str) -> None:
        self.table, self.path = table, path

    def read_keys(self) -> Iterator[Bytes]:
        """(rows, 16) of its uids, piece by piece. ValueError for a file that has none."""
        if self.table.of_uid_lists:
            yield from read_uid_array(self.path)
            return
        for column in self._key_columns():
            try:
                yield key_records(column, self.table)
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(
                    f"{self.path}: column {self.table.key!r}: {error}; the key of a table is a "
                    f"{self.table.on} in every row"
                ) from None

    def _key_columns(self) -> Iterator[pa.Array | pa.ChunkedArray]:
        if self.path.endswith(TEXT_TABLES):
            for _, (keys,) in read_pieces(self.path, [self.table.key]):
                yield pa.array(map(text_of, keys), pa.string())
            return
        for number in range(self._footer.num_row_groups):
            yield self._group(number, [self.table.key])[self.table.key]

    def read_values(self, rows: Rows) -> Iterator[tuple[int, pa.Table]]:
        """(position in `rows`, columns of `take`) of ascending rows, piece by piece."""
        if self.table.of_uid_lists:
            (name,) = self.table.take
            yield 0, pa.table({name: pa.array(np.ones(len(rows), np.bool_))})
            return
        if self.path.endswith(TEXT_TABLES):
            yield from self._text_values(rows)
            return
        arrays = self._arrays()
        sources = {}
        for name, source in self.table.source_columns().items():
            if name not in arrays:
                sources[name] = source
        start = first = 0
        for number in range(self._footer.num_row_groups):
            count = self._footer.row_group(number).num_rows
            stop = int(np.searchsorted(rows, first + count))
            if stop > start:
                wanted = rows[start:stop]
                table = self._group(number, list(sources.values())).take(pa.array(wanted - first))
                yield start, self._typed(table, sources, arrays, wanted)
            start, first = stop, first + count

    def _text_values(self, rows: Rows) -> Iterator[tuple[int, pa.Table]]:
        """`read_values` of a .csv, .tsv or .jsonl file."""
        sources = self.table.source_columns()
        for name, form in self.table.take.items():
            if is_array(form):
                raise ValueError(
                    f"{self.path} has no arrays: {name} is {form}, which belongs to a Parquet file"
                )
        names = list(dict.fromkeys(sources.values()))
        start = 0
        for first, values in read_pieces(self.path, names):
            stop = int(np.searchsorted(rows, first + len(values[0])))
            if stop > start:
                wanted = rows[start:stop]
                columns = {}
                for column, value in zip(names, values, strict=True):
                    columns[column] = [value[row] for row in (wanted - first).tolist()]
                yield start, self._typed(_text_table(self.path, columns), sources, {}, wanted)
            start = stop

    @functools.cached_property
    def _footer(self) -> Any:
        return disk.read_with(self.path, pq.read_metadata)

    def _group(self, number: int, columns: list[str]) -> pa.Table:
        def read(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            known = file.schema_arrow.names
            for name in columns:
                if name not in known:
                    raise ValueError(
                        f"{self.path} has no column {name!r}{disk.did_you_mean(name, known)}"
                    )
            return file.read_row_group(number, list(dict.fromkeys(columns)), use_threads=False)

        table: pa.Table = disk.read_with(self.path, read)
        return table

    def _typed(
        self,
        table: pa.Table,
        sources: dict[str, str],
        arrays: dict[str, npt.NDArray[np.float16]],
        rows: Rows,
    ) -> pa.Table:
        columns = {}
        for name, kind in self.table.columns().items():
            if name in arrays:
                flat = pa.array(arrays[name][rows].reshape(-1))
                columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=kind)
                continue
            form = self.table.take[name].rpartition(":")[2]
            try:
                columns[name] = _cast(table[sources[name]], form, kind)
                if self.table.blank_is_null:
                    columns[name] = _without_blanks(columns[name])
            except (pa.ArrowException, TypeError, ValueError) as error:
                text = " ".join(str(error).split())[:160]
                raise ValueError(
                    f"{self.path}: column {sources[name]!r} is not of type {form}: {text}"
                ) from None
        return pa.table(columns)

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, npt.NDArray[np.float16]]:
        """The arrays that `take` names. ValueError where they are of other rows."""
        wanted = {}
        for name, form in self.table.take.items():
            if is_array(form):
                wanted[name] = self.table.source_columns()[name]
        if not wanted:
            return {}
        path = self.table.arrays_beside(self.path)
        rows = self._footer.num_rows
        arrays = {}
        with ExitStack() as stack:
            source: Any = stack.enter_context(disk.open_file(path))
            if isinstance(source, Path):
                source = stack.enter_context(open(source, "rb"))
            try:
                with np.load(source, allow_pickle=False) as archive:
                    for name, array_name in wanted.items():
                        if array_name not in archive:
                            names = list(archive)
                            raise ValueError(
                                f"it has no array {array_name!r}"
                                f"{disk.did_you_mean(array_name, names)}"
                            )
                        width = self.table.columns()[name].list_size
                        arrays[name] = _checked_array(archive[array_name], array_name, rows, width)
                    self._check_scores(archive)
            except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
                text = " ".join(str(error).split())[:300]
                raise ValueError(f"{path} cannot be used: {text}") from None
        return arrays

    def _check_scores(self, archive: Any) -> None:
        """ValueError where the embeddings do not have the scores of their rows."""
        known = self._footer.schema.to_arrow_schema().names
        for column, (image, text) in SCORED_ARRAYS.items():
            if column not in known or image not in archive or text not in archive:
                continue
            rows = np.linspace(0, self._footer.num_rows - 1, CHECKED_ROWS).astype(np.int64)
            rows = np.unique(rows)
            scores = disk.read_parquet(self.path, [column])[column].to_numpy()[rows]
            images = archive[image][rows].astype(np.float32)
            texts = archive[text][rows].astype(np.float32)
            lengths = np.linalg.norm(images, axis=1) * np.linalg.norm(texts, axis=1)
            cosines = (images * texts).sum(axis=1) / np.maximum(lengths, 1e-6)
            wrong = np.flatnonzero(np.abs(cosines - scores) > TOLERANCE)
            if len(wrong):
                row = int(rows[wrong[0]])
                raise ValueError(
                    f"its embeddings are of other rows than those of {self.path}: row {row} has "
                    f"{column} {scores[wrong[0]]:.3f}, and {image} and {text} give "
                    f"{cosines[wrong[0]]:.3f}"
                )


def _text_table(path: str, columns: dict[str, list[Any]]) -> pa.Table:
    """Values of a text file as Arrow columns. ValueError for values of several types."""
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            text = " ".join(str(error).split())[:160]
            raise ValueError(
                f"{path}: column {name!r} has values of several types: {text}"
            ) from None
    return pa.table(arrays)


def _checked_array(
    array: npt.NDArray[Any], name: str, rows: int, width: int
) -> npt.NDArray[np.float16]:
    if array.shape != (rows, width):
        raise ValueError(
            f"its array {name} has the shape {array.shape}; it must be ({rows}, {width}): the rows "
            "of the Parquet file and the width of the type"
        )
    if array.dtype.kind != "f":
        raise ValueError(f"its array {name} is {array.dtype}, not floating point")
    return np.ascontiguousarray(array, np.float16)


def _without_blanks(texts: pa.Array) -> pa.Array:
    """Texts with NULL for those of nothing but space."""
    is_blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    return pc.if_else(is_blank, pa.scalar(None, texts.type), texts)


def _cast(column: pa.ChunkedArray, form: str, kind: pa.DataType) -> pa.Array:
    """A column as one of EXTRA_TYPES; NaN and infinity become NULL."""
    if form == "json":
        texts = []
        for value in column.to_pylist():
            texts.append(None if value is None else json.dumps(value, ensure_ascii=False))
        return pa.array(texts, kind)
    array = column.cast(kind)
    if pa.types.is_floating(kind):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
