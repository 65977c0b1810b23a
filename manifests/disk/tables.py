"""JSON documents and Parquet tables, written whole."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests.disk.files import (
    CountedFile,
    content_hash,
    create_bytes,
    is_url,
    open_file,
    read_bytes,
    replace_bytes,
    retried,
    write_bytes,
)
from clipmill.manifests.disk.plain import to_plain
from clipmill.manifests.text import valid_text

SEAL = "document_sha256"  # key of a sealed document: the hash of all else in it
ARROW_PREFIX = re.compile(r"^Could not open Parquet input source '.*?': ")
ARROW_SUFFIX = re.compile(r"\s*\(\w+\.(?:py|cc|pxi):\d+\)$")


class _LatePandas:
    """A finder of modules. PyArrow asks for pandas with its first array, and imports it where it is
    installed: 0.2 s. This refuses it that once, and lets PyArrow ask again when the program has
    imported pandas itself.
    """

    def __init__(self) -> None:
        self.refuses = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "pandas":
            return None
        if self.refuses:
            raise ImportError("it is left out", name=name)
        others = (finder for finder in sys.meta_path if finder is not self)
        spec: Any = next(filter(None, (f.find_spec(name, path, target) for f in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_ask(module: ModuleType) -> None:
                execute(module)
                pa.array([]).to_pandas()  # asks

            spec.loader.exec_module = then_ask
        return spec


if "pandas" not in sys.modules:
    _late_pandas: Any = _LatePandas()
    sys.meta_path.insert(0, _late_pandas)
    pa.array([])  # asks
    _late_pandas.refuses = False


class DamagedTable(OSError, pa.ArrowInvalid):  # type: ignore[misc]
    """A Parquet file that cannot be read, with its path. Arrow's own errors are of either class,
    and name no file.
    """


def write_json(path: str | Path, value: object, *, sealed: bool = False) -> None:
    """A dataclass or plain value as JSON with sorted keys, written whole. Text becomes valid
    Unicode. `sealed`: with a hash, so that `read_json` notices any other change of the file.
    """
    write_bytes(path, _json_bytes(value, sealed))


def create_json(path: str | Path, value: object, *, sealed: bool = False) -> None:
    """Like `write_json`, but never over another content: FileExistsError with both hashes."""
    create_bytes(path, _json_bytes(value, sealed))


def replace_json(path: str | Path, value: object, expected: bytes, *, sealed: bool = False) -> None:
    """Like `write_json`, in place of a file with the bytes `expected`; else FileExistsError."""
    replace_bytes(path, _json_bytes(value, sealed), expected)


def _json_bytes(value: object, sealed: bool) -> bytes:
    text = json.dumps(to_plain(value), indent=1, sort_keys=True, ensure_ascii=False)
    content = (valid_text(text) + "\n").encode()
    if not sealed:
        return content
    plain = json.loads(content)  # as it will be read
    return _json_bytes({**plain, SEAL: content_hash(plain, 64)}, sealed=False)


def read_json(path: str | Path) -> Any:
    """A JSON file as plain values, without the hash of a sealed one.

    ValueError that names the file where it is no JSON, or was changed after it was sealed.
    """
    try:
        value = json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is not JSON that can be read: it is nested too deeply") from None
    if isinstance(value, dict) and SEAL in value:
        expected = value.pop(SEAL)
        if content_hash(value, 64) != expected:
            raise ValueError(
                f"{path} was changed after clipmill wrote it: its {SEAL} is another one (if the "
                "change is meant, remove that key)"
            )
    return value


def write_parquet(
    path: str | Path, table: pa.Table, metadata: Mapping[str, object] | None = None
) -> None:
    """A table, written whole; `metadata` go into the footer as JSON under the key `clipmill`."""
    if metadata is not None:
        table = table.replace_schema_metadata(with_metadata(table.schema, metadata).metadata)
    write_bytes(path, parquet_bytes(table, row_group_size=10_000))


STORAGE: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}  # unless asked


def parquet_bytes(table: pa.Table, **options: object) -> bytes:
    """A table as a Parquet file; `options` are those of `pq.write_table`."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **STORAGE | options)
    return sink.getvalue()


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema, **options: object) -> Iterator[pq.ParquetWriter]:
    """A `pq.ParquetWriter` of a local file, which the caller publishes; `options` are its own.

    OSError at the end where the disk did not take all bytes: Arrow does not compare.
    """
    with CountedFile(path) as file, pq.ParquetWriter(file, schema, **STORAGE | options) as writer:
        yield writer


