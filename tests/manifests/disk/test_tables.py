"""JSON documents and Parquet tables: written whole, read with the name of what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import disk


def test_text_from_the_web_never_fails_a_document(tmp_path: Path) -> None:
    document = {"content_type": "text/html; caf\udce9", "title\ud800": ["x\udfff"]}
    disk.write_json(tmp_path / "d.json", document)
    assert disk.read_json(tmp_path / "d.json") == {
        "content_type": "text/html; café",
        "title\ufffd": ["x\ufffd"],
    }
    disk.write_parquet(tmp_path / "t.parquet", pa.table({"a": [1]}), {"text": "\ud800"})
    assert disk.read_parquet(tmp_path / "t.parquet").num_rows == 1


def test_a_document_is_created_once_and_replaced_only_where_it_is_the_expected_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "d.json"
    disk.create_json(path, {"n": 1})
    disk.create_json(path, {"n": 1})  # the same content counts as success
    with pytest.raises(FileExistsError, match=r"another content: sha256 \w{64}, and \w{64} was"):
        disk.create_json(path, {"n": 2})
    with pytest.raises(FileExistsError, match="another content"):
        disk.replace_json(path, {"n": 3}, b"something else")
    disk.replace_json(path, {"n": 3}, disk.read_bytes(path))
    assert disk.read_json(path) == {"n": 3}
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json is not JSON"):
        disk.read_json(tmp_path / "bad.json")


def test_a_table_whose_bytes_the_disk_loses_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"a": list(range(100))})
    with disk.parquet_writer(tmp_path / "t", rows.schema, compression="zstd") as writer:
        writer.write_table(rows)
    pq.write_table(rows, tmp_path / "same", compression="zstd", write_page_checksum=True)
    assert (tmp_path / "t").read_bytes() == (tmp_path / "same").read_bytes()
    write = disk.CountedFile.write

    def lose(file: disk.CountedFile, data: Any) -> int:
        half = len(data) // 2
        write(file, memoryview(data)[:half])
        file.position += len(data) - half
        return len(data)

    monkeypatch.setattr(disk.CountedFile, "write", lose)
    with (
        pytest.raises(OSError, match=r"bytes were written: .*cut"),
        disk.parquet_writer(tmp_path / "cut", rows.schema) as writer,
    ):
        writer.write_table(rows)


def test_any_change_of_a_sealed_document_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    document = {"name": "a\ud800", "share": 0.1, "rows": (1, 2)}
    disk.write_json(path, document, sealed=True)
    assert disk.read_json(path) == {"name": "a\ufffd", "share": 0.1, "rows": [1, 2]}
    before = path.read_bytes()
    noticed = 0
    for position in range(len(before)):
        path.write_bytes(before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :])
        try:
            same = disk.read_json(path) == {"name": "a\ufffd", "share": 0.1, "rows": [1, 2]}
        except ValueError:
            noticed += 1
        else:
            # White space, or the key of the hash itself, which is then one more key.
            assert same or "document_sha256" not in path.read_text()
    assert noticed > len(before) / 2
    path.write_text('{"share": 0.2, "document_sha256": "0"}')
    with pytest.raises(ValueError, match=r"d\.json was changed after clipmill wrote it"):
        disk.read_json(path)


def test_a_table_that_cannot_be_read_is_named_whatever_byte_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"n": list(range(50)), "text": ["some words"] * 50})
    disk.write_parquet(path, table, {"rows": 50})
    whole = path.read_bytes()
    messages = []
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        for read in (disk.read_parquet, disk.read_metadata, disk.read_schema):
            try:
                read(path)
            except disk.DamagedTable as error:
                messages.append(str(error))
    assert len(messages) > len(whole) / 2
    for message in messages:
        assert message.startswith(f"{path} is damaged, or no Parquet file: ")
        assert "\n" not in message
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"t\.parquet is damaged, or no .* size is 0 bytes"):
        disk.read_parquet(path)
    path.unlink()
    with pytest.raises(FileNotFoundError) as missing:
        disk.read_parquet(path)
    assert missing.value.filename == str(path)
    path.mkdir()
    with pytest.raises(OSError, match=r"t\.parquet"):
        disk.read_metadata(path)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000])
def test_a_footer_that_is_no_object_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"n": [1]}).replace_schema_metadata({"clipmill": text})
    disk.write_parquet(path, table)
    with pytest.raises(disk.DamagedTable, match=r"t\.parquet is damaged, .*: its footer is not"):
        disk.read_metadata(path)


def test_pandas_is_not_imported_with_the_first_array() -> None:
    """Where the program imports it later, or asks whether it is there, PyArrow knows a Series."""
    code = """
import importlib.util, sys
from clipmill.manifests import disk
import pyarrow as pa
pa.array([1.5])
print("pandas" in sys.modules)
if sys.argv[1] == "to_pandas": pa.array([2.5]).to_pandas()
if sys.argv[1] == "ask": assert importlib.util.find_spec("pandas")
import pandas
print(pa.array(pandas.Series([1.5, float("nan")])).null_count)
"""
    for way in ("import", "ask", "to_pandas"):
        done = subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True)
        assert done.stdout.split() == ["False", "1"], done.stderr


def test_pandas_that_is_there_stays_as_it_is() -> None:
    code = """
import pandas, sys
before = list(sys.meta_path)
from clipmill.manifests import disk
import pyarrow as pa
print(sys.meta_path == before, pa.array(pandas.Series([1.5, float("nan")])).null_count)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "1"], done.stderr
