"""Row-aligned files: a bundle gives the rows that were written, or an error."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.manifests import aligned, disk
from clipmill.manifests.aligned import (
    AlignedFiles,
    Bundle,
    BundleWriter,
    current_view,
    parquet_bytes,
    remove_view_shards,
    view_shards,
    write_changed,
    write_view_shards,
)
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.records import ShardTable, ViewDocument

SCHEMA = pa.schema([("kept", pa.bool_()), ("rule", pa.string())])
from tests.support.bundles import write_bundles


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


def test_some_shards_of_a_bundle_are_changed(tmp_path: Path) -> None:
    shards = {3000: 30, 3001: 0, 3005: 400, 3006: 7}
    before = Bundle(str(write(tmp_path / "b.parquet", shards)))

    def change(
        shard: int, table: pa.Table, metadata: dict[str, Any]
    ) -> tuple[pa.Table, dict[str, Any]]:
        return table.slice(1), {**metadata, "kept": shard}

    write_changed(before, tmp_path / "c.parquet", {3000: 0, 3006: 0}, change)
    after = Bundle(str(tmp_path / "c.parquet"))
    assert [after.read(shard).num_rows for shard in shards] == [29, 0, 400, 6]
    assert after.read(3000).equals(mask(30).slice(1))
    assert after.read(3005).equals(mask(400))
    assert [after.metadata(shard)["kept"] for shard in shards] == [3000, 0, 200, 3006]
    assert after.metadata(3006) == {**footer(3006, 7), "kept": 3006, "rows": 6}


def test_a_bundle_that_was_not_closed_is_damaged(tmp_path: Path) -> None:
    def stop() -> None:
        with BundleWriter(tmp_path / "b.parquet", SCHEMA) as writer:
            writer.add(3000, mask(2), {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    with pytest.raises(ValueError, match=r"b\.parquet is damaged: .*run clipmill audit repair"):
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


def test_the_bundles_of_a_view(tmp_path: Path) -> None:
    pool, layout = str(tmp_path), PoolLayout(str(tmp_path))
    masks = [(shard, mask(4), footer(shard, 4)) for shard in (0, 999, 1000)]
    write_bundles(f"{pool}/views/v", SCHEMA, masks)
    files = AlignedFiles.of_view(PoolLayout(pool), "v")
    for shard, name in ((0, "bundle-00000"), (999, "bundle-00000"), ("01000", "bundle-00001")):
        table, metadata = files.read(shard, ["kept"])
        assert table.equals(mask(4).select(["kept"]))
        assert metadata["kept"] == files.metadata(shard)["kept"] == 2
        assert files.has(shard)
        with pytest.raises(ValueError, match="has no column 'x'"):
            files.read(shard, ["x"])
        assert (
            files.path(shard) == layout.view_bundle("v", shard) == f"{pool}/views/v/{name}.parquet"
        )
    assert not files.has(5)
    assert not files.has(4000)
    with pytest.raises(ValueError, match="does not have shard 00005"):
        files.read(5)
    with pytest.raises(FileNotFoundError):
        files.read(4000)
    write_bundles(f"{pool}/views/w", SCHEMA, masks)
    with pytest.raises(ValueError, match="it has the mask of shard 00000 in view v"):
        AlignedFiles.of_view(PoolLayout(pool), "w").read(0)


def test_a_bundle_that_is_published_again_is_opened_again(tmp_path: Path) -> None:
    folder = str(tmp_path / "views/v")
    write_bundles(folder, SCHEMA, [(0, mask(4), footer(0, 4)), (1, mask(6), footer(1, 6))])
    files = AlignedFiles.of_view(PoolLayout(str(tmp_path)), "v")
    assert files.read(1)[0].num_rows == 6
    write_bundles(folder, SCHEMA, [(0, mask(400), footer(0, 400)), (1, mask(60), footer(1, 60))])
    table, metadata = files.read(1)
    assert (table.num_rows, metadata["rows"]) == (60, 60)


def test_a_view_names_the_file_of_its_shards(tmp_path: Path) -> None:
    pool, numbers = str(tmp_path), np.array([0, 2999, 300_000])
    before = write_view_shards(PoolLayout(pool), "v", numbers, np.array([1, 2, 3]))
    table = write_view_shards(PoolLayout(pool), "v", numbers, np.array([1, 2, 4]))
    document = ViewDocument(
        name="v", rules=(), thresholds={}, funnel=(), kept=7, fingerprint="", scores={},
        shards=table,
    )  # fmt: skip
    remove_view_shards(PoolLayout(pool), "v", table.file)
    assert table.file != before.file
    assert disk.list_names(tmp_path / "views/v") == [table.file]
    assert [values.tolist() for values in view_shards(PoolLayout(pool), document)] == [
        [0, 2999, 300_000], [1, 2, 4],
    ]  # fmt: skip
    path = tmp_path / "views/v" / table.file
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged: its sha256 is not that of its document"):
        view_shards(PoolLayout(pool), document)
    path.unlink()
    with pytest.raises(ValueError, match="is missing; make it again"):
        view_shards(PoolLayout(pool), document)


def test_threads_that_want_one_bundle_open_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Slow(aligned.Bundle):
        def __init__(self, path: str) -> None:
            opened.append(path)
            time.sleep(0.05)

    monkeypatch.setattr(aligned, "Bundle", Slow)
    files = AlignedFiles(lambda shard: f"b{int(shard) // 1000}")
    with ThreadPoolExecutor(8) as threads:
        shards = [5000 + k for k in range(12)] + [6000 + k for k in range(12)]
        found = list(threads.map(files.bundle, shards))
    assert sorted(opened) == ["b5", "b6"]
    assert len({id(bundle) for bundle in found}) == 2


def test_embeddings_are_stored_as_they_are_and_the_rest_compressed(tmp_path: Path) -> None:
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
        assert not any(chunk.is_stats_set for chunk in chunks)


def test_floats_are_stored_by_place_and_few_texts_in_a_dictionary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000)
    values[::7] = np.nan
    rules = pa.array(["a"] * 2500 + [None] * 2500).dictionary_encode()
    table = pa.table(
        {
            "d": pa.array(values, mask=values > 1),
            "f": pa.array(values.astype(np.float32)),
            "n": pa.array(np.arange(5000) % 9),
            "rule": rules,
        }
    )
    with BundleWriter(tmp_path / "b.parquet", table.schema) as writer:
        writer.add(0, table.slice(0, 2000), {})
        writer.add(1, table.slice(2000), {})
    group = pq.read_metadata(tmp_path / "b.parquet").row_group(0)
    encodings = [group.column(i).encodings for i in range(4)]
    assert [("BYTE_STREAM_SPLIT" in each, "RLE_DICTIONARY" in each) for each in encodings] == [
        (True, False), (True, False), (False, True), (False, True),
    ]  # fmt: skip
    bundle = Bundle(str(tmp_path / "b.parquet"))
    expected = table.set_column(3, "rule", table["rule"].cast(pa.string()))
    assert bundle.schema == expected.schema
    for shard, part in ((0, expected.slice(0, 2000)), (1, expected.slice(2000))):
        read = bundle.read(shard)
        assert read.select(["n", "rule"]).equals(part.select(["n", "rule"]))
        for name in ("d", "f"):  # to the bit
            assert read[name].is_valid().equals(part[name].is_valid())
            left, right = (each[name].drop_null().to_numpy() for each in (read, part))
            assert left.tobytes() == right.tobytes()


# --- The views of a pool by name; one that is missing or older than the shards is refused


def write_view(pool: str, name: str, fingerprint: str) -> ViewDocument:
    document = ViewDocument(
        name=name, rules=(), thresholds={}, funnel=(("stored", 1),), kept=1,
        fingerprint=fingerprint, scores={}, shards=ShardTable(file="s.parquet", count=1, sha256=""),
    )  # fmt: skip
    disk.write_json(PoolLayout(pool).view_json(name), document, sealed=True)
    return document


def test_a_missing_and_a_stale_view_are_refused(tmp_path: Path) -> None:
    pool = str(tmp_path)
    with pytest.raises(ValueError, match="has no view 'long'; it has none"):
        current_view(PoolLayout(pool), "long", "now", "")
    write_view(pool, "long", "before")
    with pytest.raises(ValueError, match=r"has no view 'lnog'; did you mean 'long'\?; it has long"):
        current_view(PoolLayout(pool), "lnog", "now", "")
    with pytest.raises(ValueError, match=r"view 'long' of .* is stale: .*changed; do this$"):
        current_view(PoolLayout(pool), "long", "now", "do this")
