"""A Parquet file with other rows in some row groups: all others are copied as bytes, not decoded.

Only the footer of a Parquet file says where its row groups lie. It is a struct of Thrift's compact
protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), whose
fields are described at https://github.com/apache/parquet-format. Here it is read, the offsets are
moved, and it is written again; fields that are not known stay as they are.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.disk.tables import read_with

MAGIC = b"PAR1"
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
SCHEMA, ROWS, ROW_GROUPS, KEY_VALUES = 2, 3, 4, 5
COLUMNS, GROUP_ROWS, GROUP_OFFSET, ORDINAL = 1, 3, 5, 7  # the ordinal may be missing
CHUNK_OFFSET, CHUNK_METADATA = 2, 3
COMPRESSED, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = 7, 9, 10, 11
Struct = dict[int, tuple[int, Any]]  # field -> (type, value)


class Footer:
    """What the end of a Parquet file says. ValueError where it cannot be copied from."""

    def __init__(self, data: bytes) -> None:
        """data: the struct, without its length and the magic number."""
        self.struct = _Reader(data).struct()
        self.groups: list[Struct] = self.struct[ROW_GROUPS][1][1]

    @classmethod
    def read(cls, path: str | Path) -> Footer:
        """The footer of a file."""
        return cls.of_file(read_with(path, _last_bytes))

    @classmethod
    def of_file(cls, data: bytes) -> Footer:
        """The footer of a whole file, or of its last bytes."""
        length = int.from_bytes(data[-8:-4], "little")
        if data[-4:] != MAGIC or len(data) < length + 8:
            raise ValueError("no footer of a Parquet file")
        return cls(data[-8 - length : -8])

    def rows(self, group: int) -> int:
        """Rows of a row group."""
        return int(self.groups[group][GROUP_ROWS][1])

    def range(self, group: int) -> tuple[int, int]:
        """(first byte, length) of a row group. ValueError where its columns do not lie together."""
        if not self.rows(group):
            return 0, 0  # Arrow writes no usable offsets for no rows
        begin = end = 0
        for chunk in self.groups[group][COLUMNS][1][1]:
            metadata: Struct = chunk[CHUNK_METADATA][1]
            offsets = [metadata[field][1] for field in _offsets(metadata)]
            first = min((offset for offset in offsets if offset > 0), default=0)
            if end and first != end:
                raise ValueError(f"the columns of row group {group} do not lie together")
            begin = begin or first
            end = first + metadata[COMPRESSED][1]
        return begin, end - begin

    def moved(self, group: int, distance: int) -> Struct:
        """The description of a row group that lies so many bytes later in another file."""
        description = dict(self.groups[group])
        kind, chunks = description[COLUMNS][1]
        moved = []
        for chunk in chunks:
            metadata = dict(chunk[CHUNK_METADATA][1])
            for field in _offsets(metadata):
                metadata[field] = metadata[field][0], metadata[field][1] + distance
            changed = {**chunk, CHUNK_METADATA: (STRUCT, metadata)}
            if changed[CHUNK_OFFSET][1]:
                changed[CHUNK_OFFSET] = chunk[CHUNK_OFFSET][0], chunk[CHUNK_OFFSET][1] + distance
            moved.append(changed)
        description[COLUMNS] = LIST, (kind, moved)
        if GROUP_OFFSET in description:
            kind, offset = description[GROUP_OFFSET]
            description[GROUP_OFFSET] = kind, offset + distance
        return description


def _last_bytes(source: Any) -> bytes:
    """The end of an open file of a store, or of a local path, from its footer on."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(source, "rb")) if isinstance(source, Path) else source
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(8)[:4], "little")
        file.seek(max(0, size - 8 - length))
        end: bytes = file.read()
        return end


def _offsets(metadata: Struct) -> list[int]:
    """The fields of a ColumnMetaData that say where its pages lie."""
    return [field for field in (DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE) if field in metadata]


