"""Read and write files at local paths and fsspec URLs; content hashes; dataclasses as JSON."""

from __future__ import annotations

from manifests.disk.files import (
    create_bytes,
    create_file,
    exists,
    list_names,
    open_file,
    publish,
    read_bytes,
    remove,
    replace_bytes,
    sync_folder,
    write_bytes,
)
from manifests.disk.hashes import content_hash, file_sha256, plain_hash, uid_of
from manifests.disk.local import CountedFile, check_size, naming
from manifests.disk.paths import is_url, join, local_path, output_folder
from manifests.disk.plain import (
    check_types,
    closest,
    did_you_mean,
    from_plain,
    to_plain,
    without_defaults,
)
from manifests.disk.remote import filesystem
from manifests.disk.retry import is_transient, retried
from manifests.disk.row_groups import Footer, RowGroupWriter
from manifests.disk.scratch import scratch_folder
from manifests.disk.tables import (
    SEAL,
    DamagedTable,
    create_json,
    metadata_of,
    naming_table,
    parquet_writer,
    read_json,
    read_metadata,
    read_parquet,
    read_schema,
    read_with,
    replace_json,
    with_metadata,
    write_json,
    write_parquet,
)

__all__ = [
    "SEAL",
    "CountedFile",
    "DamagedTable",
    "Footer",
    "RowGroupWriter",
    "check_size",
    "check_types",
    "closest",
    "content_hash",
    "create_bytes",
    "create_file",
    "create_json",
    "did_you_mean",
    "exists",
    "file_sha256",
    "filesystem",
    "from_plain",
    "is_transient",
    "is_url",
    "join",
    "list_names",
    "local_path",
    "metadata_of",
    "naming",
    "naming_table",
    "open_file",
    "output_folder",
    "parquet_writer",
    "plain_hash",
    "publish",
    "read_bytes",
    "read_json",
    "read_metadata",
    "read_parquet",
    "read_schema",
    "read_with",
    "remove",
    "replace_bytes",
    "replace_json",
    "retried",
    "scratch_folder",
    "sync_folder",
    "to_plain",
    "uid_of",
    "with_metadata",
    "without_defaults",
    "write_bytes",
    "write_json",
    "write_parquet",
]
