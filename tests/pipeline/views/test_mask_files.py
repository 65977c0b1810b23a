"""A view of many shards: the same rows as of few, in few files, without keys by shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards
from manifests.commits import read_commits, update_index
from manifests.layout import PoolLayout
from manifests.schema import Recipe, Rule, Source, View
from pipeline.audit.integrity import verify
from pipeline.views.files import choose_views, has_masks
from tests.support.folders import make_folders_small
from tests.support.small_pool import make_pool, rows
from train.data.view_rows import read_columns

VIEWS = (
    View(name="wide", rules=(Rule(name="wide", where="original_width >= 200"),)),
    View(
        name="top",
        rules=(Rule(name="top", where="original_width >= top(original_width, 0.25)"),),
    ),
    View(name="like", rules=(Rule(name="random", random_like="top", seed=1),)),
)
RECIPE = Recipe(name="r", source=Source(kind="files", paths=("x.csv",)), views=VIEWS)


def outcomes(pool: str, view: str) -> list[str | None]:
    files = AlignedFiles.of_view(pool, view)
    rules: list[str | None] = []
    for shard in read_commits(pool).names():
        rules += files.read(shard)[0]["rule"].to_pylist()
    return rules


def test_the_masks_of_a_large_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = make_pool(tmp_path / "flat", rows(24), per_shard=3)
    small = choose_views(flat, RECIPE)
    expected = {name: outcomes(flat, name) for name in small}
    make_folders_small(monkeypatch)
    pool = make_pool(tmp_path / "pool", rows(24), per_shard=3)
    update_index(pool)
    large = choose_views(pool, RECIPE)
    layout = PoolLayout(pool)
    for name, document in large.items():
        assert outcomes(pool, name) == expected[name]
        assert document.shards is None
        assert document.funnel == small[name].funnel
        assert document.thresholds == small[name].thresholds
        assert int(view_shards(pool, document)[1].sum()) == document.kept
        shards = list(read_columns(pool, name, ["uid"]))
        assert [shard.shard for shard in shards] == [f"{i:05d}" for i in range(8)]
        assert sum(int(shard.kept.sum()) for shard in shards) == document.kept
    assert disk.list_names(disk.join(layout.views, "wide")) == [
        "00000.parquet", "00001.parquet", "00002.parquet", "bundle-00001.parquet",
        "bundle-00002.parquet", "bundle-00003.parquet", "shards.parquet",
    ]  # fmt: skip
    assert verify(pool) == []
    assert [path for path in Path(layout.views).iterdir() if path.name.startswith(".")] == []


def test_a_view_that_lacks_a_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folders_small(monkeypatch)
    pool = make_pool(tmp_path, rows(18), per_shard=3)
    choose_views(pool, RECIPE, ["wide"])
    commits = read_commits(pool)
    bundle = Path(PoolLayout(pool).view_bundle("wide", 4))
    assert has_masks(commits, "wide")
    damaged = bytearray(bundle.read_bytes())
    damaged[40] ^= 1
    bundle.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"bundle-00002\.parquet is damaged"):
        list(read_columns(pool, "wide", ["uid"]))
    bundle.unlink()
    assert not has_masks(commits, "wide")
    choose_views(pool, RECIPE, ["wide"])
    assert len(list(read_columns(pool, "wide", ["uid"]))) == 6
