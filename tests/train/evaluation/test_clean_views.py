from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from manifests import disk
from manifests.hashes import phash
from manifests.layout import PoolLayout, uids_checksum
from manifests.records import ScoreSetDocument, ViewDocument, read_document
from manifests.schema import Ablation, Blend, TaskSpec
from tests.support import commands
from tests.support.ablations import changed, tiny_ablation, two_classes
from tests.support.tasks import recompress
from tests.train.conftest import build_pool, write_view
from train.ablation.arms import expand_runs, stale_because
from train.ablation.plan import check_pools, planned_drops
from train.data.view_rows import read_columns
from train.evaluation.overlap import DroppedRows, clean_blend, clean_name

ROWS = [(0, 3), (2, 5)]  # (shard, row) of images that the evaluation has too; `half` keeps both


def image_of(pool: str, shard: int, row: int) -> bytes:
    layout = PoolLayout(pool)
    values = disk.read_parquet(layout.sidecar(shard)).slice(row, 1).to_pylist()[0]
    tar = disk.join(layout.shards, f"{shard:05d}.tar")
    return disk.read_bytes(tar, values["image_offset"], values["image_length"])


def score_hashes(pool: str, other: set[tuple[int, int]]) -> None:
    """The column phash of every shard: of the image for the rows in `other`, else far from all."""
    layout, name = PoolLayout(pool), "picture@0123456789ab"
    checksums = {}
    for shard in range(3):
        uids = disk.read_parquet(layout.sidecar(shard), ["uid"])["uid"]
        hashes = np.random.default_rng(shard).integers(0, 2**62, len(uids))
        for row in range(len(uids)):
            if (shard, row) in other:
                with Image.open(io.BytesIO(image_of(pool, shard, row))) as image:
                    hashes[row] = phash(image)
        checksums[f"{shard:05d}"] = uids_checksum(uids)
        columns = pa.table({"phash": pa.array(hashes, pa.int64())})
        path = layout.score_columns(name, shard)
        disk.write_parquet(path, columns, {"uids": checksums[f"{shard:05d}"]})
    document = ScoreSetDocument(
        name="picture", id="0123456789ab", version=1, options={}, identity="", rows=48, stored=48,
        columns=("phash",), shards=checksums, fingerprint="", scored=48, seconds=0.0,
    )  # fmt: skip
    disk.write_json(layout.score_set_json(name), document)


@pytest.fixture
def study(tmp_path: Path) -> tuple[Ablation, str, str]:
    """An ablation that drops near copies, its pool and its folder."""
    pool, out = build_pool(tmp_path / "pool"), str(tmp_path / "out")
    write_view(pool, "half", 0.5)
    data = Path(two_classes(tmp_path / "data"))
    (data / "red" / "8.jpg").write_bytes(recompress(image_of(pool, *ROWS[0])))
    (data / "blue" / "9.jpg").write_bytes(image_of(pool, *ROWS[1]))
    score_hashes(pool, set(ROWS))
    task = {"name": "colours", "kind": "classification", "data": str(data), "near_overlap": "drop"}
    controls = {"random_like": ["half"], "a_a": "raw"}
    tiny = tiny_ablation(pool, str(data), evaluate=[task], controls=controls)
    for seed in tiny.seeds:
        write_view(pool, f"random_like_half.seed-{tiny.random_draw(seed)}", 0.5)
    return tiny, pool, out


def kept_rows(pool: str, view: str) -> set[str]:
    uids: set[str] = set()
    for shard in read_columns(pool, view, ["uid"]):
        uids.update(shard.kept_columns()["uid"].to_pylist())
    return uids


def views_of(tiny: Ablation, out: str) -> dict[str, list[str]]:
    views: dict[str, list[str]] = {}
    for run in expand_runs(tiny, out):
        views.setdefault(run.arm, []).append(next(iter(run.blend.views)).partition("/")[2])
    return views


