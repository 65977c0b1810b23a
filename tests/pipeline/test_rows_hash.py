"""The hash of rows with a flag: of their sorted records, whatever their order and repetitions."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from pipeline import shuffle
from pipeline.shuffle import (
    create_keyed,
    database,
    hash_flagged,
    insert,
    key_columns,
    of_flags,
    row_keys,
)


def columns(numbers: list[int]) -> tuple[pa.Array, pa.Array]:
    uids = [hashlib.md5(str(n).encode()).hexdigest() for n in numbers]
    hashes = [hashlib.sha256(str(n).encode()).hexdigest() for n in numbers]
    return pa.array(uids), pa.array(hashes)


def expected_hash(numbers: list[int]) -> tuple[int, str]:
    """A plain program for the canonical hash."""
    records = set()
    for uid, sha256 in zip(*(column.to_pylist() for column in columns(numbers)), strict=True):
        records.add(bytes.fromhex(uid + sha256))
    return len(records), hashlib.sha256(b"".join(sorted(records))).hexdigest()


@pytest.mark.parametrize("batch_rows", [7, 10_000])
def test_the_hash_is_that_of_the_sorted_records_with_the_flag(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "BATCH_ROWS", batch_rows)
    numbers = [n % 150 for n in np.random.default_rng(0).permutation(400).tolist()]
    with database() as connection:
        create_keyed(connection, "t", of_flags("{} BOOLEAN", 3))
        for start in range(0, 400, 64):
            part = np.array(numbers[start : start + 64])
            flags = (np.ones(len(part), bool), part % 3 == 0, np.zeros(len(part), np.uint8))
            insert(connection, "t", *key_columns(row_keys(*columns(part.tolist()))), *flags)
        hashes = hash_flagged(connection, "t", 3)
    assert hashes == [
        expected_hash(numbers),
        expected_hash([n for n in numbers if n % 3 == 0]),
        (0, hashlib.sha256().hexdigest()),
    ]


def test_records_that_end_in_zeros_are_told_apart() -> None:
    uids = pa.array(["00" * 16, "00" * 15 + "01", "01" + "00" * 15])
    keys = row_keys(uids, pa.array(["00" * 32] * 3))
    with database() as connection:
        create_keyed(connection, "t", of_flags("{} BOOLEAN", 1))
        for _ in range(2):
            insert(connection, "t", *key_columns(keys), np.ones(3, bool))
        ((rows, digest),) = hash_flagged(connection, "t", 1)
    assert (rows, digest) == (3, hashlib.sha256(keys.tobytes()).hexdigest())


@pytest.mark.parametrize(("uid", "sha256"), [("ab", "00" * 32), ("00" * 16, "00"), ("x", "00")])
def test_a_value_that_is_no_hash_is_refused(uid: str, sha256: str) -> None:
    with pytest.raises(ValueError, match=r"hex"):
        row_keys(pa.array([uid]), pa.array([sha256]))
