"""A view's own tars: its members byte for byte, finished after a kill, the same batches."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from manifests import disk
from manifests.aligned import AlignedFiles
from manifests.commits import read_commits, update_index
from manifests.layout import PoolLayout
from manifests.schema import Blend, Recipe, Rule, Source, View
from pipeline.audit.integrity import verify
from pipeline.audit.purge import purge_rows, read_criteria
from pipeline.views import materialise
from pipeline.views.files import choose_views
from pipeline.views.materialise import materialise_view, remove_copies
from tests.support import commands
from tests.support.folders import make_folders_small
from tests.support.small_pool import make_pool, rows
from tests.train.conftest import write_tokens
from train.config import TrainConfig, model_config
from train.data.loader import Batch, Loader

WIDE = View(name="wide", rules=(Rule(name="wide", where="original_width >= 200"),))
RECIPE = Recipe(name="r", source=Source(kind="files", paths=("x.csv",)), views=(WIDE,))


def members(tar: str) -> dict[str, bytes]:
    with tarfile.open(tar) as file:
        return {member.name: file.extractfile(member).read() for member in file}  # type: ignore[union-attr]


def assert_is_copy(pool: str, view: str) -> int:
    """Every tar of the view has the members of the kept rows and no others; how many tars."""
    layout, tars = PoolLayout(pool), 0
    commits = read_commits(pool)
    for shard in commits.names():
        source = members(commits.tar(int(shard)))
        mask = AlignedFiles.of_view(pool, view).read(shard, ["kept"])[0]["kept"].to_pylist()
        keys = disk.read_parquet(commits.sidecar(int(shard)))["key"].to_pylist()
        kept = {key for key, is_kept in zip(keys, mask, strict=True) if is_kept}
        path = layout.view_copy_tar(view, shard)
        if not kept:
            assert not disk.exists(path)
            continue
        tars += 1
        copy = members(path)
        assert copy == {name: source[name] for name in source if name.partition(".")[0] in kept}
        data = Path(path).read_bytes()
        for row in disk.read_parquet(layout.view_copy_sidecar(view, shard)).to_pylist():
            image = data[row["image_offset"] :][: row["image_length"]]
            assert image == copy[row["image_name"]]
    return tars


@pytest.fixture
def pool(tmp_path: Path) -> str:
    path = make_pool(tmp_path / "pool", rows(48), per_shard=8)
    choose_views(path, RECIPE)
    return path


def test_the_kept_members_and_no_others(pool: str) -> None:
    before = {p: p.read_bytes() for p in Path(pool).rglob("*") if p.is_file()}
    document = materialise_view(pool, "wide")
    assert assert_is_copy(pool, "wide") == document.shards == 5  # of 6: the first keeps none
    assert document.rows == choose_views(pool, RECIPE)["wide"].kept
    assert {p: p.read_bytes() for p in before} == before
    assert verify(pool) == []


def test_a_killed_run_is_finished_and_a_finished_one_is_not_repeated(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    copy = materialise.copy_tar_with

    def until_third(tar: str, *rest: object) -> object:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(tar)
        return copy(tar, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(materialise, "copy_tar_with", until_third)
    with pytest.raises(KeyboardInterrupt):
        materialise_view(pool, "wide")
    assert not disk.exists(PoolLayout(pool).view_copy_json("wide"))
    copied.clear()
    monkeypatch.setattr(
        materialise, "copy_tar_with", lambda tar, *rest: copied.append(tar) or copy(tar, *rest)
    )
    materialise_view(pool, "wide")
    assert len(copied) == 3
    assert assert_is_copy(pool, "wide") == 5
    materialise_view(pool, "wide")
    assert len(copied) == 3


def test_another_view_of_that_name_is_written_where_it_differs(pool: str) -> None:
    materialise_view(pool, "wide")
    wider = View(name="wide", rules=(Rule(name="wide", where="original_width >= 330"),))
    choose_views(pool, Recipe(name="r", source=RECIPE.source, views=(wider,)))
    times = {p: p.stat().st_mtime_ns for p in Path(pool, "materialised/wide").glob("*.tar")}
    materialise_view(pool, "wide")
    assert_is_copy(pool, "wide")
    now = {p: p.stat().st_mtime_ns for p in Path(pool, "materialised/wide").glob("*.tar")}
    same = {p.name for p, time in now.items() if times[p] == time}
    assert same == {"00003.tar", "00004.tar", "00005.tar"}  # all of their rows are wider
    assert {p.name for p in now} - same == {"00002.tar"}


def test_a_stale_view_and_a_damaged_tar_are_refused(pool: str) -> None:
    with pytest.raises(ValueError, match="view 'narrow' is not in"):
        materialise_view(pool, "narrow")
    path = Path(read_commits(pool).tar(3))
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00003\.tar is damaged or was changed"):
        materialise_view(pool, "wide")
    make_pool(Path(pool), rows(48), per_shard=8)
    record = disk.read_json(PoolLayout(pool).commit_record(3))
    disk.write_json(
        PoolLayout(pool).commit_record(3), {**record, "sidecar_sha256": "f" * 64}, sealed=True
    )
    with pytest.raises(ValueError, match="is older than the shards of"):
        materialise_view(pool, "wide")


def test_the_command(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.filter_pool(["materialise", pool, "wide", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shards"] == 5
    assert commands.filter_pool(["materialise", pool, "wide"]) == 0
    assert f"view wide: {document['rows']} rows in 5 tars" in capsys.readouterr().out
    assert commands.filter_pool(["materialise", pool, "wide", "--seed", "1"]) == 2
    assert commands.filter_pool(["materialise", pool, "nothing"]) == 2
    assert "view 'nothing' is not in" in capsys.readouterr().err


def test_a_purge_takes_the_copies_of_its_rows_along(pool: str) -> None:
    materialise_view(pool, "wide")
    sidecar = disk.read_parquet(PoolLayout(pool).view_copy_sidecar("wide", 4)).to_pylist()[0]
    copy = Path(PoolLayout(pool).view_copy_tar("wide", 4))
    image = copy.read_bytes()[sidecar["image_offset"] :][: sidecar["image_length"]]
    purge_rows(pool, read_criteria([f"uid={sidecar['uid']}"]))
    assert not disk.exists(PoolLayout(pool).view_copy_json("wide"))
    for path in Path(pool).rglob("*"):
        if path.is_file():
            assert image not in path.read_bytes(), path
            assert sidecar["url"].encode() not in path.read_bytes(), path
    materialise_view(pool, "wide")
    assert_is_copy(pool, "wide")


def batches(pool: str, mode: str) -> list[Batch]:
    config = TrainConfig(
        model="test", samples_seen=160, batch_size=8, lanes=4, window=2, threads=0,
        device="cpu", warmup=0, read_mode=mode,  # type: ignore[arg-type]
    )  # fmt: skip
    blend = Blend(name="b", pools={"p": pool}, views={"p/wide": 1.0})
    return list(Loader(blend, config, model_config(config)))


def test_training_reads_them_and_its_batches_stay(pool: str) -> None:
    write_tokens(pool)
    expected = batches(pool, "mask")
    materialise_view(pool, "wide")
    for tar in Path(pool, "shards").glob("*.tar"):
        tar.rename(tar.with_suffix(".away"))
    for one, other in zip(batches(pool, "auto"), expected, strict=True):
        assert one.keys == other.keys
        assert (one.image_BHWC == other.image_BHWC).all()
        assert (one.tokens_BT == other.tokens_BT).all()
    with pytest.raises(ValueError, match="cannot be read"):
        batches(pool, "mask")


def test_the_tars_of_a_large_pool_lie_in_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folders_small(monkeypatch)
    pool = make_pool(tmp_path / "pool", rows(48), per_shard=8)
    update_index(pool)
    choose_views(pool, RECIPE)
    materialise_view(pool, "wide")
    assert assert_is_copy(pool, "wide") == 5
    assert "/00002/00005.tar" in PoolLayout(pool).view_copy_tar("wide", 5)


def test_a_pool_in_a_store_has_its_copies_there(pool: str) -> None:
    remote = "memory://test_materialise/pool"
    for path in Path(pool).rglob("*"):
        if path.is_file():
            disk.write_bytes(f"{remote}/{path.relative_to(pool)}", path.read_bytes())
    expected = materialise_view(pool, "wide")
    assert materialise_view(remote, "wide") == expected
    for path in Path(pool, "materialised/wide").glob("*.tar"):
        assert disk.read_bytes(f"{remote}/{path.relative_to(pool)}") == path.read_bytes()
    assert remove_copies(remote, range(6)) == 5
    assert disk.list_names(f"{remote}/materialised/wide") == []
    assert remove_copies(remote, range(6)) == 0
