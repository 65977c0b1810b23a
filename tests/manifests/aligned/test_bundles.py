"""Row-aligned files of shards: a bundle gives what the files of its shards would give."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import aligned, disk
from manifests.aligned import AlignedFiles, Bundle, BundleWriter, parquet_bytes, write_changed
from manifests.layout import PoolLayout, shard_name

SCHEMA = pa.schema([("kept", pa.bool_()), ("rule", pa.string())])


def mask(rows: int) -> pa.Table:
    return pa.table({"kept": [i % 2 == 0 for i in range(rows)], "rule": ["r"] * rows}, SCHEMA)


def footer(shard: int, rows: int) -> dict[str, Any]:
    """What a mask of the view v says of itself."""
    return {"kept": rows // 2, "shard": shard_name(shard), "view": "v"}


def write(path: Path, shards: dict[int, int]) -> Path:
    """A bundle of {shard: rows}."""
    with BundleWriter(path, SCHEMA) as writer:
        for shard, rows in shards.items():
            writer.add(shard, mask(rows), footer(shard, rows))
    return path


def test_every_shard_comes_back_in_one_row_group(tmp_path: Path) -> None:
    shards = {3000: 3, 3001: 0, 3005: 25_000, 3999: 1}
    bundle = Bundle(str(write(tmp_path / "b.parquet", shards)))
    for shard, rows in shards.items():
        assert bundle.read(shard).equals(mask(rows))
        assert bundle.metadata(shard) == {**footer(shard, rows), "rows": rows}
    assert bundle.read(3000, ["rule"]).column_names == ["rule"]
    assert "03001" in bundle
    assert "03002" not in bundle
    with pytest.raises(ValueError, match="does not have shard 03002"):
        bundle.read(3002)
    with pytest.raises(ValueError, match=r"has no column 'rul'; did you mean 'rule'\?"):
        bundle.read(3000, ["rul"])


def test_only_the_changed_shards_of_a_bundle_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {3000: 30, 3001: 0, 3005: 400, 3006: 7}
    before = Bundle(str(write(tmp_path / "b.parquet", shards)))
    decoded: list[object] = []
    read = Bundle.read
    monkeypatch.setattr(
        Bundle, "read", lambda bundle, shard: decoded.append(shard) or read(bundle, shard)
    )

    def change(
        shard: int, table: pa.Table, metadata: dict[str, Any]
    ) -> tuple[pa.Table, dict[str, Any]]:
        return table.slice(1), {**metadata, "kept": shard}

    write_changed(before, tmp_path / "c.parquet", {3000, 3006}, change)
    assert decoded == ["03000", "03001", "03006"]  # that without rows has no bytes to copy
    monkeypatch.undo()
    after = Bundle(str(tmp_path / "c.parquet"))
    assert after.stored_bytes(3005) == before.stored_bytes(3005)
    assert [after.read(shard).num_rows for shard in shards] == [29, 0, 400, 6]
    assert after.read(3000).equals(mask(30).slice(1))
    assert [after.metadata(shard)["kept"] for shard in shards] == [3000, 0, 200, 3006]
    assert after.metadata(3006) == {**footer(3006, 7), "kept": 3006, "rows": 6}


def test_a_damaged_shard_is_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", {3000: 40, 3001: 40})
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="the rows of shard 03000 have changed"):
        write_changed(Bundle(str(path)), tmp_path / "c", {3001}, lambda _, *rest: rest)


def test_a_bundle_that_was_not_closed_is_damaged(tmp_path: Path) -> None:
    def stop() -> None:
        with BundleWriter(tmp_path / "b.parquet", SCHEMA) as writer:
            writer.add(3000, mask(2), {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    with pytest.raises(ValueError, match=r"b\.parquet is damaged: .*run clipmill score"):
        Bundle(str(tmp_path / "b.parquet"))
    with pytest.raises(FileNotFoundError):
        Bundle(str(tmp_path / "none.parquet"))


def test_no_bad_byte_gives_other_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", {3000: 40, 3001: 40})
    whole = path.read_bytes()
    noticed = 0
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            bundle = Bundle(str(path))
            for shard in (3000, 3001):
                same = bundle.read(shard).equals(mask(40))
                assert same, f"byte {at} of {len(whole)}"
                assert bundle.metadata(shard) == {**footer(shard, 40), "rows": 40}
        except ValueError as error:
            noticed += "is damaged" in str(error)
    assert noticed > len(whole) / 5 / 2  # the rest are statistics and names of the writer


def test_files_of_flat_shards_and_bundles_are_read_alike(tmp_path: Path) -> None:
    pool, layout = str(tmp_path), PoolLayout(str(tmp_path))
    disk.write_bytes(layout.view_mask("v", 2999), parquet_bytes(mask(4), footer(2999, 4)))
    write(disk.local_path(layout.view_bundle("v", 3000)), {3000: 4})
    files = AlignedFiles.of_view(pool, "v")
    for shard in ("02999", "03000"):
        table, metadata = files.read(shard, ["kept"])
        assert table.equals(mask(4).select(["kept"]))
        assert metadata["kept"] == files.metadata(shard)["kept"] == 2
        assert files.has(shard)
        with pytest.raises(ValueError, match="has no column 'x'"):
            files.read(shard, ["x"])
    assert files.path(2999).endswith("views/v/02999.parquet")
    assert files.path(3999).endswith("views/v/bundle-00003.parquet")
    for missing in (5, 4000):
        assert not files.has(missing)
        with pytest.raises(FileNotFoundError):
            files.read(missing)


def test_a_file_of_a_flat_shard_has_the_bytes_of_before(tmp_path: Path) -> None:
    disk.write_parquet(tmp_path / "a.parquet", mask(3), {"kept": 2})
    assert (tmp_path / "a.parquet").read_bytes() == parquet_bytes(mask(3), {"kept": 2})


def test_threads_that_want_one_bundle_open_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Slow(aligned.Bundle):
        def __init__(self, path: str) -> None:
            opened.append(path)
            time.sleep(0.05)

    monkeypatch.setattr(aligned, "Bundle", Slow)
    files = AlignedFiles(lambda shard: f"{shard}.parquet", lambda shard: f"b{int(shard) // 1000}")
    with ThreadPoolExecutor(8) as threads:
        shards = [5000 + k for k in range(12)] + [6000 + k for k in range(12)]
        found = list(threads.map(files.bundle, shards))
    assert sorted(opened) == ["b5", "b6"]
    assert len({id(bundle) for bundle in found}) == 2


def test_embeddings_are_stored_as_they_are_and_the_rest_as_before(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.float16)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 8)
    table = pa.table({"e": lists, "s": ["a"] * 8, "t": [[1, 2]] * 8})
    with BundleWriter(tmp_path / "b.parquet", table.schema) as writer:
        writer.add(5000, table, {})
    (tmp_path / "f.parquet").write_bytes(parquet_bytes(table, {}))
    for name in ("b", "f"):
        file = pq.ParquetFile(tmp_path / f"{name}.parquet")
        assert file.read().equals(table)
        group = file.metadata.row_group(0)
        chunks = [group.column(i) for i in range(3)]
        assert [chunk.compression for chunk in chunks] == ["UNCOMPRESSED", "ZSTD", "ZSTD"]
        assert [chunk.has_dictionary_page for chunk in chunks] == [False, True, True]
    assert aligned.storage_options(table.select(["s", "t"]).schema) == {"compression": "zstd"}
