"""Records of rows: spilled and sorted in partitions, hashed once each, whatever their order."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from pipeline.pool import uid_hashes
from pipeline.pool.uid_hashes import (
    RowsHash,
    are_in,
    row_bits,
    row_spill,
    sorted_rows,
    unique_where,
)


def columns(numbers: list[int]) -> tuple[pa.Array, pa.Array]:
    uids = [hashlib.md5(str(n).encode()).hexdigest() for n in numbers]
    hashes = [hashlib.sha256(str(n).encode()).hexdigest() for n in numbers]
    return pa.array(uids), pa.array(hashes)


def expected_hash(numbers: list[int]) -> str:
    """A plain program for the canonical hash."""
    records = set()
    for uid, sha256 in zip(*(column.to_pylist() for column in columns(numbers)), strict=True):
        records.add(bytes.fromhex(uid + sha256))
    return hashlib.sha256(b"".join(sorted(records))).hexdigest()


@pytest.mark.parametrize("bits", [0, 3, 9])
def test_the_hash_is_that_of_the_sorted_records_whatever_the_partitions(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uid_hashes, "BUFFERED_BYTES", 50 * 50)
    numbers = [n % 300 for n in np.random.default_rng(0).permutation(400).tolist()]
    content = RowsHash()
    with row_spill(bits, 2) as spill:
        for start in range(0, 400, 64):
            part = numbers[start : start + 64]
            payload = np.array(part, "<i2").view(np.uint8).reshape(-1, 2)
            spill.add(np.hstack([uid_hashes.row_keys(*columns(part)), payload]))
        seen = []
        for keys, payload in sorted_rows(spill):
            content.add(keys)
            seen += np.ascontiguousarray(payload).view("<i2").ravel().tolist()
            assert keys.tolist() == sorted(keys.tolist())
    assert sorted(seen) == sorted(numbers)
    assert (content.rows, content.hexdigest()) == (300, expected_hash(numbers))


def test_records_that_end_in_zeros_are_told_apart() -> None:
    uids = pa.array(["00" * 16, "00" * 15 + "01", "01" + "00" * 15])
    keys = uid_hashes.row_keys(uids, pa.array(["00" * 32] * 3))
    with row_spill(0, 0) as spill:
        spill.add(keys)
        spill.add(keys)
        (part, _), *_ = sorted_rows(spill)
    assert len(unique_where(part, np.ones(6, bool))) == 3
    assert are_in(part, part[4:]).tolist() == [False] * 4 + [True] * 2
    assert not are_in(part, part[:0]).any()
    assert len(unique_where(part, np.zeros(6, bool))) == 0


def test_no_row_has_a_hash_too() -> None:
    content = RowsHash()
    content.add(np.zeros(0, "S48"))
    assert (content.rows, content.hexdigest()) == (0, hashlib.sha256().hexdigest())


def test_partitions_grow_with_the_rows_and_end() -> None:
    assert [row_bits(n) for n in (0, 2**19, 2**19 + 1, 2**26)] == [0, 0, 1, 7]
    assert row_bits(10**12) == uid_hashes.MAX_BITS


@pytest.mark.parametrize(("uid", "sha256"), [("ab", "00" * 32), ("00" * 16, "00"), ("x", "00")])
def test_a_value_that_is_no_hash_is_refused(uid: str, sha256: str) -> None:
    with pytest.raises(ValueError, match=r"hex"):
        uid_hashes.row_keys(pa.array([uid]), pa.array([sha256]))
