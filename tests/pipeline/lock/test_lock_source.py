"""A lock as the source of a pool: its recipe, its plan, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk, reader
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.lock import rebuild
from clipmill.pipeline.lock.lock_writer import write_lock
from clipmill.pipeline.lock.rebuild import (
    check_locked,
    check_not_locked,
    is_locked,
    lock_of,
    recipe_of_lock,
    write_lock_plan,
)
from clipmill.pipeline.planning.plan_files import (
    group_count,
    is_planned,
    lock_of_plan,
    read_plan,
    rows_of_shard,
)
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import locked_pools

AGENT = "user_agent=me/1 (me@lab.example)"


def lost(number: int) -> str | None:
    return {3: "http_4xx", 4: "optout_header"}.get(number)


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("lock")
    fetch = Fetch(
        rows_per_shard=10, user_agent="x/1", image_size=77, allow_private=True, per_host=9
    )
    pool = locked_pools.make_pool(folder / "pool", 40, lost, fetch=fetch)
    return write_lock(pool, str(folder / "a.parquet")).path


def test_the_recipe_has_the_image_settings_of_the_lock_and_none_of_its_permissions(
    lock: str,
) -> None:
    recipe = recipe_of_lock(lock, [AGENT, "per_host=3", "allow_ports=[80, 8080]"])
    assert is_locked(recipe)
    assert recipe.fetch.image_size == 77
    assert (recipe.fetch.per_host, recipe.fetch.allow_ports) == (3, (80, 8080))
    assert not recipe.fetch.allow_private
    assert recipe.fetch.user_agent == "me/1 (me@lab.example)"
    assert (recipe.filters, recipe.views, recipe.name) == ((), (), "ours")
    plain = disk.to_plain(recipe)
    assert disk.from_plain(Recipe, plain) == recipe


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([], r"say who asks, with --set user_agent="),
        ([AGENT, "image_size=5"], r"--set image_size: the lock decides it"),
        ([AGENT, "engine=img2dataset"], r"fetch\.engine is not used by .* kind lock"),
        ([AGENT, "rows_per_shard=5"], r"fetch\.rows_per_shard is not used"),
        ([AGENT, "per_hots=5"], r"per_hots"),
        ([AGENT, "per_host=many"], r"--set: per_host is 'many'; it must be a whole number"),
        ([AGENT, "per_host=0"], r"per_host is 0; it must lie in 1"),
        ([AGENT, "per_host"], r"--set 'per_host' is not KEY=VALUE"),
        ([AGENT, "per_host=[1"], r"--set per_host: '\[1' is not a YAML value"),
    ],
)
def test_settings_that_cannot_work_are_named(lock: str, settings: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        recipe_of_lock(lock, settings)
    assert "\n" not in str(caught.value)


def test_the_plan_has_the_shards_of_the_lock(lock: str, tmp_path: Path) -> None:
    pool, _ = locked_pools.plan_from(lock, tmp_path / "pool")
    first = str(Path(lock).parent / "pool")
    ours, theirs = read_plan(PoolLayout(pool)), read_plan(PoolLayout(first))
    assert ours.rows.tolist() == theirs.rows.tolist()
    assert ours.groups.tolist() == theirs.groups.tolist()
    assert group_count(PoolLayout(pool)) == group_count(PoolLayout(first))
    assert len(set(ours.ids.to_pylist())) == len(ours)
    for shard in range(len(ours)):
        for own, other in zip(
            rows_of_shard(PoolLayout(pool), shard),
            rows_of_shard(PoolLayout(first), shard),
            strict=True,
        ):
            if other.link == 4:
                assert (own.url, own.caption, own.locked_outcome) == (None, None, "withheld")
                assert own.uid != other.uid
                continue
            assert own.locked_outcome == (lost(other.link or 0) or "stored")
            assert own.locked_sha256 is None or len(own.locked_sha256) == 64
            same = {"locked_outcome": None, "locked_sha256": None}
            assert dataclasses.replace(own, **same) == other
    assert lock_of_plan(PoolLayout(first)) is None


def test_a_second_build_needs_the_same_lock_and_settings(lock: str, tmp_path: Path) -> None:
    pool, recipe = locked_pools.plan_from(lock, tmp_path / "pool")
    before = (tmp_path / "pool" / "plan" / "plan.json").read_bytes()
    moved = tmp_path / "moved.parquet"
    moved.write_bytes(Path(lock).read_bytes())
    renamed = recipe_of_lock(str(moved), ["user_agent=other/2", "per_host=9"])
    write_lock_plan(PoolWriter(pool), renamed)  # neither a name nor manners decide a pool
    assert (tmp_path / "pool" / "plan" / "plan.json").read_bytes() == before
    strict = recipe_of_lock(lock, [AGENT, "optout=strict"])
    with pytest.raises(ValueError, match=r"fetch\.optout was 'respect' and is 'strict'"):
        write_lock_plan(PoolWriter(pool), strict)
    other = locked_pools.make_pool(tmp_path / "other", 20)
    of_other = write_lock(other, str(tmp_path / "b.parquet")).path
    with pytest.raises(ValueError, match=r"was begun from lock .*, and .*b\.parquet is lock"):
        write_lock_plan(PoolWriter(pool), recipe_of_lock(of_other, [AGENT]))
    with pytest.raises(ValueError, match=r"was built from another source"):
        write_lock_plan(PoolWriter(other), recipe)
    with pytest.raises(ValueError, match=r"was begun from lock .* source of kind table"):
        check_not_locked(PoolLayout(pool), locked_pools.local_recipe())
    check_not_locked(PoolLayout(other), locked_pools.local_recipe())
    check_not_locked(PoolLayout(pool), recipe)


def test_a_plan_that_was_stopped_is_written_again(
    lock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = locked_pools.plan_from(lock, tmp_path / "whole")
    real = disk.publish

    def stop(staged: Any, path: Any) -> None:
        real(staged, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "publish", stop)
    with pytest.raises(KeyboardInterrupt):
        locked_pools.plan_from(lock, tmp_path / "pool")
    assert not is_planned(PoolLayout(str(tmp_path / "pool")))
    monkeypatch.undo()
    locked_pools.plan_from(lock, tmp_path / "pool")
    for path in sorted((tmp_path / "whole" / "plan").iterdir()):
        again = tmp_path / "pool" / "plan" / path.name
        assert again.read_bytes() == path.read_bytes()
    assert whole


def test_a_lock_of_local_files_cannot_be_built(tmp_path: Path) -> None:
    source = Source(kind="files", paths=("captions.csv",))
    pool = locked_pools.make_pool(tmp_path / "pool", 10)
    recipe = dataclasses.replace(locked_pools.local_recipe(), source=source)
    disk.write_json(PoolLayout(pool).recipe_json, recipe)
    path = write_lock(pool, str(tmp_path / "a.parquet")).path
    with pytest.raises(ValueError, match=r"is of a pool of local files"):
        recipe_of_lock(path, [AGENT])
    with pytest.raises(ValueError, match=r"is of a pool of local files"):
        check_locked(Recipe(name="x", source=Source(kind="lock", paths=(path,))))


def test_a_lock_with_nothing_to_ask_for_is_refused(tmp_path: Path) -> None:
    pool = locked_pools.make_pool(tmp_path / "pool", 10)
    path = write_lock(pool, str(tmp_path / "a.parquet")).path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild, "STORED", "never")
        with pytest.raises(ValueError, match=r"no row with a URL and a hash"):
            locked_pools.plan_from(path, tmp_path / "b")
    assert not is_planned(PoolLayout(str(tmp_path / "b")))


def test_a_recipe_may_have_a_lock_as_its_source(lock: str, tmp_path: Path) -> None:
    text = f"name: larger\nsource: {{kind: lock, paths: [{lock}]}}\n"
    (tmp_path / "r.yaml").write_text(text + "fetch: {image_size: 512, user_agent: me/1}\n")
    recipe = reader.read_manifest(tmp_path / "r.yaml", Recipe)
    assert lock_of(recipe).path == lock
    assert recipe.fetch.image_size == 512
    two = dataclasses.replace(recipe, source=Source(kind="lock", paths=(lock, lock)))
    with pytest.raises(ValueError, match=r"a source of kind lock has one"):
        check_locked(two)
    extra = Source(kind="lock", paths=(lock,), extra_columns={"score": "float"})
    with pytest.raises(ValueError, match=r"extra_columns score: 'float' is not in .*not there"):
        check_locked(dataclasses.replace(recipe, source=extra))