class RowGroupWriter:
    """Writes a file of row groups, each new or a copy of one in another file.

    `file` takes the bytes in order and is closed by the caller. Options are those of
    `pq.ParquetWriter`.
    """

    def __init__(self, file: Any, schema: pa.Schema, **options: Any) -> None:
        self._file, self._schema, self._options = file, schema, options
        self._groups: list[Struct] = []
        self._rows = 0
        self._position = 0
        self._append(MAGIC)
        self._empty = Footer.of_file(self._encoded(None, {}))

    def fits(self, footer: Footer) -> bool:
        """Whether row groups of another file can be copied: its columns are stored alike."""
        return footer.struct[SCHEMA] == self._empty.struct[SCHEMA]

    def copy(self, footer: Footer, group: int, data: bytes) -> tuple[int, int]:
        """Append a row group of another file, whose bytes are `data`; (first byte, length)."""
        assert self.fits(footer)
        begin, length = footer.range(group)
        assert len(data) == length, (len(data), length)
        description = footer.moved(group, self._position - begin)
        description.pop(ORDINAL, None)
        self._groups.append(description)
        self._rows += footer.rows(group)
        return self._append(data), length

    def write(self, table: pa.Table) -> tuple[int, int]:
        """Append a table as a row group; (first byte, length)."""
        data = self._encoded(table, {})
        footer = Footer.of_file(data)
        begin, length = footer.range(0)
        return self.copy(footer, 0, data[begin : begin + length])

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Write the footer, with these texts beside the metadata of the schema."""
        struct = Footer.of_file(self._encoded(None, metadata)).struct
        struct[ROWS] = struct[ROWS][0], self._rows
        struct[ROW_GROUPS] = LIST, (STRUCT, self._groups)
        data = _Writer().struct(struct)
        self._append(data + len(data).to_bytes(4, "little") + MAGIC)

    def _encoded(self, table: pa.Table | None, metadata: Mapping[str, str]) -> bytes:
        """A whole file of one row group, or of none."""
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, self._schema, **self._options) as writer:
            if table is not None:
                writer.write_table(table, row_group_size=max(1, table.num_rows))
            if metadata:
                writer.add_key_value_metadata(dict(metadata))
        return sink.getvalue()

    def _append(self, data: bytes) -> int:
        position = self._position
        self._file.write(data)
        self._position += len(data)
        return position


# --- the compact protocol -------------------------------------------------------------------------


class _Reader:
    """Values of the compact protocol from the beginning of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def struct(self) -> Struct:
        fields: Struct = {}
        field = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            field = field + delta if delta else self._integer()
            value = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind)
            fields[field] = kind, value
        return fields

    def _value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._bytes(self._number())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._number()
            return header & 15, [self._value(header & 15) for _ in range(size)]
        if kind in (BYTE, TRUE, FALSE):  # truth values in a list are bytes
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise ValueError(f"a footer has a value of type {kind}")

    def _byte(self) -> int:
        position = self._position
        self._position += 1
        return self._data[position]

    def _bytes(self, length: int) -> bytes:
        position = self._position
        self._position += length
        return self._data[position : self._position]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _integer(self) -> int:
        value = self._number()
        return value >> 1 ^ -(value & 1)


class _Writer:
    """The inverse of `_Reader`."""

    def __init__(self) -> None:
        self._data = bytearray()

    def struct(self, fields: Struct) -> bytes:
        self._struct(fields)
        return bytes(self._data)

    def _struct(self, fields: Struct) -> None:
        before = 0
        for field, (kind, value) in sorted(fields.items()):
            if 0 < field - before < 16:
                self._data.append((field - before) << 4 | kind)
            else:
                self._data.append(kind)
                self._integer(field)
            before = field
            if kind not in (TRUE, FALSE):
                self._value(kind, value)
        self._data.append(0)

    def _value(self, kind: int, value: Any) -> None:
        if kind in INTEGERS:
            self._integer(value)
        elif kind == BINARY:
            self._number(len(value))
            self._data += value
        elif kind == STRUCT:
            self._struct(value)
        elif kind in (LIST, SET):
            of_kind, values = value
            self._data.append(min(len(values), 15) << 4 | of_kind)
            if len(values) >= 15:
                self._number(len(values))
            for each in values:
                self._value(of_kind, each)
        elif kind == DOUBLE:
            self._data += value
        else:
            self._data.append(value)

    def _number(self, value: int) -> None:
        while value >= 0x80:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)

    def _integer(self, value: int) -> None:
        self._number(value << 1 if value >= 0 else (-value << 1) - 1)
