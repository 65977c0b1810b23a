"""The files of a view: bundles of masks and the table of its shards, the same for any threads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards
from manifests.columns import VIEW
from manifests.commits import read_commits
from manifests.layout import PoolLayout
from manifests.schema import Recipe, Rule, Source, View
from pipeline.audit.integrity import verify
from pipeline.views.files import ViewMasks, choose_views, has_masks
from tests.support.folders import make_bundles_small
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


def test_the_masks_of_several_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_pool(tmp_path / "one", rows(15), per_shard=3)
    few = choose_views(one, RECIPE)
    expected = {name: outcomes(one, name) for name in few}
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path / "pool", rows(15), per_shard=3)
    layout = PoolLayout(pool)
    for name, document in choose_views(pool, RECIPE).items():
        assert document == few[name]
        assert outcomes(pool, name) == expected[name]
        assert int(view_shards(pool, document)[1].sum()) == document.kept
        shards = list(read_columns(pool, name, ["uid"]))
        assert [shard.shard for shard in shards] == [f"{i:05d}" for i in range(5)]
        assert sum(int(shard.kept.sum()) for shard in shards) == document.kept
        assert disk.list_names(disk.join(layout.views, name)) == [
            "bundle-00000.parquet", "bundle-00001.parquet", "bundle-00002.parquet",
            document.shards.file,
        ]  # fmt: skip
    assert verify(pool) == []
    assert [path for path in Path(layout.views).iterdir() if path.name.startswith(".")] == []


def test_units_that_end_in_any_order_are_written_in_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    given = [3, 0, 2, 1]
    content = []
    for order in (sorted(given), given):
        folder = tmp_path / str(order)
        masks = ViewMasks(folder)
        for unit in order:
            mask = pa.table({"kept": [unit > 1], "rule": ["r"]}, VIEW)
            masks.add(unit, [(f"{unit:05d}", mask, {"kept": int(unit > 1)})])
        masks.writer.close()
        content.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert content[0] == content[1]
    assert len(content[0]) == 2


def test_a_view_that_lacks_a_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path, rows(18), per_shard=3)
    document = choose_views(pool, RECIPE, ["wide"])["wide"]
    commits = read_commits(pool)
    bundle = Path(PoolLayout(pool).view_bundle("wide", 4))
    assert has_masks(commits, document)
    damaged = bytearray(bundle.read_bytes())
    damaged[40] ^= 1
    bundle.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"bundle-00002\.parquet is damaged"):
        list(read_columns(pool, "wide", ["uid"]))
    bundle.unlink()
    assert not has_masks(commits, document)
    choose_views(pool, RECIPE, ["wide"])
    assert len(list(read_columns(pool, "wide", ["uid"]))) == 6
