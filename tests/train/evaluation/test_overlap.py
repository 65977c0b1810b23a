from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Part, Pool
from clipmill.manifests.records import ScoreSetDocument, read_document
from clipmill.train.evaluation import overlap
from clipmill.train.evaluation.overlap import (
    SharedImage,
    SharedImages,
    count_in_arms,
    find_shared_images,
    overlap_lines,
    refuse_identical,
    refuse_near,
)
from clipmill.train.formats import open_clip_files
from tests.support import commands
from tests.support.bundles import write_scores
from tests.support.tasks import changed, pool_with, recompress


def data_of(task, file):
    return (Path(task.data) / file).read_bytes()


def test_an_image_in_both_is_refused_by_name(colours, tmp_path):
    pool = pool_with(tmp_path / "pool", [b"other", data_of(colours, "green/3.png"), None])
    shared = find_shared_images([pool], [colours])
    assert shared.images == (
        SharedImage(
            task="colours", file="green/3.png", pool=pool, key="000000001", uid=f"{1:032x}"
        ),
    )
    message = r"image green/3\.png is also in the pool .* \(key 000000001, uid 0+1\); remove it"
    with pytest.raises(ValueError, match=message):
        refuse_identical(shared, [colours], "x.json")
    refuse_identical(shared, [changed(colours, allow_overlap=True)], "x.json")
    assert shared.count_files([colours], near=False) == {"colours": 1}


def test_only_stored_rows_of_committed_shards_count(colours, tmp_path):
    gone = pool_with(tmp_path / "a", [b"other", None])
    uncommitted = pool_with(tmp_path / "b", [data_of(colours, "green/3.png")])
    Path(PoolLayout(uncommitted).commit_record(0)).unlink()
    assert find_shared_images([gone, uncommitted], [colours]).images == ()


def test_the_same_image_at_jpeg_90_is_a_near_duplicate(colours, tmp_path):
    copies = [
        recompress(data_of(colours, f"green/{i}.{'png' if i % 2 else 'jpg'}")) for i in (1, 2)
    ]
    same = data_of(colours, "green/3.png")
    pool = pool_with(tmp_path / "pool", [copies[0], None, copies[1], same], hashed=True)
    shared = find_shared_images([pool], [colours])
    near = {(image.file, image.key) for image in shared.of_task("colours", near=True)}
    assert near == {("green/1.png", "000000000"), ("green/2.jpg", "000000002")}
    assert [i.file for i in shared.of_task("colours", near=False)] == ["green/3.png"]
    assert shared.without_phash == ()
    refuse_identical(shared, [changed(colours, allow_overlap=True)], "x.json")


def test_near_duplicates_are_refused_where_the_task_says_so_and_a_view_keeps_them(
    colours, tmp_path, monkeypatch
):
    copy = recompress(data_of(colours, "green/1.png"))
    pool = pool_with(
        tmp_path / "pool", [copy, None, data_of(colours, "dark_red/1.png")], hashed=True
    )
    shared = find_shared_images([pool], [colours])
    strict = changed(colours, near_overlap="refuse")
    kept = {"all": [f"{0:032x}", f"{2:032x}"], "clean": [f"{2:032x}"]}

    def scan(_, columns, view):
        uids = pa.chunked_array([[f"{number:032x}" for number in range(3)]])
        table, mask = pa.table({"uid": uids}), np.isin(uids.to_numpy(), kept[view])
        return [Part(shard="00000", table=table, kept=mask, rule=pa.chunked_array([[]]))]

    monkeypatch.setattr(Pool, "scan", scan)
    with pytest.raises(ValueError, match=r"1 near duplicates .* in the view all of .*green/1\.png"):
        refuse_near(shared, [strict], [(pool, "clean"), (pool, "all")])
    refuse_near(shared, [strict], [(pool, "clean")])
    refuse_near(shared, [colours], [(pool, "all")])
    kept["random_like_clean.seed-0"] = kept["all"]
    with pytest.raises(ValueError, match=r"a random subset is drawn from all stored rows: export"):
        refuse_near(shared, [strict], [(pool, "random_like_clean.seed-0")])
    runs = [("raw", [(pool, "all")]), ("clean", [(pool, "clean")]), ("none", [("other", "all")])]
    runs += [("random", [(pool, "clean")]), ("random", [(pool, "random_like_clean.seed-0")])]
    kept_of_run = {"raw": 2, "clean": 1, "none": 0, "random": 2}
    assert count_in_arms(shared, [colours], runs) == {"colours": kept_of_run}
    known = dataclasses.replace(shared, arms={"colours": kept_of_run})
    assert overlap_lines(known, [colours], "x.json")[-1] == (
        "task colours: images that an arm's training data show too: "
        "raw 2, clean 1, none 0, random 2"
    )
    unknown = SharedImages(images=(), without_phash=(pool,))
    with pytest.raises(ValueError, match=r"has no column phash; run clipmill score"):
        refuse_near(unknown, [strict], [(pool, "clean")])


