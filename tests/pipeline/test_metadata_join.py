"""Columns that other programs computed: their files, and every shard's rows by uid, never by
position; DataComp's subset form, as its own programs write and read it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from clipmill.filters.table import CaptionFile, Table
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import uids_checksum
from clipmill.pipeline import metadata_join
from clipmill.pipeline.metadata_join import (
    TableFile,
    TableJoin,
    key_records,
    read_uid_array,
    uid_records,
    write_uid_array,
)
from tests.support.datacomp import write_metadata
from tests.support.small_pool import make_pool, rows

TAKE = {"score": "clip_l14_similarity_score:float", "l14_img": "fp16[8]", "text": "string"}


def uids_of(pool: str) -> list[str]:
    commits = read_commits(pool)
    uids: list[str] = []
    for shard in commits.shards.tolist():
        uids += disk.read_parquet(commits.sidecar(shard))["uid"].to_pylist()
    return uids


@pytest.mark.parametrize("batch_rows", [4, 10_000])
def test_values_go_to_the_rows_with_their_uids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(metadata_join, "BATCH_ROWS", batch_rows)
    pool = make_pool(tmp_path / "pool", rows(43), per_shard=6)
    uids = uids_of(pool)
    order = np.random.default_rng(0).permutation(43)
    given = [uids[i] for i in order if i % 9 != 5] + ["00" * 16, "00" * 15 + "01"]
    first, second = given[:20], [*given[20:], *given[:5], given[-3]]  # the first of each counts
    arrays = {}
    for name, part in (("0", first), ("1", second)):
        made = write_metadata(tmp_path / "meta", name, part, seed=int(name))["l14_img"]
        for uid, array in zip(part, made, strict=True):
            arrays.setdefault(uid, array)
    commits = read_commits(pool)
    positions = np.arange(len(commits))[1:]  # the first shard is not asked for
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    join = TableJoin(commits, positions, table)
    shards = list(join.shards())
    assert [shard.position for shard in shards] == positions.tolist()
    for shard in shards:
        sidecar = disk.read_parquet(commits.sidecar(int(commits.shards[shard.position])))
        assert shard.uids == uids_checksum(sidecar["uid"])
        stored = [status == "success" for status in sidecar["status"].to_pylist()]
        assert shard.stored == sum(stored)
        assert shard.table.schema.types == list(table.columns().values())
        values = zip(sidecar["uid"].to_pylist(), stored, shard.table.to_pylist(), strict=True)
        for uid, is_stored, value in values:
            if is_stored and uid in arrays:
                assert value["text"] == f"a text {uid[:4]}"
                assert np.array_equal(np.array(value["l14_img"], np.float16), arrays[uid])
                assert value["score"] is not None
            else:
                assert value == {"score": None, "l14_img": None, "text": None}
    asked = set[str]()
    for shard in shards:
        sidecar = disk.read_parquet(commits.sidecar(int(commits.shards[shard.position])))
        stored_uids = sidecar["uid"].filter(pc.equal(sidecar["status"], "success"))
        asked |= set(stored_uids.to_pylist())
    counts = join.counts
    assert (counts.table_rows, counts.keys) == (len(given) + 6, len(given))
    assert (counts.pool_rows, counts.matched_rows) == (len(asked), len(asked & set(given)))
    assert counts.missing == len(set(given) - asked)
    assert counts.missing_keys == sorted(set(given) - asked)[:10]


def test_a_pool_whose_uids_are_in_another_column(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(8))
    path = read_commits(pool).sidecar(0)
    sidecar = disk.read_parquet(path)
    theirs = [f"{number:032x}" for number in range(8)]
    theirs_or_null = [*theirs[:-1], None]
    disk.write_parquet(path, sidecar.append_column("datacomp_uid", pa.array(theirs_or_null)))
    write_metadata(tmp_path / "meta", "0", theirs)
    table = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on="datacomp_uid")
    (shard,) = TableJoin(read_commits(pool), np.array([0]), table).shards()
    texts = shard.table["text"].to_pylist()
    assert texts[0] == "a text 0000"
    assert texts[7] is None
    for on, message in (
        ("datacomp_id", "has no column 'datacomp_id'; did you mean"),
        ("caption", "column 'caption' of .* does not have 32 hex digits"),
    ):
        wrong = Table(paths=(str(tmp_path / "meta"),), take={"text": "string"}, on=on)
        with pytest.raises(ValueError, match=message):
            list(TableJoin(read_commits(pool), np.array([0]), wrong).shards())


def test_no_shard_needs_no_table(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(4))
    write_metadata(tmp_path / "meta", "0", ["ab" * 16])
    table = Table(paths=(str(tmp_path / "meta"),), take=TAKE)
    assert list(TableJoin(read_commits(pool), np.zeros(0, np.int64), table).shards()) == []


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


def uids(count: int) -> list[str]:
    return [hashlib.md5(str(number).encode()).hexdigest() for number in range(count)]


UIDS = uids(30)
METADATA = {
    "l14": "clip_l14_similarity_score:float",
    "faces": "face_bboxes:json",
    "original_width": "int",
    "l14_img": "fp16[8]",
}


def table_file(folder: Path, take: dict[str, str] = METADATA) -> TableFile:
    table = Table(paths=(str(folder),), take=take)
    return TableFile(table, str(folder / "0.parquet"))


def test_keys_and_values_of_some_rows_over_row_groups(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path, "0", UIDS)
    file = table_file(tmp_path)
    keys = [bytes(key).hex() for piece in file.read_keys() for key in piece]
    assert keys == UIDS
    rows = np.array([0, 3, 6, 7, 21, 29])
    pieces = list(file.read_values(rows))
    assert [start for start, _ in pieces] == [0, 3, 4, 5]
    values = pa.concat_tables(table for _, table in pieces)
    assert values["original_width"].to_pylist() == [200 + row for row in rows.tolist()]
    assert values["faces"].to_pylist()[:4] == ["[[0.1, 0.2, 0.3, 0.4]]"] * 3 + ["[]"]
    assert values["l14_img"].to_pylist() == [row.tobytes() for row in arrays["l14_img"][rows]]
    expected = (arrays["l14_img"].astype(float) * arrays["l14_txt"].astype(float)).sum(axis=1)
    assert values["l14"].to_numpy() == pytest.approx(expected[rows], abs=1e-5)


def test_arrays_of_other_rows_are_refused(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path, "0", UIDS)
    swapped = {name: array[::-1] for name, array in arrays.items()}
    np.savez(tmp_path / "0.npz", **swapped)
    with pytest.raises(ValueError, match=r"0\.npz .* its embeddings are of other rows"):
        list(table_file(tmp_path).read_values(np.arange(3)))
    shorter = {name: array[:-1] for name, array in arrays.items()}
    np.savez(tmp_path / "0.npz", **shorter)
    with pytest.raises(ValueError, match=r"has the shape \(29, 8\); it must be \(30, 8\)"):
        list(table_file(tmp_path).read_values(np.arange(3)))
    (tmp_path / "0.npz").write_bytes((tmp_path / "0.npz").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"0\.npz cannot be used"):
        list(table_file(tmp_path).read_values(np.arange(3)))


@pytest.mark.parametrize(
    ("take", "message"),
    [
        ({"x": "clip_l14_similarity:float"}, "no column 'clip_l14_similarity'; did you mean"),
        ({"text": "int"}, "column 'text' is not of type int"),
        ({"l15_img": "fp16[8]"}, "it has no array 'l15_img'; did you mean 'l14_img'"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, take: dict[str, str], message: str) -> None:
    write_metadata(tmp_path, "0", UIDS)
    with pytest.raises(ValueError, match=message):
        list(table_file(tmp_path, take).read_values(np.arange(30)))


def test_a_key_that_is_no_uid_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    table = pa.table({"uid": [UIDS[0], None], "score": [float("nan"), float("inf")]})
    pq.write_table(table, tmp_path / "0.parquet")
    file = table_file(tmp_path, {"score": "float"})
    with pytest.raises(ValueError, match="the key of a table is a uid in every row"):
        list(file.read_keys())
    ((_, values),) = file.read_values(np.arange(2))
    assert values["score"].to_pylist() == [None, None]


def test_a_list_of_uids_is_a_column_of_true(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", datacomp_array(UIDS))
    path = str(tmp_path / "s.npy")
    file = TableFile(Table(paths=(path,), take={"listed": "bool"}), path)
    assert [bytes(key).hex() for piece in file.read_keys() for key in piece] == sorted(UIDS)
    ((start, values),) = file.read_values(np.arange(4))
    assert (start, values["listed"].to_pylist()) == (0, [True] * 4)


ROW = f"{UIDS[0]},1,"
LINE = f'{{"uid": "{UIDS[0]}", "n": 1, "text": '
HUGE = "1" + "0" * 30
# A text file, and what its columns n (int) and text (string) are; or a part of the error.
TEXTS: list[tuple[str, str | bytes, list[tuple[Any, Any]] | str]] = [
    ("a.csv", f"uid,n,text\n{ROW}é\n", [(1, "é")]),
    ("a.csv", f"\ufeffuid,n,text\r\n{ROW}a\r\n\r\n{ROW}\r\n", [(1, "a"), (1, None)]),
    ("a.csv", f'uid,n,text\n{UIDS[0]},,"a\n,""b"""\n', [(None, 'a\n,"b"')]),
    ("a.csv", f"uid,n,text\n{UIDS[0]},-9223372036854775808,NaN\n", [(-(2**63), "NaN")]),
    ("a.csv", f"uid,n,text\n{UIDS[0]},{HUGE},a\n", "column 'n' is not of type int"),
    ("a.csv", f"uid,n,text\n{ROW}a\n{ROW}a,b\n", "its row 2 cannot be read"),
    ("a.csv", f'uid,n,text\n{ROW}a\n{ROW}"b\n{ROW}c\n', "its row 2 cannot be read"),
    ("a.csv", f"uid,n,text\n{ROW}caf".encode() + b"\xe9\n", "column 'text' is not UTF-8"),
    ("a.csv", f"uid,n,text,n\n{ROW}a,2\n", "has two columns 'n'"),
    ("a.csv", f"uid,text\n{UIDS[0]},a\n", "has no column 'n'"),
    ("a.tsv", f'uid\tn\ttext\n{UIDS[0]}\t1\t"a\n', [(1, '"a')]),
    ("a.jsonl", f'\n{LINE}"é"}}\n  \n{LINE}null}}\n', [(1, "é"), (1, None)]),
    ("a.jsonl", f'{LINE}""}}\n', [(1, "")]),
    ("a.jsonl", f'{LINE}"a"}}\n{{"uid": "{UIDS[1]}"}}\n', [(1, "a"), (None, None)]),
    ("a.jsonl", f"{LINE}5}}\n", [(1, "5")]),
    ("a.jsonl", f'{LINE}5}}\n{LINE}"a"}}\n', "column 'text' has values of several types"),
    ("a.jsonl", f"{LINE}{HUGE}}}\n", "column 'text' has values of several types"),
    ("a.jsonl", f'{LINE}"a"}}\n{{]\n', "its row 2 cannot be read"),
    ("a.jsonl", f'{LINE}"a"}}\n[1]\n', "its row 2 cannot be read"),
]