@contextmanager
def csv_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """The same of a .csv (RFC 4180: a text in quotes where it needs them, a quote doubled)."""
    from pyarrow import csv

    options = csv.WriteOptions(quoting_style="needed", quoting_header="none")
    with CountedFile(path) as file, csv.CSVWriter(file, schema, write_options=options) as writer:
        yield writer


def with_metadata(schema: pa.Schema, metadata: Mapping[str, object]) -> pa.Schema:
    """The schema with `metadata` as JSON under the key `clipmill` of its metadata."""
    kept = {k: v for k, v in (schema.metadata or {}).items() if k != b"clipmill"}
    return schema.with_metadata(
        {**kept, b"clipmill": json.dumps(to_plain(dict(metadata)), sort_keys=True).encode()}
    )


def read_parquet(
    path: str | Path,
    columns: list[str] | None = None,
    where: list[tuple[str, str, Any]] | None = None,
) -> pa.Table:
    """A table, or some columns of it, or the rows that `where` (pyarrow's filters) lets through:
    only their row groups are read. DamagedTable where a page does not have its checksum.
    """
    return read_with(path, lambda file: _checked_table(file, columns, where))


def read_with_metadata(
    path: str | Path, columns: list[str] | None = None
) -> tuple[pa.Table, dict[str, Any]]:
    """What `read_parquet` and `read_metadata` give, of one file that is opened once."""

    def read(file: Any) -> tuple[pa.Table, dict[str, Any]]:
        table = _checked_table(file, columns)
        return table, metadata_of(table.schema)

    both: tuple[pa.Table, dict[str, Any]] = read_with(path, read)
    return both


def _checked_table(file: Any, columns: list[str] | None, where: Any = None) -> pa.Table:
    return pq.read_table(
        file, columns=columns, filters=where, partitioning=None, page_checksum_verification=True
    )


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `write_parquet` put into the footer; {} where it put nothing. DamagedTable where that
    is no JSON object.
    """
    metadata: dict[str, object] = read_with(path, lambda file: metadata_of(pq.read_metadata(file)))
    return metadata


def metadata_of(footer: pq.FileMetaData | pa.Schema) -> dict[str, Any]:
    """The same of a footer or a schema that was read. DamagedTable without the path of its file."""
    try:
        metadata = json.loads((footer.metadata or {}).get(b"clipmill", b"{}"))
    except (ValueError, RecursionError) as error:
        raise DamagedTable(f"its footer is not JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise DamagedTable("its footer is not a JSON object")
    return metadata


def read_schema(path: str | Path) -> pa.Schema:
    """The columns of a table."""
    return read_with(path, lambda file: pq.read_metadata(file).schema.to_arrow_schema())


def read_with(path: str | Path, reader: Callable[[Any], Any]) -> Any:
    """What `reader` makes of an open Parquet file; all of it is tried again after a store's
    transient error. FileNotFoundError and DamagedTable name the file.
    """

    def attempt() -> Any:
        with open_file(path) as f:
            return reader(f)

    with naming_table(path):
        # 412: the object was replaced while it was read in pieces
        return retried(attempt, path, also=412) if is_url(path) else attempt()


@contextmanager
def naming_table(path: str | Path) -> Iterator[None]:
    """Errors of Arrow in the body name this file, and are of one class."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        message = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, message, str(path)) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        # UnicodeDecodeError: the name of a column is damaged
        is_arrows = (
            isinstance(error, (pa.ArrowException, UnicodeDecodeError)) or type(error) is OSError
        )
        if not is_arrows or getattr(error, "errno", None) is not None:
            raise  # of the operating system, or of a store
        text = ARROW_PREFIX.sub("", " ".join(str(error).split()))
        if f"{path} is damaged" in text:
            raise
        reason = ARROW_SUFFIX.sub("", text)[:300]
        raise DamagedTable(f"{path} is damaged, or no Parquet file: {reason}") from error
