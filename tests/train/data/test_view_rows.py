from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from manifests import disk
from manifests.layout import PoolLayout
from manifests.records import ScoreSetDocument, read_document
from tests.support.bundles import change_shard, mask_of, scores_of, write_masks, write_scores
from train.data import view_rows
from train.data.view_rows import ViewRows, open_view, read_columns

Make = Callable[..., Any]


def column(pool: str, view: str, name: str) -> list[Any]:
    """A column of the kept rows of all shards."""
    values: list[Any] = []
    for shard in read_columns(pool, view, [name]):
        values += shard.kept_columns()[name].to_pylist()
    return values


def members(pool: str, shard: int) -> dict[str, bytes]:
    with tarfile.open(disk.join(pool, "shards", f"{shard:05d}.tar")) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def assert_reads_its_members(rows: ViewRows, pool: str) -> None:
    for shard in range(len(rows.shards)):
        spans = members(pool, shard)
        of = rows.shard(shard)
        for row in range(rows.shard_rows[shard]):
            assert rows.read_image(shard, row) == spans[f"{of.keys[row]}.jpg"]


def test_a_view_gives_the_bytes_and_tokens_of_its_kept_rows(
    make_pool: Make, tmp_path: Path
) -> None:
    pool = make_pool(
        tmp_path / "pool", [6, 4, 5], keep=lambda shard, row: (shard + row) % 2 == 0, failed=1
    )
    rows = open_view(pool, "all")
    assert rows.shards.tolist() == [0, 1, 2]
    assert rows.shard_rows.tolist() == [3, 1, 2]
    assert rows.shard(0).keys.to_pylist() == ["000000000", "000000002", "000000004"]
    assert rows.shard(1).keys.to_pylist() == ["000010001"]
    assert_reads_its_members(rows, pool)
    captions = column(pool, "all", "caption")
    tokens = [rows.shard(s).tokens_of(r) for s, n in enumerate(rows.shard_rows) for r in range(n)]
    assert [len(t) for t in tokens] == [len(c.split()) + 2 for c in captions]
    assert all(t[0] == 49_406 and t[-1] == 49_407 for t in tokens)


def test_a_tar_may_lie_elsewhere(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 1)
    expected = open_view(pool, "all").read_image(0, 2)
    tar, record = tmp_path / "pool/shards/00000.tar", tmp_path / "pool/shards/00000_stats.json"
    tar.rename(tmp_path / "elsewhere.tar")
    disk.write_json(record, {**disk.read_json(record), "tar": str(tmp_path / "elsewhere.tar")})
    assert open_view(pool, "all").read_image(0, 2) == expected


def open_tars(pool: str) -> int:
    """Number of tars of a pool that this process has open; other threads may open other files."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists this folder
            target = os.readlink(descriptor)
            count += target.startswith(os.path.realpath(pool)) and target.endswith(".tar")
    return count


@pytest.mark.slow
def test_only_so_many_shards_and_tars_are_held(
    tiny_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_rows, "OPEN_TARS", 1)
    rows = open_view(tiny_pool, "all", cached_shards=1)
    first = rows.shard(0)
    assert rows.shard(0) is first
    rows.shard(1)
    assert rows.shard(0) is not first
    gc.collect()  # views of earlier tests
    before = open_tars(tiny_pool)
    for _ in range(3):
        assert_reads_its_members(rows, tiny_pool)
    assert open_tars(tiny_pool) == before + 1
    del rows
    gc.collect()
    assert open_tars(tiny_pool) == before


def test_threads_may_read_while_tars_are_closed_and_opened(
    tiny_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_rows, "OPEN_TARS", 1)
    rows = open_view(tiny_pool, "all")
    asked = [(k % 3, k % 16) for k in range(300)]
    expected = {span: rows.read_image(*span) for span in asked}
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda span: rows.read_image(*span) == expected[span], asked))


def test_an_unknown_view_is_named_with_the_nearest(tiny_pool: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no view 'haf'; did you mean 'half'\\?; it has all, half"):
        open_view(tiny_pool, "haf")
    with pytest.raises(ValueError, match="it has none"):
        open_view(str(tmp_path / "nowhere"), "all")


def test_a_view_of_an_older_pool_is_refused_with_what_mends_it(
    make_pool: Make, add_view: Make, tmp_path: Path
) -> None:
    pool = make_pool(tmp_path / "pool", 4, 2)
    record = disk.join(pool, "shards", "00001_stats.json")
    disk.write_json(record, {**disk.read_json(record), "sidecar_sha256": "0" * 64})
    with pytest.raises(ValueError, match=rf"stale.*clipmill filter {pool} --recipe RECIPE"):
        open_view(pool, "all")
    add_view(pool, "all")
    assert open_view(pool, "all").shard_rows.tolist() == [4, 4]


def test_a_view_must_fit_its_shard(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 2)
    change_shard(PoolLayout(pool).view_bundle("all", 0), 0, lambda mask: mask.slice(0, 3))
    with pytest.raises(ValueError, match="does not fit its shard"):
        open_view(pool, "all").shard(0)


def test_a_view_may_not_keep_rows_that_are_not_stored(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 1, failed=1)
    mask = mask_of(pool, "all", 0).set_column(0, "kept", [[True] * 4])
    shards = disk.to_plain(write_masks(pool, "all", {0: mask}))
    manifest = PoolLayout(pool).view_json("all")
    disk.write_json(manifest, {**disk.read_json(manifest), "shards": shards})
    with pytest.raises(ValueError, match="keeps rows of shard 00000 that are not stored"):
        open_view(pool, "all").shard(0)


def test_tokens_of_another_tokenizer_do_not_do(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 1, tokenizer="other")
    with pytest.raises(
        ValueError,
        match=r"no tokens of tokenizer 'clip' \(has: other\).*clipmill score .* --filters tokens",
    ):
        open_view(pool, "all", "clip")
    assert open_view(pool, "all", "other").shard_rows.tolist() == [4]


def test_of_several_token_sets_the_highest_version_is_read(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", 4, 1)
    layout = PoolLayout(pool)
    for name, version in (("tokens@ffff", 2), ("tokens@0000", 10), ("tokens@5555", 9)):
        for file in ("bundle-00000.parquet", "scores.json"):
            source = disk.join(layout.score_set("tokens@0123456789ab"), file)
            disk.write_bytes(disk.join(layout.score_set(name), file), disk.read_bytes(source))
        scores = read_document(layout.score_set_json(name), ScoreSetDocument)
        scores = dataclasses.replace(scores, version=version, id=name.partition("@")[2])
        disk.write_json(layout.score_set_json(name), scores)
    assert open_view(pool, "all").token_set == "tokens@0000"
    disk.remove(layout.score_bundle("tokens@0000", 0))
    assert open_view(pool, "all").token_set == "tokens@5555"  # the newest that is complete


def test_tokens_that_lack_a_shard_or_were_made_for_other_rows_are_refused(
    make_pool: Make, tmp_path: Path
) -> None:
    pool = make_pool(tmp_path / "pool", 4, 2)
    name = "tokens@0123456789ab"
    change_shard(PoolLayout(pool).score_bundle(name, 1), 1, uids="0" * 64)
    rows = open_view(pool, "all")
    assert len(rows.shard(0).keys) == 4
    with pytest.raises(ValueError, match="made for other rows"):
        rows.shard(1)
    write_scores(pool, name, {0: (scores_of(pool, name, 0), {})})
    with pytest.raises(ValueError, match="lack shards that were added since"):
        open_view(pool, "all")
