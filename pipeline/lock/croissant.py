"""Croissant metadata of a lock or an export: JSON-LD of the format 1.0, which dataset search
engines and loaders read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from manifests import disk
from manifests.columns import STORED
from pipeline.lock.lock_file import VIEW_PREFIX, LockFile, lock_schema

PARQUET_ENCODING = "application/x-parquet"
CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
# The terms that the metadata uses, as the specification of the format has them.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
DESCRIPTIONS = {
    "lock_shard": "Number of the shard in the pool that was locked.",
    "lock_group": "Host group of the shard: rows of one host are in one group.",
    "lock_tar_sha256": "sha256 of the shard's tar.",
    "lock_outcome": "stored, withheld, or the reason for which the image was not stored.",
    "uid": "128-bit xxh3 of URL, NUL and caption, 32 hex digits.",
    "url": "Where the image was asked for.",
    "caption": "Alternative text of the image.",
    "sha256": "sha256 of the image's bytes as they were received.",
    "retry_of": "Key of the row that this one retries.",
    "width": "Width of the stored image, pixels.",
    "height": "Height of the stored image, pixels.",
    "original_width": "Width of the image as received, pixels.",
    "original_height": "Height of the image as received, pixels.",
    "page_url": "Page that linked the image.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a dataset."""

    name: str  # relative to the metadata
    size: int  # bytes
    sha256: str
    encoding: str  # MIME type


def croissant_path(lock: str) -> str:
    """Where the metadata of a lock lies."""
    return f"{lock.removesuffix('.parquet')}.croissant.json"


def write_croissant(lock: LockFile, sha256: str, size: int) -> None:
    """Write the metadata beside the lock. sha256, size: of the file."""
    disk.write_json(croissant_path(lock.path), croissant(lock, sha256, size))


def croissant(lock: LockFile, sha256: str, size: int) -> dict[str, Any]:
    """The metadata. Its name and version are those of the recipe and of the lock's id."""
    head = lock.head
    file = DataFile(
        name=lock.path.rpartition("/")[2], size=size, sha256=sha256, encoding=PARQUET_ENCODING
    )
    stored = head.outcomes.get(STORED, 0)
    return croissant_metadata(
        name=head.name,
        version=lock.id,
        description=(
            f"{head.rows} image-caption pairs, of which {stored} were stored. The images are not "
            "part of the dataset: each is asked for again at its URL and compared with its sha256."
        ),
        files=[file],
        rows_are="One row for each row of the pool, in the order of its shards.",
        columns=lock_schema(head.extra_columns, list(head.views)),
    )


def croissant_metadata(
    *,
    name: str,
    version: str,
    description: str,
    files: Sequence[DataFile],
    rows_are: str,
    columns: pa.Schema,
    file_set: str | None = None,
) -> dict[str, Any]:
    """The metadata of files with one table of rows: in the first file, or in those of a pattern.

    columns: of the table; without columns no rows are described.
    """
    distribution: list[dict[str, Any]] = [_file_object(file) for file in files]
    source: dict[str, Any] = {"fileObject": {"@id": files[0].name}}
    if file_set is not None:
        distribution.append(
            {
                "@type": "cr:FileSet",
                "@id": file_set,
                "name": file_set,
                "includes": file_set,
                "encodingFormat": PARQUET_ENCODING,
            }
        )
        source = {"fileSet": {"@id": file_set}}
    rows = {
        "@type": "cr:RecordSet",
        "@id": "rows",
        "name": "rows",
        "description": rows_are,
        "field": [_field(column, source) for column in columns],
    }
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": description,
        "version": f"1.0.0+{version}",
        "distribution": distribution,
        "recordSet": [rows] if len(columns) else [],
    }


def _file_object(file: DataFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "contentSize": f"{file.size} B",
        "encodingFormat": file.encoding,
        "sha256": file.sha256,
    }


def _field(column: pa.Field, source: dict[str, Any]) -> dict[str, Any]:
    view = column.name.removeprefix(VIEW_PREFIX)
    default = f"Column {column.name} of the pool."
    if view != column.name:
        default = f"Whether the view {view} keeps the row."
    return {
        "@type": "cr:Field",
        "@id": f"rows/{column.name}",
        "name": column.name,
        "description": DESCRIPTIONS.get(column.name, default),
        "dataType": _data_type(column),
        "source": {**source, "extract": {"column": column.name}},
    }


def _data_type(column: pa.Field) -> str:
    if column.name in ("url", "page_url"):
        return "sc:URL"
    if pa.types.is_boolean(column.type):
        return "sc:Boolean"
    if pa.types.is_integer(column.type):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(column.type) else "sc:Text"