def test_every_arm_and_control_is_without_the_copies(study: tuple[Ablation, str, str]) -> None:
    tiny, pool, out = study
    copies = set()
    for shard, row in ROWS:
        table = disk.read_parquet(PoolLayout(pool).sidecar(shard), ["uid"])
        copies.add(table["uid"][row].as_py())
    planned = planned_drops(tiny, out)
    shared = check_pools(tiny, out)
    expected = []
    for arm, view, rows in (("raw", "all", 48), ("half", "half", 24)):
        expected.append(DroppedRows(arm=arm, pool=pool, view=view, rows=rows, dropped=2, images=2))
    assert shared is not None
    assert shared.dropped == planned == tuple(expected)
    views = views_of(tiny, out)
    assert kept_rows(pool, views["raw"][0]) == kept_rows(pool, "all") - copies
    assert kept_rows(pool, views["half"][0]) == kept_rows(pool, "half") - copies
    assert views["a_a"] == views["raw"]
    drawn = [kept_rows(pool, view) for view in views["random_like_half"]]
    assert [len(rows) for rows in drawn] == [22, 22]
    assert drawn[0] != drawn[1]
    assert not (drawn[0] | drawn[1]) & copies
    document = read_document(PoolLayout(pool).view_json(views["half"][0]), ViewDocument)
    assert document.funnel[-1] == ("selected", 22)


def test_the_views_are_found_again_and_follow_what_they_are_made_from(
    study: tuple[Ablation, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, pool, out = study
    check_pools(tiny, out)
    views = {
        name: Path(PoolLayout(pool).view_json(name)) for (name, *_) in views_of(tiny, out).values()
    }
    before = {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in views.items()}
    check_pools(tiny, str(Path(out) / "other"))  # another ablation of the same tasks
    assert before == {n: (p.read_bytes(), p.stat().st_mtime_ns) for n, p in views.items()}
    for path in views.values():
        path.unlink()
        shutil.rmtree(path.with_suffix(""))
    check_pools(tiny, out)
    assert {name: path.read_bytes() for name, path in views.items()} == {
        name: content for name, (content, _) in before.items()
    }
    score_hashes(pool, {ROWS[1]})  # one copy less: the first row is far from its image now
    shared = check_pools(tiny, out)
    assert shared is not None
    assert [each.dropped for each in shared.dropped] == [1, 1]
    changed_views = [name for name, path in views.items() if path.read_bytes() != before[name][0]]
    assert changed_views == list(views)


def test_a_pool_without_hashes_is_refused_with_the_command(
    study: tuple[Ablation, str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny, pool, out = study
    shutil.rmtree(PoolLayout(pool).scores)
    with pytest.raises(ValueError, match=r"no column phash; run clipmill score"):
        check_pools(tiny, out)
    manifest = tmp_path / "tiny.json"
    disk.write_json(manifest, tiny)
    assert commands.ablate(["plan", str(manifest), "--out", out]) == 2
    assert "has no column phash; run clipmill score" in capsys.readouterr().err


def test_a_blend_keeps_its_weights_and_a_live_one_is_refused(tmp_path: Path) -> None:
    task = TaskSpec(name="t", kind="classification", data="d", near_overlap="drop")
    blend = Blend(name="b", pools={"w": "/p"}, views={"w/a": 2.0}, caps={"w/a": 9})
    clean = f"w/{clean_name('a', [task])}"
    assert clean_blend(blend, [task]) == Blend(
        name="b", pools={"w": "/p"}, views={clean: 2.0}, caps={clean: 9}
    )
    listed = TaskSpec(name="t", kind="classification", data="d")
    assert clean_blend(blend, [listed]) is blend
    live = Blend(name="b", pools={"w": "/p"}, views={"w/stored": 1.0}, live=True)
    with pytest.raises(ValueError, match="arm 'b' trains on streams or on a pool that is being"):
        clean_blend(live, [task])


@pytest.mark.slow
def test_an_ablation_trains_without_the_copies(
    study: tuple[Ablation, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, _, out = study
    manifest = tmp_path / "tiny.json"
    disk.write_json(manifest, changed(tiny, controls={}))
    assert commands.ablate(["plan", str(manifest), "--out", out]) == 0
    line = "arm half: 2 of 24 rows of view half are dropped: near copies of 2 evaluation images"
    assert line in capsys.readouterr().out
    assert commands.ablate([str(manifest), "--out", out]) == 0
    results = json.loads(Path(out, "results.json").read_text())
    assert [each["dropped"] for each in results["dropped"]] == [2, 2]
    (run, *_) = expand_runs(changed(tiny, controls={}), out)
    assert stale_because(run) == []
    listed = changed(tiny, controls={}, evaluate=[
        {**disk.to_plain(tiny.evaluate[0]), "near_overlap": "list", "allow_overlap": True}
    ])  # fmt: skip
    assert stale_because(expand_runs(listed, out)[0]) != []
