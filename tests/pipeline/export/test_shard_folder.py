"""WebDataset shards of a view: only kept samples, in tars of other programs too."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from manifests import disk
from manifests.commits import read_commits
from manifests.schema import Recipe, Source, View
from pipeline import export
from pipeline.executor.stage import execute
from pipeline.executor.tickets import Stage
from pipeline.export import KeptRows, folder_hash, write_shard_folder
from pipeline.external.adopt import adopt_tars, tar_tickets
from pipeline.scoring.scorer import score
from pipeline.views.files import choose_views
from tests.support.exported import FILTERS, exported_pool, kept_samples, tar_members, without_scores
from tests.support.small_pool import jpeg


def test_the_kept_samples_and_their_rows(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    folder = tmp_path / "out"
    files, count = write_shard_folder(KeptRows(pool, "wide"), str(folder))
    expected = kept_samples(pool)
    assert count == len(expected)
    seen = {}
    for file in files:
        tar = folder / file.name
        assert (file.size, file.sha256) == (tar.stat().st_size, disk.file_sha256(tar))
        members, data = tar_members(str(tar)), tar.read_bytes()
        sidecar = disk.read_parquet(tar.with_suffix(".parquet")).to_pylist()
        assert [row["key"] for row in sidecar] == list(members)
        for row in sidecar:
            seen[row["uid"]] = members[row["key"]]
            image = data[row["image_offset"] :][: row["image_length"]]
            assert image == members[row["key"]]["jpg"]
            assert row["caption_chars"] == len(row["caption"])
            member = members[row["key"]]["json"]
            assert json.loads(member)["caption_chars"] == row["caption_chars"]
            assert data[row["json_offset"] :][: row["json_length"]] == member
    assert without_scores(seen) == without_scores(expected)
    assert len(folder_hash(files)) == 64


def test_shards_of_an_earlier_export_go(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "00099.tar").write_bytes(b"old")
    (folder / "notes.txt").write_bytes(b"mine")
    write_shard_folder(KeptRows(pool, "wide"), str(folder))
    assert not (folder / "00099.tar").exists()
    assert (folder / "notes.txt").exists()


def adopted(folder: Path) -> str:
    """A pool of a tar of another program: a sample without a caption is no row that is stored."""
    tar = folder / "theirs.tar"
    with tarfile.open(tar, "w") as file:
        for number in range(4):
            members = {"jpg": jpeg(number), "txt": b"a dog", "cls": b"7"}
            members["json"] = (b"no json", b'["a list"]', b"{}", b'{"caption_chars": "theirs"}')[
                number
            ]
            if number == 2:
                del members["txt"]
            for ending, content in members.items():
                info = tarfile.TarInfo(f"sample{number}.{ending}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    pool = str(folder / "pool")
    source = Source(kind="shards", paths=(str(tar),))
    stage = Stage(name="adopt", work=adopt_tars, config={"pool": pool})
    assert not execute(stage, tar_tickets(source), engine="inline").failed
    score(pool, FILTERS, engine="inline")
    choose_views(pool, Recipe(name="r", source=source, views=(View(name="raw"),)))
    return pool


def test_a_sample_that_was_not_stored_stays_out_of_the_tar(tmp_path: Path) -> None:
    pool = adopted(tmp_path)
    assert read_commits(pool).totals.stored == 3
    write_shard_folder(KeptRows(pool, "raw"), str(tmp_path / "out"))
    members = tar_members(str(tmp_path / "out" / "00000.tar"))
    assert list(members) == ["sample0", "sample1", "sample3"]
    assert members["sample1"] == {
        "jpg": jpeg(1),
        "txt": b"a dog",
        "cls": b"7",
        "json": b'["a list"]',
    }
    assert members["sample0"]["json"] == b"no json"
    assert json.loads(members["sample3"]["json"]) == {"caption_chars": "theirs", "caption_words": 2}
    data = (tmp_path / "out" / "00000.tar").read_bytes()
    for row in disk.read_parquet(tmp_path / "out" / "00000.parquet").to_pylist():
        number = int(row["image_name"][6])
        assert data[row["image_offset"] :][: row["image_length"]] == jpeg(number)


def test_a_damaged_tar_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = exported_pool(tmp_path / "pool")
    path = Path(read_commits(pool).tar(4))
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00004\.tar is damaged"):
        export.write_shard_folder(KeptRows(pool, "wide"), str(tmp_path / "out"))
