"""clipmill export: every kept sample stays what it is, in each form; kills and mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.commits import read_commits
from pipeline import export
from pipeline.export import export_view
from tests.support import commands
from tests.support.exported import exported_pool, kept_samples, tar_members, without_scores


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return exported_pool(tmp_path / "pool")


def test_image_caption_key_and_json_of_every_kept_sample_stay(pool: str, tmp_path: Path) -> None:
    expected = kept_samples(pool)
    keys = {}
    for shard in read_commits(pool).shards.tolist():
        for row in disk.read_parquet(read_commits(pool).sidecar(shard)).to_pylist():
            keys[row["uid"]] = row["key"]
    made = {kind: str(tmp_path / kind / f"wide.{kind}") for kind in ("parquet", "csv", "npy")}
    made["folder"] = str(tmp_path / "folder")
    results = {kind: export_view(pool, "wide", to) for kind, to in made.items()}
    assert {result.rows for result in results.values()} == {len(expected)}
    seen = {}
    for tar in sorted(Path(made["folder"]).glob("*.tar")):
        seen |= tar_members(str(tar))
    by_key = {keys[uid]: sample for uid, sample in expected.items()}
    assert without_scores(by_key) == without_scores(seen)
    table = pq.read_table(made["parquet"]).to_pylist()
    assert {row["uid"]: row["key"] for row in table} == {uid: keys[uid] for uid in expected}
    for row in table:
        tar = Path(read_commits(pool).tar(int(row["key"][:5]))).read_bytes()
        image = tar[row["image_offset"] :][: row["image_length"]]
        assert image == expected[row["uid"]]["jpg"]
        assert row["caption"].encode() == expected[row["uid"]]["txt"]
    with open(made["csv"], newline="", encoding="utf-8") as f:
        assert {row["uid"] for row in csv.DictReader(f)} == expected.keys()
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in expected]
    assert (np.load(made["npy"]) == np.sort(np.array(pairs, "u8,u8"))).all()
    for kind, to in made.items():
        folder = Path(to) if kind == "folder" else Path(to).parent
        assert (folder / "README.md").read_text().startswith("---\n")
        assert not list(folder.glob(".*"))


def test_the_command_again_and_in_a_store(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [pool, "wide", "--to"]
    assert commands.export([*words, str(tmp_path / "a/x.parquet"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert commands.export([*words, str(tmp_path / "a/x.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert first["sha256"] == disk.file_sha256(tmp_path / "a/x.parquet")
    store = "memory://test_exports"
    assert commands.export([*words, f"{store}/b/x.parquet"]) == 0
    assert disk.read_bytes(f"{store}/b/x.parquet") == (tmp_path / "a/x.parquet").read_bytes()
    assert "README.md lies" in capsys.readouterr().out
    assert commands.export([*words, f"{store}/tars", "--json"]) == 0
    assert disk.read_json(f"{store}/tars/export.json")["complete"] is True
    assert len(disk.list_names(f"{store}/tars", ".tar")) == 5


@pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
def test_a_kill_leaves_no_file_under_the_name(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    to = tmp_path / "out" / f"x.{kind}"
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.export.disk.publish", _stopped)
        with pytest.raises(KeyboardInterrupt):
            export_view(pool, "wide", str(to))
    assert not to.exists()
    export_view(pool, "wide", str(to))
    assert sorted(path.name for path in to.parent.iterdir()) == [
        "README.md", f"x.{kind}",
    ]  # fmt: skip


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_killed_folder_is_finished(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    copy = export.copy_tar_with

    def until_third(tar: str, *rest: object) -> object:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(tar)
        return copy(tar, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("pipeline.views.choose.THREADS", 1)
    to = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(export, "copy_tar_with", until_third)
        with pytest.raises(KeyboardInterrupt):
            export_view(pool, "wide", str(to))
    assert disk.read_json(to / "export.json")["complete"] is False
    assert not (to / "README.md").exists()
    stamps = {path.name: path.stat().st_mtime_ns for path in to.glob("*.tar")}
    export_view(pool, "wide", str(to))
    assert disk.read_json(to / "export.json")["complete"] is True
    again = {
        path.name for path in to.glob("*.tar") if path.stat().st_mtime_ns == stamps.get(path.name)
    }
    assert again == stamps.keys()
    assert len(stamps) == 2


def test_what_is_not_an_earlier_export_is_not_overwritten(pool: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/README.md").write_text("mine\n")
    with pytest.raises(ValueError, match=r"README\.md is not the card of x\.parquet"):
        export_view(pool, "wide", str(tmp_path / "a/x.parquet"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x.npy").write_bytes(b"mine")
    with pytest.raises(ValueError, match="is there already"):
        export_view(pool, "wide", str(tmp_path / "b/x.npy"))
    with pytest.raises(ValueError, match=r"a folder with other files \(README\.md\)"):
        export_view(pool, "wide", str(tmp_path / "a"))
    assert (tmp_path / "a/README.md").read_text() == "mine\n"
    assert (tmp_path / "b/x.npy").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wide"], "--to is missing"),
        (["wild", "--to", "{}/x.csv"], "has no view 'wild'; did you mean 'wide'"),
        (["wide", "--to", "{}/x.npy", "--uid-column", "caption"], "column 'caption'"),
        (["wide", "--to", "{}/x.npy", "--uid-column", "uidd"], "did you mean 'uid'"),
        (["wide", "--to", "{}/x.csv", "--uid-column", "key"], "belongs to a .npy"),
        (["wide", "--to", "{}/x.csv", "--seed", "1"], "Unknown option: --seed"),
    ],
)
def test_mistakes(
    pool: str, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("{}", str(tmp_path / "new")) for word in words]
    assert commands.export([pool, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(Path(tmp_path).glob("new/x.*"))


@pytest.mark.parametrize("name", ["x.parquet", "tars"])
def test_a_second_export_to_the_same_place_is_refused_while_the_first_writes(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    to = str(tmp_path / "out" / name)
    write = export._write

    def during(*given: object) -> object:
        with pytest.raises(ValueError, match=r"in use by an export, process \d+ .*another --to"):
            export_view(pool, "wide", to)
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "_write", during)
    export_view(pool, "wide", to)
    assert not list(tmp_path.rglob(".*"))
