"""DataComp's subset form, as its own programs write and read it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline import metadata_join
from pipeline.metadata_join import read_uid_array, uid_records, write_uid_array


def uids(count: int) -> list[str]:
    return [hashlib.md5(str(number).encode()).hexdigest() for number in range(count)]


def datacomp_array(values: list[str]) -> np.ndarray:  # type: ignore[type-arg]
    """The array that DataComp's filters make of uids, sorted as its README asks."""
    pairs = [(int(uid[:16], 16), int(uid[16:32], 16)) for uid in values]
    return np.sort(np.array(pairs, np.dtype("u8,u8")))


def write(path: Path, values: list[str]) -> int:
    pieces = (uid_records(pa.array(values[i : i + 7])) for i in range(0, len(values), 7))
    return write_uid_array(pieces, path)


@pytest.mark.parametrize(("count", "batch_rows"), [(0, 9), (1, 9), (100, 9), (100, 10_000)])
def test_the_bytes_are_those_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, batch_rows: int
) -> None:
    monkeypatch.setattr(metadata_join, "BATCH_ROWS", batch_rows)
    values = [*uids(count), *uids(count // 2)]  # each once
    assert write(tmp_path / "x.npy", values) == count
    array = np.load(tmp_path / "x.npy")
    expected = datacomp_array(uids(count))
    assert array.dtype == expected.dtype
    assert (array == expected).all()
    np.save(tmp_path / "numpy.npy", expected)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_reading_in_pieces_gives_the_uids_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_join, "READ_ROWS", 9)
    array = datacomp_array(uids(50))
    for name, form in (("a.npy", array), ("b.npy", array.astype(">u8,>u8"))):
        np.save(tmp_path / name, form)
        pieces = list(read_uid_array(str(tmp_path / name)))
        assert max(len(piece) for piece in pieces) == 9
        read = [bytes(record).hex() for piece in pieces for record in piece]
        assert read == sorted(uids(50))


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_array(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.npy is not a NumPy file"):
        list(read_uid_array(str(tmp_path / "x.npy")))


def test_an_array_of_something_else(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4))
    with pytest.raises(ValueError, match=r"holds int64, not uids"):
        list(read_uid_array(str(tmp_path / "x.npy")))
    np.savez(tmp_path / "y.npz", a=np.arange(4))
    with pytest.raises(ValueError, match="not uids"):
        list(read_uid_array(str(tmp_path / "y.npz")))
    with pytest.raises(ValueError, match="a uid does not have 32 hex digits"):
        uid_records(pa.array(["abc"]))
