"""A pool grows: new files of its source become parts, shards and scores behind those that are
there, through the commands."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import view_names
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import RunRecord, ViewDocument, read_document
from clipmill.pipeline.crawl.parts import read_parts
from tests.support import commands
from tests.support.other_tars import pack, picture

PICTURES = 12
ROOT = Path(__file__).resolve().parents[2]


class Lists:
    """A folder of lists of local pictures, a recipe of it, and a pool."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool = folder, folder / "pool"
        (folder / "lists").mkdir(parents=True)
        for number in range(PICTURES):
            (folder / f"{number}.png").write_bytes(picture(16, 16, "PNG", 20 * number))
        self.recipe(f"paths: [{folder}/lists]")

    def recipe(self, paths: str, rules: str = "", filters: str = "caption") -> None:
        (self.folder / "r.yaml").write_text(
            f"name: r\nsource: {{kind: files, {paths}}}\n"
            "fetch: {image_size: 16, rows_per_shard: 2}\n"
            f"filters: [{filters}]\nviews: {{all: []{rules}}}\n"
        )

    def write(self, name: str, *numbers: int) -> Path:
        path = self.folder / "lists" / name
        rows = [f"{self.folder}/{number}.png,picture {number}\n" for number in numbers]
        path.write_text("file,caption\n" + "".join(rows))
        return path

    def build(self, *words: str) -> int:
        argv = [str(self.folder / "r.yaml"), "--out", str(self.pool), "--engine", "inline"]
        return commands.build([*argv, *words])

    def rows(self) -> list[dict[str, Any]]:
        commits = read_commits(str(self.pool))
        tables = [disk.read_parquet(commits.sidecar(int(shard))) for shard in commits.shards]
        return [row for table in tables for row in table.to_pylist()]

    def captions(self) -> list[str]:
        return sorted(row["caption"] for row in self.rows() if row["status"] == "success")

    def files(self) -> dict[str, bytes]:
        """What must stay as it is: pairs, tars, sidecars, commit records."""
        found = [*(self.pool / "pairs").glob("*.parquet"), *(self.pool / "shards").iterdir()]
        return {str(path.relative_to(self.pool)): path.read_bytes() for path in found}


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return Lists(tmp_path / "a folder")


def test_three_weekly_lists(lists: Lists, capsys: pytest.CaptureFixture[str]) -> None:
    expected: set[int] = set()
    before: dict[str, bytes] = {}
    for week, numbers in enumerate([(0, 1, 2), (2, 3, 4), (5, 0)]):
        lists.write(f"week-{week}.csv", *numbers)
        expected |= set(numbers)
        assert lists.build() == 0
        assert lists.captions() == sorted(f"picture {number}" for number in expected)
        now = lists.files()
        assert {name: now.get(name) for name in before} == before, "nothing old is written again"
        before = now
        assert commands.audit(["verify", str(lists.pool)]) == 0
        assert commands.build([str(lists.folder / "r.yaml"), "--out", str(lists.pool)]) == 0
        assert lists.files() == now, "a build of the same lists does nothing"
    assert read_parts(PoolLayout(str(lists.pool)))["pairs"].to_pylist() == [3, 2, 1]
    capsys.readouterr()
    assert commands.audit(["counts", str(lists.pool), "--json"]) in (0, 2)


def test_the_order_of_names_is_not_that_of_the_parts(lists: Lists) -> None:
    lists.write("m.csv", 0, 1)
    assert lists.build() == 0
    lists.write("a.csv", 1, 2)
    lists.write("z.csv", 3)
    assert lists.build() == 0
    assert read_parts(PoolLayout(str(lists.pool)))["wat"].to_pylist() == ["m.csv", "a.csv", "z.csv"]
    assert lists.build() == 0
    assert lists.captions() == [f"picture {number}" for number in range(4)]