def test_a_pool_without_hashes_is_named(colours, tmp_path):
    pool = pool_with(tmp_path / "pool", [recompress(data_of(colours, "green/1.png"))])
    shared = find_shared_images([pool], [colours])
    assert shared == SharedImages(images=(), without_phash=(pool,))
    (line,) = overlap_lines(shared, [colours], "x.json")
    assert line.startswith(f"{pool} has no column phash: near duplicates are not checked")


def test_hashes_of_an_instance_are_found(colours, tmp_path):
    pool = pool_with(tmp_path / "pool", [recompress(data_of(colours, "green/1.png"))], hashed=True)
    layout = PoolLayout(pool)
    (name,) = disk.list_names(layout.scores)
    path = layout.score_set_json(name)
    document = read_document(path, ScoreSetDocument)
    renamed = dataclasses.replace(document, name="pic2", kind="picture", columns=("pic2_phash",))
    new = f"pic2@{name.partition('@')[2]}"
    table, metadata = AlignedFiles.of_scores(PoolLayout(pool), name).read("00000", ["phash"])
    Path(layout.scores, name).rename(Path(layout.scores, new))
    disk.write_json(layout.score_set_json(new), renamed, sealed=True)
    write_scores(pool, new, {0: (table.rename_columns(["pic2_phash"]), metadata)})
    (image,) = find_shared_images([pool], [colours]).of_task("colours", near=True)
    assert (image.file, image.key) == ("green/1.png", "000000000")


def test_hashes_of_other_rows_are_refused(colours, tmp_path):
    pool = pool_with(tmp_path / "pool", [b"one"], hashed=False)
    pool_with(tmp_path / "pool", [data_of(colours, "green/1.png")], hashed=True)
    pool_with(tmp_path / "pool", [data_of(colours, "green/1.png"), None])  # another sidecar
    message = "does not have the columns of shard 00000 as it is committed now; run clipmill score"
    with pytest.raises(ValueError, match=message):
        find_shared_images([pool], [colours])


# --- the command ---------------------------------------------------------------------------------


def test_evaluate_searches_the_pools_of_a_run(colours, model, tmp_path, capsys, monkeypatch):
    rows: list[bytes | None] = [data_of(colours, f"green/{i}.png") for i in (1, 3, 5)]
    rows.append(recompress(data_of(colours, "dark_red/1.png")))
    pool, run = pool_with(tmp_path / "pool", rows, hashed=True), tmp_path / "run"
    open_clip_files.save_export(model, str(run / "export"))
    disk.write_json(run / "run.json", {"blend": {"pools": {"web": pool}, "views": {"web/all": 1}}})
    task = f"{{name: colours, kind: classification, data: {colours.data}, allow_overlap: ALLOW}}"
    (tmp_path / "no.yaml").write_text(task.replace("ALLOW", "false"))
    (tmp_path / "yes.yaml").write_text(task.replace("ALLOW", "true"))
    assert commands.evaluate([str(run), "--task", str(tmp_path / "no.yaml")]) == 2
    printed = capsys.readouterr().err
    assert "green/1.png and 2 more images (all in " in printed
    assert not (run / "eval" / "colours.parquet").exists()
    assert commands.evaluate([str(run), "--task", str(tmp_path / "yes.yaml")]) == 0
    listed = disk.from_plain(SharedImages, disk.read_json(run / "eval" / "overlap.json"))
    assert len(listed.of_task("colours", near=False)) == 3
    assert [image.file for image in listed.of_task("colours", near=True)] == ["dark_red/1.png"]
    strict = task.replace("ALLOW", "true, near_overlap: refuse")
    (tmp_path / "strict.yaml").write_text(strict)
    monkeypatch.setattr(overlap, "_kept_uids", lambda pool, view, asked: asked)
    assert commands.evaluate([str(run), "--task", str(tmp_path / "strict.yaml")]) == 2
    assert "1 near duplicates of its images are in the view all of" in capsys.readouterr().err
