"""Verify: whatever file of a pool is cut, altered, exchanged or stale, its name is in the
answer."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import Bundle
from clipmill.manifests.commits import IndexWriter, read_commits, update_index
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit import counts, integrity
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.audit.purge import purge_shard
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import sidecar_hash
from tests.support import audited
from tests.support.bundles import change_shard
from tests.support.sidecars import read_sidecar


@pytest.fixture
def pool(audited_pool: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited_pool, tmp_path / "pool"))


def files(pool: Path, pattern: str) -> list[Path]:
    paths = sorted(pool.glob(pattern))
    assert paths, pattern
    return paths


def test_a_whole_pool_has_no_line(pool: Path) -> None:
    (pool / "shards/00009.tar").write_bytes(b"half a tar")  # what is not committed
    (pool / "scores/caption@000000000000").mkdir()
    (pool / "scores/caption@000000000000/00000.parquet").write_bytes(b"half a table")
    assert verify(str(pool)) == []


@pytest.mark.parametrize(
    "pattern",
    [
        "shards/*.tar",
        "shards/*.parquet",
        "scores/*/*.parquet",
        "views/words/*.parquet",
        "pairs/*.parquet",
    ],
)
def test_a_cut_file_and_a_missing_file_are_named(pool: Path, pattern: str) -> None:
    for path in files(pool, pattern):
        before = path.read_bytes()
        for size in (0, len(before) // 2, len(before) - 1):
            path.write_bytes(before[:size])
            assert any(str(path.relative_to(pool)) in line for line in verify(str(pool))), (
                path,
                size,
            )
        path.unlink()
        lines = verify(str(pool))
        path.write_bytes(before)
        if "pairs" not in pattern:
            assert any(str(path.relative_to(pool)) in line for line in lines), path


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    ["shards/00001.tar", "shards/00001.parquet", "scores/*/bundle-*", "views/words/bundle-*"],
)
def test_every_flipped_bit_is_noticed_or_changes_no_value(pool: Path, pattern: str) -> None:
    """Of a shard each one is noticed. Pages of a bundle carry checksums; what may go unnoticed are
    statistics and the like.
    """
    path = files(pool, pattern)[0]
    is_bundle = "bundle" in pattern
    before, values = path.read_bytes(), rows_of(path) if is_bundle else []
    noticed = 0
    for bit in random.Random(1).sample(range(len(before) * 8), 20 if is_bundle else 12):
        flipped = bytearray(before)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if any(str(path.relative_to(pool)) in line for line in verify(str(pool))):
            noticed += 1
        else:
            assert is_bundle, bit
            assert rows_of(path) == values, bit
    assert noticed > 5


def rows_of(path: Path) -> list[pa.Table]:
    bundle = Bundle(str(path))
    return [bundle.read(shard) for shard in bundle.shards]


def exchange_scores(pool: Path) -> str:
    path = files(pool, "scores/*/bundle-*")[0]
    first = Bundle(str(path))
    change_shard(path, 1, lambda _: first.read(0), uids=first.metadata(0)["uids"])
    return f"{path.relative_to(pool)}: shard 00001: its rows are not those of the sidecar"


def change_sidecar(pool: Path, name: str, column: pa.Array) -> None:
    """Another column, and a commit record that agrees with it."""
    path, record = pool / "shards/00001.parquet", PoolLayout(str(pool)).commit_record(1)
    table = disk.read_parquet(path)
    table = table.set_column(table.column_names.index(name), name, column)
    disk.write_parquet(path, table)
    hashes = {"sidecar_sha256": sidecar_hash(table), "sidecar_file_sha256": disk.file_sha256(path)}
    disk.write_json(record, {**disk.read_json(record), **hashes})


def other_rows(pool: Path) -> str:
    uids = disk.read_parquet(pool / "shards/00001.parquet")["uid"].to_pylist()
    change_sidecar(pool, "uid", pa.array(["0" * 32, *uids[1:]]))
    return "bundle-00000.parquet: shard 00001: its rows are not those of the sidecar"


def moved_image(pool: Path) -> str:
    offsets = disk.read_parquet(pool / "shards/00001.parquet")["image_offset"].to_pylist()
    moved = [None if offset is None else offset + 1 for offset in offsets]
    change_sidecar(pool, "image_offset", pa.array(moved, pa.int64()))
    return "shards/00001.tar: 000010"


def repeated_keys(pool: Path) -> str:
    rows = disk.read_parquet(pool / "shards/00001.parquet").num_rows
    change_sidecar(pool, "key", pa.array(["000010000"] * rows))
    return "shards/00001.parquet: its keys repeat or are not in order"


def no_record(pool: Path) -> str:
    update_index(str(pool))
    Path(PoolLayout(str(pool)).commit_record(1)).unlink()
    return "shards/00001_stats.json: missing"


def wrong_counts(pool: Path) -> str:
    record = disk.read_json(PoolLayout(str(pool)).commit_record(1))
    disk.write_json(
        PoolLayout(str(pool)).commit_record(1),
        {**record, "successes": record["successes"] - 1, "reasons": {"dns": 1}},
    )
    return "shards/00001.parquet: "


def another_shard(pool: Path) -> str:
    shutil.copy(PoolLayout(str(pool)).commit_record(0), PoolLayout(str(pool)).commit_record(1))
    return "shards/00001_stats.json: damaged"


def mask_of_another_view(pool: Path) -> str:
    name = "bundle-00000.parquet"
    shutil.copy(pool / "views/raw" / name, pool / "views/words" / name)
    return f"views/words/{name}: damaged: it has the mask of shard 00000 in view raw"


def funnel_that_does_not_end(pool: Path) -> str:
    path = pool / "views/words.json"
    disk.write_json(path, {**disk.read_json(path), "kept": 1})
    return "views/words.json: damaged"


def no_json(pool: Path) -> str:
    path = files(pool, "scores/*/scores.json")[0]
    path.write_bytes(path.read_bytes()[:-5])
    return "scores.json: damaged"


def lost_pairs(pool: Path) -> str:
    path = pool / "pairs/part-00000.parquet"
    disk.write_parquet(path, disk.read_parquet(path).slice(1), disk.read_metadata(path))
    return "pairs/part-00000.parquet: has 23 rows, its footer says 24"


def repeated_pairs(pool: Path) -> str:
    path = pool / "pairs/part-00000.parquet"
    table = disk.read_parquet(path)
    disk.write_parquet(
        path, pa.concat_tables([table.slice(0, 23), table.slice(0, 1)]), disk.read_metadata(path)
    )
    return "pairs: 1 uids are there twice"


def other_pairs(pool: Path) -> str:
    path = pool / "pairs/part-00000.parquet"
    replace_first_uid(path, "0" * 32)
    return "shards: the rows attempted are not the pairs"


def repeated_attempt(pool: Path) -> str:
    path, record = pool / "shards/00000.parquet", PoolLayout(str(pool)).commit_record(0)
    replace_first_uid(path, disk.read_parquet(path)["uid"][1].as_py())
    hashes = {
        "sidecar_sha256": sidecar_hash(disk.read_parquet(path)),
        "sidecar_file_sha256": disk.file_sha256(path),
    }
    disk.write_json(record, {**disk.read_json(record), **hashes})
    return "shards: 1 pairs were attempted twice"


def replace_first_uid(path: Path, uid: str) -> None:
    table = disk.read_parquet(path)
    uids = pa.array([uid, *table["uid"].to_pylist()[1:]])
    position = table.column_names.index("uid")
    disk.write_parquet(path, table.set_column(position, "uid", uids), disk.read_metadata(path))


@pytest.mark.parametrize(
    "damage",
    [
        exchange_scores,
        other_rows,
        moved_image,
        repeated_keys,
        no_record,
        wrong_counts,
        another_shard,
        mask_of_another_view,
        funnel_that_does_not_end,
        no_json,
        lost_pairs,
        repeated_pairs,
        other_pairs,
        repeated_attempt,
    ],
)
def test_files_that_are_readable_and_wrong(pool: Path, damage: Callable[[Path], str]) -> None:
    expected = damage(pool)
    assert any(expected in line for line in verify(str(pool))), verify(str(pool))


def test_scores_and_views_of_an_older_state_are_stale(pool: Path) -> None:
    audited.retry_transient(str(pool))
    lines = verify(str(pool))
    assert len(lines) == 4
    assert all(": stale: the shards have changed since; run clipmill " in line for line in lines)
    audited.score_and_choose(str(pool))
    assert verify(str(pool)) == []


def test_the_masks_of_a_stale_view_are_not_compared_with_newer_rows(pool: Path) -> None:
    """As a killed purge leaves them: readers refuse the view, and nothing is damaged."""
    record = read_commits(str(pool)).record(0)
    stored = read_sidecar(str(pool), 0)["image_name"].is_valid().to_numpy()
    purged = np.arange(record.count) == np.flatnonzero(stored)[0]
    with IndexWriter(str(pool)) as index:
        index.forget([0])
        replaced = purge_shard(PoolWriter(str(pool)), record, purged)
        assert replaced is not None
        index.add(replaced)
    lines = verify(str(pool))
    assert len(lines) == 4
    assert all(": stale: " in line for line in lines), lines


def test_the_index_is_compared_with_the_records(pool: Path) -> None:
    update_index(str(pool))
    assert verify(str(pool)) == []
    [file] = files(pool, "index/*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    [line] = verify(str(pool))
    assert line.startswith("index: ")
    assert "clipmill audit reindex" in line
    file.unlink()
    assert [line[:7] for line in verify(str(pool))] == ["index: "]


def test_damage_of_a_part_of_the_index_names_the_shard(pool: Path) -> None:
    """The record is older than the index and says something else."""
    update_index(str(pool))
    path = Path(PoolLayout(str(pool)).commit_record(1))
    times = os.stat(pool / "index/index.json").st_mtime_ns - 10**9
    disk.write_json(path, {**disk.read_json(path), "group": "another"})
    os.utime(path, ns=(times, times))
    [line] = verify(str(pool))
    assert line.startswith(
        "index: shard 00001 is not as its commit record says; run clipmill audit reindex "
    )


def test_many_damages_are_counted(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "MAX_DAMAGES", 2)
    for path in files(pool, "shards/*.tar"):
        path.unlink()
    lines = verify(str(pool))
    assert len(lines) == 3
    assert lines[-1] == "and 1 further lines"


@pytest.mark.parametrize("name", ["pool.json", "recipe.json", "views/words.json"])
def test_a_changed_letter_of_a_document_is_noticed(pool: Path, name: str) -> None:
    counts.write_pool_json(read_commits(str(pool)), audited.RECIPE, {})
    disk.write_json(pool / "recipe.json", audited.RECIPE, sealed=True)
    assert verify(str(pool)) == []
    path = pool / name
    changed = path.read_text().replace("words", "wordz", 1)
    assert changed != path.read_text()
    path.write_text(changed)
    assert any(line.startswith(f"{name}: damaged: ") for line in verify(str(pool)))
