"""Croissant metadata of a lock: JSON-LD of the format 1.0, which dataset search engines and loaders
read.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from manifests import disk
from manifests.columns import STORED
from pipeline.dataset_lock.lock_file import VIEW_PREFIX, LockFile, lock_schema

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
}


def croissant_path(lock: str) -> str:
    """Where the metadata of a lock lies."""
    return f"{lock.removesuffix('.parquet')}.croissant.json"


def write_croissant(lock: LockFile, sha256: str, size: int) -> None:
    """Write the metadata beside the lock. sha256, size: of the file."""
    disk.write_json(croissant_path(lock.path), croissant(lock, sha256, size))


def croissant(lock: LockFile, sha256: str, size: int) -> dict[str, Any]:
    """The metadata. Its name and version are those of the recipe and of the lock's id."""
    head = lock.head
    file = lock.path.rpartition("/")[2]
    stored = head.outcomes.get(STORED, 0)
    fields = [_field(each, file) for each in lock_schema(head.extra_columns, list(head.views))]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": head.name,
        "description": (
            f"{head.rows} image-caption pairs, of which {stored} were stored. The images are not "
            "part of the dataset: each is asked for again at its URL and compared with its sha256."
        ),
        "version": f"1.0.0+{lock.id}",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file,
                "name": file,
                "contentUrl": file,
                "contentSize": f"{size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": sha256,
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "rows",
                "name": "rows",
                "description": "One row for each row of the pool, in the order of its shards.",
                "field": fields,
            }
        ],
    }


def _field(column: pa.Field, file: str) -> dict[str, Any]:
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
        "source": {"fileObject": {"@id": file}, "extract": {"column": column.name}},
    }


def _data_type(column: pa.Field) -> str:
    if column.name in ("url", "page_url"):
        return "sc:URL"
    if pa.types.is_boolean(column.type):
        return "sc:Boolean"
    if pa.types.is_integer(column.type):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(column.type) else "sc:Text"
