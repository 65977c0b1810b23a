"""Files that changed behind a pool's back, as public trackers report them: what was made of a file
is refused by its name, or made anew, where the file has other content now. Through the commands.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from tests.support import commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a file is changed: its bytes before and after, and what of its times is put back."""

    source: str
    why: str
    change: Callable[[Path], None]
    is_content: bool


def in_place(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a cat", b"a dog"))


def with_old_time(path: Path) -> None:
    times = os.stat(path)
    in_place(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def moved_over(path: Path) -> None:
    times, other = os.stat(path), path.with_suffix(".new")
    other.write_bytes(path.read_bytes().replace(b"a cat", b"a dog"))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


def copied(path: Path) -> None:
    other = path.with_suffix(".new")
    shutil.copyfile(path, other)
    other.replace(path)


def touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


CHANGES = [
    Change(
        source="LoicGrobol/zeldarose#111", is_content=True, change=in_place,
        why="the cache is used though the file has other content",
    ),
    Change(
        source="Knowledge-Graph-Hub/kg-microbe#866", is_content=True, change=with_old_time,
        why="cp -p, rsync and archives put the old time beside other bytes of the same size",
    ),
    Change(
        source="ScrollPrize/villa#1701", is_content=True, change=moved_over,
        why="a file of the same length under the same path",
    ),
    Change(
        source="ScrollPrize/villa#1701 (a copy)", is_content=False, change=copied,
        why="a copy of equal bytes is the same file",
    ),
    Change(
        source="Knowledge-Graph-Hub/kg-microbe#866 (a checkout)", is_content=False, change=touched,
        why="git checkout gives another time to the same bytes",
    ),
]  # fmt: skip
each_change = pytest.mark.parametrize("row", CHANGES, ids=[row.source for row in CHANGES])


TEXTS = "{caption_file: {paths: texts.jsonl}}"


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (32, 32), (shade, 5, 7)).save(out, "PNG")
    return out.getvalue()


@each_change
def test_a_source_is_refused_where_its_content_has_changed(
    row: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, recipe = tmp_path / "links.csv", tmp_path / "r.yaml"
    table.write_text("url,caption\nhttps://a.example/1.jpg,a cat\n")
    recipe.write_text(f"name: r\nsource: {{kind: table, paths: [{table}]}}\n")
    words = [str(recipe), "--out", str(tmp_path / "pool"), "--engine", "inline"]
    words += ["--until", "crawl"]
    assert commands.build(words) == 0
    row.change(table)
    assert commands.build(words) == (2 if row.is_content else 0), row.why
    assert ("links.csv has changed since" in capsys.readouterr().err) == row.is_content


@each_change
def test_a_joined_table_is_joined_again_where_its_content_has_changed(
    row: Change, tmp_path: Path
) -> None:
    pool, table = images(tmp_path), tmp_path / "texts.jsonl"
    uids = disk.read_parquet(read_commits(pool).sidecar(0))["uid"].to_pylist()
    table.write_text(f'{{"uid": "{uids[0]}", "caption": "a cat"}}\n')
    recipe = tmp_path / "s.yaml"
    recipe.write_text((tmp_path / "r.yaml").read_text().replace("picture", TEXTS))
    words = [pool, "--recipe", str(recipe), "--engine", "inline"]
    assert commands.score(words) == 0
    row.change(table)
    assert commands.score(words) == 0
    sets = list((Path(pool) / "scores").glob("caption_file@*"))
    assert len(sets) == (2 if row.is_content else 1), row.why


def images(folder: Path) -> str:
    """A pool of four pictures that are rows of a Parquet file."""
    write_images(folder / "images.parquet", range(4))
    recipe = folder / "r.yaml"
    recipe.write_text(
        f"name: r\nsource: {{kind: image_table, paths: [{folder}/images.parquet]}}\n"
        "fetch: {image_size: 32, encode_format: png, encode_quality: 6}\n"
        "filters: [picture]\n"
    )
    words = [str(recipe), "--out", str(folder / "pool"), "--engine", "inline"]
    assert commands.build(words) == 0
    return str(folder / "pool")


def write_images(path: Path, order: range) -> None:
    columns = {"image": [png(n) for n in order], "caption": [f"shade {n}" for n in order]}
    pq.write_table(pa.table(columns), path)


def right_captions(pool: str) -> int:
    """Stored pictures whose caption names their shade; -1 where another one's does."""
    right = 0
    commits = read_commits(pool)
    tar = Path(commits.tar(0)).read_bytes()
    for row in disk.read_parquet(commits.sidecar(0)).to_pylist():
        data = tar[row["image_offset"] : row["image_offset"] + row["image_length"]]
        shade = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[0, 0, 0]
        if row["caption"] != f"shade {shade}":
            return -1
        right += 1
    return right


@pytest.mark.parametrize("is_content", [True, False], ids=["IDEA-Research/HumanSD#4", "a copy"])
def test_a_repair_reads_rows_of_the_file_that_was_crawled(
    is_content: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = images(tmp_path)
    assert right_captions(pool) == 4
    tar = Path(read_commits(pool).tar(0))
    data = bytearray(tar.read_bytes())
    data[600] ^= 255
    tar.write_bytes(data)
    write_images(tmp_path / "images.parquet", range(3, -1, -1) if is_content else range(4))
    assert commands.audit(["repair", pool]) == (3 if is_content else 0)
    out = capsys.readouterr().out
    if is_content:
        assert "not fetched again" in out
        assert "images.parquet has " in out
    else:
        assert right_captions(pool) == 4


def test_an_image_table_that_changes_during_the_fetch_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clipmill.pipeline import recipe_run

    plan = recipe_run.write_plan

    def plan_and_replace(*args: object, **options: object) -> object:
        planned = plan(*args, **options)  # type: ignore[arg-type]
        write_images(tmp_path / "images.parquet", range(3, -1, -1))
        return planned

    monkeypatch.setattr(recipe_run, "write_plan", plan_and_replace)
    with pytest.raises(AssertionError):
        images(tmp_path)
    assert "images.parquet" in capsys.readouterr().err
    assert len(read_commits(str(tmp_path / "pool"))) == 0, "no caption stands at another picture"