def test_a_recipe_may_name_more_paths_and_not_fewer(
    lists: Lists, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = lists.write("one.csv", 0), lists.write("two.csv", 1)
    lists.recipe(f"paths: [{one}]")
    assert lists.build() == 0
    lists.recipe(f"paths: [{two}, {one}]")
    assert lists.build() == 0
    assert lists.captions() == ["picture 0", "picture 1"]
    lists.recipe(f"paths: [{two}]")
    assert lists.build() == 2
    assert "source.paths was" in capsys.readouterr().err


def test_a_repeated_a_deleted_and_a_changed_file_are_said(
    lists: Lists, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    path = lists.write("one.csv", 0, 1)
    assert lists.build() == 0
    lists.write("two.csv", 0, 1)
    assert lists.build() == 0
    assert "two.csv is new: 0 pairs, 2 of 2 rows were there before; it is one.csv again" in (
        caplog.text
    )
    path.unlink()
    lists.write("three.csv", 2)
    assert lists.build() == 0
    assert "one.csv is no longer in the source: its pairs stay" in caplog.text
    assert lists.captions() == [f"picture {number}" for number in range(3)]
    lists.write("three.csv", 3)
    assert lists.build() == 2
    assert "three.csv has changed since" in capsys.readouterr().err
    assert lists.captions() == [f"picture {number}" for number in range(3)]


def test_what_was_purged_stays_out(lists: Lists) -> None:
    lists.write("one.csv", 0, 1)
    assert lists.build() == 0
    (uid,) = [row["uid"] for row in lists.rows() if row["caption"] == "picture 0"]
    assert commands.audit(["purge", str(lists.pool), f"uid={uid}"]) == 0
    lists.write("two.csv", 0, 2)
    assert lists.build() == 0
    assert lists.captions() == ["picture 1", "picture 2"]


def test_a_pool_may_grow_and_retry(lists: Lists) -> None:
    lists.write("one.csv", 0, 1)
    assert lists.build() == 0
    lists.write("two.csv", 2)
    assert lists.build("--retry", "transient") == 0
    lists.write("three.csv", 3)
    assert lists.build() == 0
    assert lists.captions() == [f"picture {number}" for number in range(4)]
    assert commands.audit(["verify", str(lists.pool)]) == 0


KILLED = """
import os, signal, sys
from tests.support import commands

left = int(sys.argv[1])

def counted(function):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return call

for name in ("rename", "replace", "link"):
    setattr(os, name, counted(getattr(os, name)))
commands.build(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", range(0, 26, 2))
def test_a_growth_that_is_killed_goes_on(step: int, lists: Lists, tmp_path: Path) -> None:
    """Killed before each second file that is committed. The pool ends as one that was not."""
    lists.write("one.csv", 0, 1, 2)
    assert lists.build() == 0
    before = lists.files()
    lists.write("two.csv", 1, 3, 4)
    argv = [str(lists.folder / "r.yaml"), "--out", str(lists.pool), "--engine", "inline"]
    subprocess.run([sys.executable, "-c", KILLED, str(step), *argv], check=False, cwd=ROOT)
    assert lists.build() == 0
    assert lists.captions() == [f"picture {number}" for number in range(5)]
    now = lists.files()
    assert {name: now[name] for name in before} == before
    assert read_parts(PoolLayout(str(lists.pool)))["parts"].to_pylist() == [1, 2]
    assert commands.audit(["verify", str(lists.pool)]) == 0


def test_old_rows_that_change_sides_are_counted(
    lists: Lists, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paths = f"paths: [{lists.folder}/lists]"
    lists.recipe(paths, ", half: [{length: 'caption_chars >= top(caption_chars, 0.5)'}]")
    lists.write("one.csv", 0, 1, 2, 3)
    assert lists.build() == 0  # four captions of nine letters: all of them tie
    lists.write("two.csv", 10, 11, 10)
    lists.write("zero.csv", 9, 8, 7, 6, 5)
    assert lists.build() == 0
    assert "view all changed: the pool had 2 shards" in caplog.text
    assert "of the rows that were there 0 went out and 0 came in" in caplog.text


def test_tars_may_be_added_anywhere(tmp_path: Path) -> None:
    tars, pool = tmp_path / "tars", str(tmp_path / "pool")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"name: r\nsource: {{kind: shards, paths: [{tars}]}}\nfilters: [caption]\n"
        "views: {all: []}\n"
    )
    for name, number in (("m", 0), ("a", 1), ("z", 2)):
        members = [("0.png", picture(16, 16, "PNG", number)), ("0.txt", b"a picture")]
        pack(tars / f"{name}.tar", members)
        assert commands.build([str(recipe), "--out", pool, "--engine", "inline"]) == 0
    names = [Path(record.tar).name for record in read_commits(pool).records()]
    assert names == ["m.tar", "a.tar", "z.tar"]


@pytest.mark.parametrize("captions", ["txt", "captions.csv", "class_folders"])
def test_a_folder_of_images_grows_in_place(
    captions: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    images, pool = tmp_path / "images/red", tmp_path / "pool"
    images.mkdir(parents=True)
    texts: dict[int, str] = {}

    def write(**changes: str) -> None:
        texts.update({int(name[1:]): text for name, text in changes.items()})
        rows = ["file,caption"]
        for number, text in texts.items():
            rows.append(f"red/{number}.png,{text}")
            (images / f"{number}.png").write_bytes(picture(16, 16, "PNG", 20 * number))
            (images / f"{number}.txt").write_text(text)
        (tmp_path / "images/captions.csv").write_text("\n".join(rows))

    def build() -> int:
        table = ", file_column: file, caption_column: caption" if ".csv" in captions else ""
        (tmp_path / "r.yaml").write_text(
            f"name: r\nsource: {{kind: image_folder, paths: [{tmp_path}/images], "
            f"captions: {captions}{table}}}\nfetch: {{image_size: 16, rows_per_shard: 2}}\n"
            "filters: []\nviews: {all: []}\n"
        )
        return commands.build([str(tmp_path / "r.yaml"), "--out", str(pool), "--engine", "inline"])

    def stored() -> list[str]:
        commits = read_commits(str(pool))
        tables = [disk.read_parquet(commits.sidecar(int(shard))) for shard in commits.shards]
        return [Path(row["url"]).stem + row["caption"] for t in tables for row in t.to_pylist()]

    write(n0="zero", n1="one")
    assert build() == 0
    write(n2="two")
    assert build() == 0
    assert "images is new: 1 pairs, 2 of 3 rows were there before" in caplog.text
    write(n3="three")
    assert build() == 0
    parts = read_parts(PoolLayout(str(pool)))["pairs"].to_pylist()
    assert parts == [2, 1, 1]
    assert build() == 0
    assert read_parts(PoolLayout(str(pool)))["pairs"].to_pylist() == parts, "nothing is new"
    (images / "1.png").unlink()
    del texts[1]
    write()
    assert build() == 0
    captioned = ["0red", "1red", "2red", "3red"]
    if captions != "class_folders":
        captioned = ["0zero", "1one", "2two", "3three"]
    assert sorted(stored()) == captioned
    assert "1 pairs of" in caplog.text
    write(n0="another", n4="four")
    assert build() == (0 if captions == "class_folders" else 2)
    if captions != "class_folders":
        assert "0.png had the caption 'zero'" in capsys.readouterr().err
        assert sorted(stored()) == captioned
    assert commands.audit(["verify", str(pool)]) == 0


# --- a view of before, under a name of its own ----------------------------------------------------

TRAINED = ["--set", "model=test", "batch_size=4", "lanes=2", "samples_seen=48", "warmup=1"]


def view_file(pool: Path, name: str) -> bytes:
    return (pool / "views" / f"{name}.json").read_bytes()


@pytest.fixture
def grown(lists: Lists) -> Callable[[], None]:
    """A pool of one list whose view is frozen, and what lets it grow by another list."""
    lists.recipe(
        f"paths: [{lists.folder}/lists]",
        ", best: [{length: 'caption_chars >= top(caption_chars, 0.2)'}]",
        "caption, tokens",
    )
    lists.write("one.csv", 0, 1, 2, 3, 4, 5)
    assert lists.build() == 0
    assert commands.filter_pool(["freeze", str(lists.pool), "all", "all_w1"]) == 0
    assert commands.filter_pool(["freeze", str(lists.pool), "best", "best_w1"]) == 0

    def grow() -> None:
        lists.write("two.csv", 5, 6, 7, 10, 11)
        assert lists.build() == 0

    return grow


def test_a_run_on_a_frozen_view_resumes_bit_for_bit_after_the_pool_has_grown(
    lists: Lists, grown: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(lists.pool)

    def train(out: str, *views: str) -> int:
        names = [f"{pool}/{view}={weight}" for weight, view in enumerate(views, 1)]
        words = ["--mix", *names, "--out", str(tmp_path / out), "--preset", "micro", *TRAINED]
        return commands.train([*words, "checkpoint_every=4"])

    assert train("whole", "all_w1", "best_w1") == 0
    assert train("unfrozen", "all") == 0
    whole = tmp_path / "whole"
    for out in ("whole", "unfrozen"):  # as runs that ended behind their eighth step
        stopped = shutil.copytree(tmp_path / out, tmp_path / f"{out}-stopped")
        shutil.rmtree(stopped / "checkpoints/step-12")
        shutil.rmtree(stopped / "export")
        (stopped / "run.json").unlink()
    documents = {name: view_file(lists.pool, name) for name in ("all_w1", "best_w1")}
    best = view_file(lists.pool, "best")
    grown()
    assert view_file(lists.pool, "best") != best
    assert {name: view_file(lists.pool, name) for name in documents} == documents
    assert train("whole-stopped", "all_w1", "best_w1") == 0
    before, after = (
        read_document(str(out / "run.json"), RunRecord)
        for out in (whole, tmp_path / "whole-stopped")
    )
    assert (before.resumed_at, after.resumed_at) == (0, 8)
    assert after.export == before.export
    assert after.identity == before.identity
    capsys.readouterr()
    assert train("unfrozen-stopped", "all") == 2
    assert "holds another run" in capsys.readouterr().err


def test_what_is_made_of_a_frozen_view_is_the_same_after_the_pool_has_grown(
    lists: Lists, grown: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(lists.pool)

    def made() -> dict[str, Any]:
        assert commands.filter_pool(["random-like", pool, "best_w1", "--seed", "3"]) == 0
        assert commands.filter_pool(["part", pool, "best_w1", "all_w1", "--share", "0.999"]) == 0
        made = {
            name: view_file(lists.pool, name)
            for name in view_names(PoolLayout(pool))
            if "_w1" in name
        }
        assert len(made) == 5
        capsys.readouterr()
        assert commands.filter_pool(["hash", pool, "all_w1"]) == 0
        out = tmp_path / "all.parquet"
        assert commands.export([pool, "all_w1", "--to", str(out)]) == 0
        rows = disk.read_parquet(str(out), ["uid", "caption", "image_offset"]).to_pylist()
        return {**made, "hash": capsys.readouterr().out.split()[0], "rows": rows}

    before = made()
    grown()
    assert made() == before
    assert commands.filter_pool(["part", pool, "best", "best_w1", "--share", "0.999"]) == 0
    assert commands.audit(["verify", pool]) == 0
    assert commands.look([pool, "--out", str(tmp_path / "pool.html")]) == 0
    assert "best_w1 is frozen, of 3 of 5 shards" in (tmp_path / "pool.html").read_text()
    lock = str(tmp_path / "lock.parquet")
    assert commands.audit(["lock", pool, lock]) == 0
    assert sum(disk.read_parquet(lock, ["view:all_w1"])["view:all_w1"].to_pylist()) == 6


def test_a_frozen_view_is_not_made_again(
    lists: Lists, grown: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pool, before = str(lists.pool), view_file(lists.pool, "all_w1")
    assert commands.filter_pool(["freeze", pool, "all", "all_w1"]) == 0, "it is there already"
    grown()
    assert commands.filter_pool(["freeze", pool, "all", "all_w1"]) == 2
    assert "has a view 'all_w1' already" in capsys.readouterr().err
    assert commands.filter_pool(["freeze", pool, "all", "best"]) == 2
    lists.recipe(f"paths: [{lists.folder}/lists]", ", all_w1: []", "caption, tokens")
    assert lists.build() == 2
    assert "'all_w1' is frozen" in capsys.readouterr().err
    assert view_file(lists.pool, "all_w1") == before


def test_a_purge_takes_its_rows_out_of_a_frozen_view(
    lists: Lists, grown: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(lists.pool)
    grown()
    uids = {row["caption"]: row["uid"] for row in lists.rows()}
    later = view_file(lists.pool, "all_w1")
    assert commands.audit(["purge", pool, f"uid={uids['picture 7']}"]) == 0
    assert view_file(lists.pool, "all_w1") == later, "the row was not in its shards"
    assert commands.audit(["purge", pool, f"uid={uids['picture 2']}"]) == 0
    document = read_document(str(lists.pool / "views/all_w1.json"), ViewDocument)
    assert (document.kept, document.frozen, document.shards.count) == (5, True, 3)
    assert commands.audit(["verify", pool]) == 0
    lists.write("three.csv", 8)
    assert lists.build() == 0
    assert commands.filter_pool(["hash", pool, "all_w1"]) == 0
    record = lists.pool / "shards/00000_stats.json"
    record.unlink()  # as after a loss that a repair has not mended yet
    assert commands.audit(["reindex", pool]) == 0
    capsys.readouterr()
    assert commands.filter_pool(["hash", pool, "all_w1"]) == 2
