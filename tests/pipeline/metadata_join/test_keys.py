"""Records of keys: uids as their bytes, other texts by a hash; a missing key is an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from filters.table import CaptionFile, Table
from pipeline.metadata_join import key_records


def test_uids_are_their_bytes() -> None:
    table = Table(paths=("x.parquet",), take={"a": "int"})
    assert key_records(pa.array(["0f" * 16]), table).tolist() == [[15] * 16]
    with pytest.raises(ValueError, match="does not have 32 hex digits"):
        key_records(pa.array(["https://a/"]), table)


def test_texts_of_any_length_are_hashes() -> None:
    by_url = CaptionFile(paths=("x.csv",), by="url")
    records = key_records(pa.array(["https://a/", "https://a/é", "https://a/", "x" * 5000]), by_url)
    assert records.shape == (4, 16)
    assert len({bytes(record) for record in records}) == 3
    assert bytes(records[0]) == bytes(records[2])
    upper, lower = (
        key_records(pa.array([text]), CaptionFile(paths=("x.csv",), by="sha256"))
        for text in ("AB" * 32, "ab" * 32)
    )
    assert bytes(upper) == bytes(lower)
    for missing in (None, ""):
        with pytest.raises(ValueError, match="a key is missing"):
            key_records(pa.array(["https://a/", missing]), by_url)
