"""A repair mends what was damaged and nothing else; afterwards verify finds nothing, or the line
says what is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import Bundle
from clipmill.manifests.commits import read_commits, read_index_document, update_index
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit import repair
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.audit.purge import purge_rows
from clipmill.pipeline.audit.repair import LOST, repair_lines, repair_pool
from clipmill.pipeline.executor.tickets import Report, Tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import read_commit_record
from tests.support import audited
from tests.support.bundles import damage_shard
from tests.support.sidecars import read_sidecar


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    recipe = audited.local_recipe(folder, 12, missing=1, fetch=Fetch(rows_per_shard=5))
    recipe_run.build(recipe, str(folder / "pool"), engine="inline")
    return folder / "pool"


@pytest.fixture
def pool(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "pool"))


def test_no_index_is_made_where_there_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no shards/; is it the folder of a pool"):
        repair.reindex(PoolWriter(str(tmp_path)))
    assert read_index_document(PoolLayout(str(tmp_path))) is None


def values(pool: Path, shard: int) -> list[dict[str, object]]:
    volatile = ("fetched_at", "elapsed_ms", "attempts")
    return read_sidecar(str(pool), shard).drop_columns(list(volatile)).to_pylist()


def test_a_whole_pool_is_left_alone(pool: Path) -> None:
    before = {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()}
    result = repair_pool(PoolWriter(str(pool)))
    assert (result.done, result.left) == ((), ())
    assert repair_lines(result) == ["nothing is damaged"]
    assert {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(b"PAR1")])
def test_a_sidecar_is_rebuilt_from_its_tar(pool: Path, damage: Callable[[Path], None]) -> None:
    # Which shard has the row that is not stored depends on the path of the images.
    shard = next(n for n in range(3) if not count_of(str(pool), f"{n:05d}"))
    tar_path = pool / f"shards/{shard:05d}.tar"
    before, tar = values(pool, shard), tar_path.read_bytes()
    damage(pool / f"shards/{shard:05d}.parquet")
    result = repair_pool(PoolWriter(str(pool)))
    assert result.left == ()
    assert verify(str(pool)) == []
    assert values(pool, shard) == before
    assert tar_path.read_bytes() == tar
    record = read_commit_record(PoolLayout(str(pool)), shard)
    assert record is not None
    assert record.revision == 1


def test_rows_that_are_not_stored_keep_the_only_reason_of_the_shard(pool: Path) -> None:
    shard = next(n for n in range(3) if count_of(str(pool), f"{n:05d}"))
    (pool / f"shards/{shard:05d}.parquet").unlink()
    result = repair_pool(PoolWriter(str(pool)))
    assert LOST not in repair_lines(result)[0]
    assert {row["reason"] for row in values(pool, shard)} == {None, "missing_file"}
    # Their error messages are lost, so that the sidecar is another one.
    assert all(": stale: " in line for line in verify(str(pool)))
    recipe_run.build(recipe_of(pool), str(pool), engine="inline")
    assert verify(str(pool)) == []


def test_a_purged_row_stays_purged_where_its_sidecar_is_lost(pool: Path) -> None:
    """With another reason it would be asked for again."""
    shard = next(n for n in range(3) if count_of(str(pool), f"{n:05d}"))
    stored = next(row for row in read_sidecar(str(pool), shard).to_pylist() if not row["reason"])
    purge_rows(PoolWriter(str(pool)), {"uid": {stored["uid"]}})
    Path(PoolLayout(str(pool)).sidecar(shard, 1)).unlink()
    lines = repair_lines(repair_pool(PoolWriter(str(pool))))
    assert any(f"1 rows that are not stored have the reason {LOST}" in line for line in lines)
    (row,) = [row for row in values(pool, shard) if row["uid"] == stored["uid"]]
    assert (row["reason"], row["class"]) == ("purged", "refused")
    assert (row["url"], row["caption"]) == (None, None)
    assert count_pool(read_commits(str(pool))).problems == ()


def test_rows_whose_outcome_is_lost_can_be_asked_again(audited_pool: Path, tmp_path: Path) -> None:
    pool = str(shutil.copytree(audited_pool, tmp_path / "pool"))
    shard = next(name for name in ("00000", "00001", "00002") if len(count_of(pool, name)) > 1)
    Path(PoolLayout(pool).sidecar(shard)).unlink()
    lines = repair_lines(repair_pool(PoolWriter(pool)))
    assert any(f"have the reason {LOST}: `build --retry transient`" in line for line in lines)
    rows = read_sidecar(pool, shard).to_pylist()
    assert {row["reason"] for row in rows} == {None, LOST}
    assert {row["class"] for row in rows} == {None, "transient"}
    assert all(row["url"] for row in rows)
    assert count_pool(read_commits(pool)).problems == ()


def count_of(pool: str, shard: str) -> dict[str, int]:
    record = read_commit_record(PoolLayout(pool), shard)
    assert record is not None
    return record.reasons


def test_the_rows_of_a_damaged_tar_are_fetched_again(pool: Path) -> None:
    tar = pool / "shards/00001.tar"
    before, others = tar.read_bytes(), (pool / "shards/00000.tar").stat().st_mtime_ns
    tar.write_bytes(before[:2000] + b"\xff" + before[2001:])
    result = repair_pool(PoolWriter(str(pool)))
    assert result.left == ()
    assert any("00001: fetched again: " in line for line in result.done)
    assert (pool / "shards/00001.r1.tar").read_bytes() == before
    assert not tar.exists()
    assert (pool / "shards/00000.tar").stat().st_mtime_ns == others
    assert verify(str(pool)) == []


def test_a_shard_that_no_report_names_is_not_called_fetched(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("00000", "00001"):
        tar = pool / f"shards/{name}.tar"
        tar.write_bytes(tar.read_bytes()[:2000])

    def none_done(_: object, tickets: Tickets, **__: object) -> Report:
        first, _second = tickets
        return Report(failures=2, failed={first.id: "no space"})

    monkeypatch.setattr(repair, "execute", none_done)
    lines = repair_lines(repair_pool(PoolWriter(str(pool))))
    assert "failed  00000: could not be fetched again: no space" in lines
    assert "failed  00001: could not be fetched again: the log has the reason" in lines
    assert not any(line.startswith("mended") for line in lines)


def test_scores_and_masks_are_removed_and_named(pool: Path) -> None:
    [columns] = pool.glob("scores/*/bundle-00000.parquet")
    damage_shard(columns, 1)
    (pool / "views/raw/bundle-00000.parquet").unlink()
    lines = repair_lines(repair_pool(PoolWriter(str(pool))))
    assert sum("run clipmill score" in line for line in lines) == 1
    assert sum("run clipmill filter" in line for line in lines) == 1
    assert list(Bundle(str(columns)).shards) == ["00000", "00002"]
    assert verify(str(pool)) == []
    recipe_run.build(recipe_of(pool), str(pool), engine="inline")
    assert list(Bundle(str(columns)).shards) == ["00000", "00001", "00002"]
    assert (pool / "views/raw/bundle-00000.parquet").exists()
    assert verify(str(pool)) == []


def recipe_of(pool: Path) -> Recipe:
    recipe: Recipe = disk.from_plain(Recipe, disk.read_json(pool / "recipe.json"))
    return recipe


def test_a_record_comes_from_the_index_and_an_index_from_the_records(pool: Path) -> None:
    update_index(str(pool))
    record = Path(PoolLayout(str(pool)).commit_record(1))
    before = record.read_bytes()
    record.write_bytes(before[:40])
    result = repair_pool(PoolWriter(str(pool)))
    assert record.read_bytes() == before
    assert result.left == ()
    [file] = pool.glob("index/commits-*.parquet")
    file.write_bytes(b"")
    assert verify(str(pool)) != []
    assert repair_pool(PoolWriter(str(pool))).left == ()
    assert verify(str(pool)) == []


def test_what_cannot_be_mended_is_named(pool: Path) -> None:
    part = pool / "pairs/part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    result = repair_pool(PoolWriter(str(pool)))
    assert any("pairs/part-00000.parquet: damaged" in line for line in result.left)
    with pytest.raises(ValueError, match="is it the folder of a pool"):
        repair_pool(PoolWriter(str(pool / "nothing")))


def test_documents_of_the_pool_are_made_anew_and_a_changed_recipe_is_named(pool: Path) -> None:
    parts, document = pool / "parts.parquet", pool / "pool.json"
    content = parts.read_bytes().replace(b"\x18\x04part\x00", b"\x18\x04`art\x00")
    parts.write_bytes(content)  # a table with a column of another name
    document.write_text(document.read_text().replace('"stored": 11', '"stored": 12'))
    names = [line.partition(":")[0] for line in verify(str(pool))]
    assert names == ["parts.parquet", "pool.json"]
    result = repair_pool(PoolWriter(str(pool)))
    assert (len(result.done), result.left) == (2, ())
    assert '"stored": 11' in document.read_text()
    recipe = pool / "recipe.json"
    before = recipe.read_text()
    recipe.write_text(before.replace('"local"', '"changed"'))
    [line] = repair_pool(PoolWriter(str(pool))).left
    assert line.startswith("recipe.json: damaged: ")
    assert "was changed after clipmill wrote it" in line
