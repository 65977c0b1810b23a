"""Files at local paths and fsspec URLs (`file`, `s3`, `gs`, `memory` behave the same), JSON and
Parquet, content hashes, dataclasses as JSON; `disk.NAME`.

Invariants:

* A file is there completely or not at all, also where the disk loses a write without an error,
  and an error names it: `tests/manifests/disk/test_local.py`.
* What was created is not overwritten; after a timeout the same content counts as success:
  `tests/manifests/disk/test_remote.py`.
* Timeouts, 408, 429 and 5xx are tried again with longer pauses, other 4xx never:
  `tests/manifests/disk/test_retry.py`.
* Any change of a sealed document is noticed when it is read:
  `tests/manifests/disk/test_tables.py`.
* A listing shows what other processes wrote: `tests/manifests/disk/test_files.py`.

A protocol of fsspec works by itself; its package goes into `EXTRAS` of `files.py`.
"""

from __future__ import annotations

from clipmill.manifests.disk.files import (
    CountedFile,
    NotRegular,
    absolute_path,
    check_not_saved,
    check_regular,
    check_replaceable,
    check_size,
    check_source_file,
    content_hash,
    create_bytes,
    create_file,
    exists,
    expand_braces,
    expand_home,
    file_sha256,
    filesystem,
    is_folder,
    is_transient,
    is_url,
    join,
    list_names,
    local_path,
    names_below,
    naming,
    new_folder,
    open_file,
    open_stream,
    output_folder,
    plain_hash,
    publish,
    read_bytes,
    remove,
    replace_bytes,
    retried,
    scratch_folder,
    sha256_of,
    shown_path,
    state_of,
    stores,
    sync_folder,
    uid_of,
    walk,
    write_bytes,
)
from clipmill.manifests.disk.plain import (
    OPTIONAL,
    closest,
    did_you_mean,
    from_plain,
    to_plain,
)
from clipmill.manifests.disk.tables import (
    SEAL,
    DamagedTable,
    create_json,
    csv_writer,
    metadata_of,
    naming_table,
    parquet_bytes,
    parquet_writer,
    read_json,
    read_metadata,
    read_parquet,
    read_schema,
    read_with,
    read_with_metadata,
    replace_json,
    with_metadata,
    write_json,
    write_parquet,
)
