"""Records in partitions on local disk: each comes back once, and lost bytes are an error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from manifests.columns import hex_bytes
from pipeline.pool import uid_hashes
from pipeline.pool.uid_hashes import (
    Bytes,
    RecordSpill,
    is_first_of_equal,
    partition_bits,
    sorted_records,
)


def drawn(count: int, width: int) -> Bytes:
    return np.random.default_rng(1).integers(0, 256, (count, width)).astype(np.uint8)


@pytest.mark.parametrize("bits", [0, 5, 14])
@pytest.mark.parametrize("buffered", [30, 2**20])
def test_every_record_comes_back_in_the_partition_of_its_first_bits(
    bits: int, buffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uid_hashes, "BUFFERED_BYTES", buffered * 7)
    records = drawn(1000, 7)
    with RecordSpill(7, bits) as spill:
        for start in range(0, 1000, 45):
            spill.add(records[start : start + 45])
        parts = list(spill.partitions())
        assert any(spill._folder.iterdir()) == (buffered == 30)
    assert (spill.records, len(parts)) == (1000, 1 << bits)
    for number, part in enumerate(parts):
        first = part[:, 0].astype(int) << 8 | part[:, 1]
        assert (first >> 16 - bits == number).all()
    keys = [key for part in parts for key in sorted_records(part, 7)[0].tolist()]
    assert keys == sorted(bytes(record).rstrip(b"\0") for record in records)


def test_records_with_equal_keys_stay_in_their_order() -> None:
    records = drawn(500, 6)
    records[:, :3] %= 2
    keys, payload = sorted_records(records, 3)
    expected = sorted(records.tolist(), key=lambda record: record[:3])
    assert payload.tolist() == [record[3:] for record in expected]
    assert is_first_of_equal(keys).sum() == len({bytes(record[:3]) for record in records})
    assert is_first_of_equal(keys[:0]).tolist() == []


@pytest.mark.parametrize("left", [0, 13])
def test_bytes_that_the_local_disk_loses_are_an_error(left: int) -> None:
    with RecordSpill(4, 0) as spill:
        spill.add(drawn(5, 4))
        spill._flush()
        path = spill._folder / "0"
        path.write_bytes(path.read_bytes()[:left])
        with pytest.raises(OSError, match=f"{left} of 20 bytes were written"):
            list(spill.partitions())
    assert not path.parent.exists()


def test_an_empty_spill_has_empty_partitions() -> None:
    with RecordSpill(4, 1) as spill:
        spill.add(np.zeros((0, 4), np.uint8))
        assert [part.shape for part in spill.partitions()] == [(0, 4), (0, 4)]
        with pytest.raises(AssertionError):
            spill.add(np.zeros((1, 5), np.uint8))


def test_partitions_grow_with_the_records_and_end() -> None:
    assert [partition_bits(n, 100) for n in (0, 1, 100, 101, 200, 201, 1600)] == [
        0, 0, 0, 1, 1, 2, 4,
    ]  # fmt: skip
    assert partition_bits(10**12, 100) == uid_hashes.MAX_BITS
    assert partition_bits(10**12, 100, 3) == 3


def test_hex_digits_are_read_from_any_part_of_a_column() -> None:
    texts = ["00ff", "ABcd", "1234", "fe01"]
    column = pa.chunked_array([pa.array(texts[:3]), pa.array(texts[3:])])
    for start in range(5):
        for part in (column[start:], pa.array(texts)[start:]):
            expected = [list(bytes.fromhex(text)) for text in texts[start:]]
            assert hex_bytes(part, 2, "uid").tolist() == expected
    assert hex_bytes(pa.array([], pa.string()), 2, "uid").shape == (0, 2)


@pytest.mark.parametrize("value", ["abc", "abcde", "", "00fg", "0 ff", "é00", None])
def test_a_value_that_is_no_hex_is_refused(value: str | None) -> None:
    with pytest.raises(ValueError, match="a uid does not have 4 hex digits"):
        hex_bytes(pa.array(["00ff", value], pa.string()), 2, "uid")