@pytest.mark.parametrize(("name", "content", "expected"), TEXTS)
def test_text_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str | bytes,
    expected: list[tuple[Any, Any]] | str,
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    file = TableFile(Table(paths=(str(path),), take={"n": "int", "text": "string"}), str(path))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=rf"a\.\w+.*{expected}"):
            list(file.read_values(np.arange(5)))
        return
    for at_once in (1, 100):
        monkeypatch.setattr(metadata_join, "ROWS", at_once)
        assert sum(len(piece) for piece in file.read_keys()) == len(expected)
        pieces = list(file.read_values(np.arange(len(expected))))
        assert [start for start, _ in pieces] == list(range(0, len(expected), at_once))
        values = pa.concat_tables(table for _, table in pieces).to_pylist()
        assert [(row["n"], row["text"]) for row in values] == expected


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


def test_whatever_byte_of_a_list_of_uids_is_damaged_it_is_read_or_named(tmp_path: Path) -> None:
    """The header of a .npy is read as Python, with errors of its own."""
    path = tmp_path / "x.npy"
    np.save(path, datacomp_array(uids(4)))
    data = path.read_bytes()
    for bit in range(0, 8 * 128, 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert sum(map(len, read_uid_array(str(path)))) == 4
        except ValueError as error:
            assert "x.npy" in str(error)  # noqa: PT017
    path.write_bytes(data + data)
    with pytest.raises(ValueError, match=r"x\.npy has more bytes than its header says"):
        list(read_uid_array(str(path)))


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
