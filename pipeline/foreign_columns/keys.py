"""Keys of rows as records of 16 bytes: uids as they are, other texts by their 128-bit hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from filters.table import Table
from pipeline.foreign_columns.uid_arrays import UID_BYTES, uid_records
from pipeline.pool import Bytes


def key_records(column: pa.ChunkedArray | pa.Array, table: Table) -> Bytes:
    """(rows, 16) of a column of keys. ValueError for a key that is NULL or of another form.

    Two of 10^10 different texts have the same hash with a probability of 1.5e-19.
    """
    if not table.hashed_keys:
        return uid_records(column.cast(pa.string()))
    texts = column.cast(pa.string()).to_pylist()
    if table.on == "sha256":
        texts = [None if text is None else text.lower() for text in texts]
    digests = []
    for text in texts:
        if not text:
            raise ValueError("a key is missing")
        digests.append(xxhash.xxh3_128_digest(text.encode()))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, UID_BYTES)
