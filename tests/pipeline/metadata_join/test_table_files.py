"""Keys and values of the files of other programs, and arrays of other rows."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filters.caption_file import CaptionFile

from filters.table import Table
from pipeline import metadata_join
from pipeline.metadata_join import TableFile, key_records
from tests.support.datacomp import write_metadata


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


UIDS = [hashlib.md5(str(number).encode()).hexdigest() for number in range(30)]
TAKE = {
    "l14": "clip_l14_similarity_score:float",
    "faces": "face_bboxes:json",
    "original_width": "int",
    "l14_img": "fp16[8]",
}


def table_file(folder: Path, take: dict[str, str] = TAKE, **options: Any) -> TableFile:
    table = Table(paths=(str(folder),), take=take, **options)
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
    ("take", "options", "message"),
    [
        (
            {"x": "clip_l14_similarity:float"},
            {},
            "has no column 'clip_l14_similarity'; did you mean",
        ),
        ({"text": "int"}, {}, "column 'text' is not of type int"),
        ({"l15_img": "fp16[8]"}, {}, "it has no array 'l15_img'; did you mean 'l14_img'"),
    ],
)
def test_columns_that_are_not_there(
    tmp_path: Path, take: dict[str, str], options: dict[str, Any], message: str
) -> None:
    write_metadata(tmp_path, "0", UIDS)
    with pytest.raises(ValueError, match=message):
        list(table_file(tmp_path, take, **options).read_values(np.arange(30)))


def test_a_key_that_is_no_uid_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    table = pa.table({"uid": [UIDS[0], None], "score": [float("nan"), float("inf")]})
    pq.write_table(table, tmp_path / "0.parquet")
    file = table_file(tmp_path, {"score": "float"})
    with pytest.raises(ValueError, match="the key of a table is a uid in every row"):
        list(file.read_keys())
    ((_, values),) = file.read_values(np.arange(2))
    assert values["score"].to_pylist() == [None, None]


def test_a_list_of_uids_is_a_column_of_true(tmp_path: Path) -> None:
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in UIDS]
    np.save(tmp_path / "s.npy", np.sort(np.array(pairs, "u8,u8")))
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
    for rows in (1, 100):
        monkeypatch.setattr(metadata_join, "ROWS", rows)
        assert sum(len(piece) for piece in file.read_keys()) == len(expected)
        pieces = list(file.read_values(np.arange(len(expected))))
        assert [start for start, _ in pieces] == list(range(0, len(expected), rows))
        values = pa.concat_tables(table for _, table in pieces).to_pylist()
        assert [(row["n"], row["text"]) for row in values] == expected
