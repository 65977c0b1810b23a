"""clipmill export: every kept sample stays what it is, in each form; kills and mistakes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Recipe, Source, View
from clipmill.pipeline import export
from clipmill.pipeline.audit.purge import purge_rows
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage
from clipmill.pipeline.export import (
    KeptRows,
    Target,
    dataset_card,
    export_view,
    folder_hash,
    target_of,
    write_shard_folder,
)
from clipmill.pipeline.external.adopt import adopt_tars, tar_tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views
from tests.support import commands
from tests.support.bundles import change_shard
from tests.support.exported import (
    CAPTIONS,
    FILTERS,
    RECIPE,
    exported_pool,
    kept_samples,
    tar_members,
    without_scores,
)
from tests.support.other_tars import adoption
from tests.support.small_pool import jpeg, rows, write_shard


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exported_pool(tmp_path_factory.mktemp("made") / "pool")


@pytest.fixture
def pool(made: str, tmp_path: Path) -> str:
    return str(shutil.copytree(made, tmp_path / "pool"))


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
        assert row["caption_chars"] == len(row["caption"])
    assert list(table[0])[: len(SIDECAR)] == SIDECAR.names
    with open(made["csv"], newline="", encoding="utf-8") as f:
        assert {row["uid"] for row in csv.DictReader(f)} == expected.keys()
    pairs = [(int(uid[:16], 16), int(uid[16:], 16)) for uid in expected]
    assert (np.load(made["npy"]) == np.sort(np.array(pairs, "u8,u8"))).all()
    for kind, to in made.items():
        folder = Path(to) if kind == "folder" else Path(to).parent
        _, header, _ = (folder / "README.md").read_text().split("---\n", 2)
        told = yaml.safe_load(header)
        assert (told["size_categories"], told["license"]) == (["n<1K"], "unknown")
        assert ("configs" in told) == (kind != "npy")
        if kind != "npy":
            path = "*.tar" if kind == "folder" else f"wide.{kind}"
            assert told["configs"][0]["data_files"] == [{"split": "train", "path": path}]
        assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    ("kept", "size"),
    [
        (999, "n<1K"), (1_000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**6, "1M<n<10M"),
        (10**11, "100B<n<1T"),
    ],
)  # fmt: skip
def test_the_card_tells_the_size(pool: str, kept: int, size: str) -> None:
    rows = KeptRows(pool, "wide")
    rows.document = dataclasses.replace(rows.document, kept=kept)
    card = dataset_card(rows, Target(kind="csv", path="x.csv"), "name", None)
    assert f"size_categories:\n- {size}\n" in card


@pytest.mark.parametrize(
    ("to", "kind", "card"),
    [
        ("/a/b/x.parquet", "parquet", "/a/b/README.md"),
        ("s3://bucket/x.npy", "npy", "s3://bucket/README.md"),
        ("/a/clip30/", "folder", "/a/clip30/README.md"),
        ("/a/v1.0", "folder", "/a/v1.0/README.md"),
        ("/a/x.jsonl", "", "an export is a .parquet, .csv or .npy file, or a folder"),
        ("/a/x.tar", "", "an export is a"),
        ("/pool/shards/x.parquet", "", "lies in the pool /pool"),
        ("/pool", "", "lies in the pool"),
        ("/a/x.csv/", "", "is a folder; which is it"),
    ],
)
def test_the_ending_decides(to: str, kind: str, card: str) -> None:
    if kind:
        target = target_of(to, "/pool")
        assert (target.kind, target.card) == (kind, card)
    else:
        with pytest.raises(ValueError, match=card):
            target_of(to, "/pool/")


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
    for to in ("a/x.parquet", "b/x.csv", "c/x.npy", "tars"):
        assert commands.export([*words, str(tmp_path / to)]) == 0
        assert commands.export([*words, f"{store}/{to}"]) == 0
        assert "README.md lies" in capsys.readouterr().out
        folder = to.rpartition("/")[0] or to
        names = disk.list_names(f"{store}/{folder}")
        assert names == sorted(path.name for path in (tmp_path / folder).iterdir())
        for name in names:
            written = disk.read_bytes(f"{store}/{folder}/{name}")
            assert written == (tmp_path / folder / name).read_bytes(), name
    assert disk.read_json(f"{store}/tars/export.json")["complete"] is True
    assert len(disk.list_names(f"{store}/tars", ".tar")) == 5


@pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
def test_a_kill_leaves_no_file_under_the_name(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    to = tmp_path / "out" / f"x.{kind}"
    with monkeypatch.context() as patch:
        patch.setattr("clipmill.pipeline.export.disk.publish", _stopped)
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

    monkeypatch.setattr("clipmill.pipeline.views.choose.THREADS", 1)
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


def test_options_of_a_filter_show_no_folder_of_this_machine(pool: str, tmp_path: Path) -> None:
    rows = KeptRows(pool, "wide")
    (name,) = rows.score_sets
    paths = {
        "model": "local-dir:/home/me/clip",
        "weights": "/home/me/head.pth",
        "against": ["/a/b"],
    }
    other = {"pretrained": "laion2b", "url": "https://host.example/x/y"}
    rows.score_sets[name] = dataclasses.replace(rows.score_sets[name], options={**paths, **other})
    card = dataset_card(rows, Target(kind="folder", path=str(tmp_path / "x")), "r-wide", RECIPE)
    assert "/home" not in card
    assert str(tmp_path) not in card
    assert "against=['b'], model=local-dir:clip, pretrained=laion2b, " in card
    assert "url=https://host.example/x/y, weights=head.pth" in card


def test_a_column_name_that_is_taken_gets_the_id_of_its_set(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*SIDECAR.names[:-1], "caption_chars"]
    monkeypatch.setattr(disk, "read_schema", lambda path: pa.schema([(n, "int8") for n in names]))
    kept = KeptRows(pool, "wide")
    (set_id,) = {document.id for document in kept.score_sets.values()}
    assert f"caption_chars@{set_id}" in kept.score_columns
    assert "caption_words" in kept.score_columns


def test_stale_views_and_scores(
    pool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="has no view 'wild'; did you mean 'wide'"):
        KeptRows(pool, "wild")
    before = KeptRows(pool, "wide")
    (name,) = before.score_sets
    change_shard(PoolLayout(pool).score_bundle(name, 3), 3, sidecar="f" * 64)
    with pytest.raises(ValueError, match="does not have the columns of shard"):
        list(before.tables())
    document = disk.read_json(PoolLayout(pool).score_set_json(name))
    old = {**document, "fingerprint": "0" * 12}
    disk.write_json(PoolLayout(pool).score_set_json(name), old, sealed=True)
    assert KeptRows(pool, "wide").score_sets == {}
    assert "of an older state of the pool" in caplog.text
    write_shard(pool, 6, list(enumerate(rows(3), start=48)))
    with pytest.raises(ValueError, match="changed while it was read"):
        before.check_unchanged()
    with pytest.raises(ValueError, match="is stale"):
        KeptRows(pool, "wide")


def test_a_view_whose_rows_were_all_purged(pool: str, tmp_path: Path) -> None:
    purge_rows(PoolWriter(pool), {"uid": set(kept_samples(pool))})
    with pytest.raises(ValueError, match="keeps nothing: its rows were purged"):
        KeptRows(pool, "wide")


def test_an_export_names_a_purge_that_is_going_on(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Path(PoolLayout(pool).purge_json)
    journal.write_text("{}")
    with pytest.raises(ValueError, match="are being purged; export when `clipmill audit purge`"):
        export_view(pool, "wide", str(tmp_path / "wide"))
    journal.unlink()

    def began_meanwhile(*_: object) -> None:
        journal.write_text("{}")
        raise FileNotFoundError(2, "No such file or directory", "shards/00000.tar")

    monkeypatch.setattr(export, "_write", began_meanwhile)
    with pytest.raises(ValueError, match="are being purged"):
        export_view(pool, "wide", str(tmp_path / "wide"))


@pytest.mark.parametrize(("group_rows", "group_bytes"), [(7, 2**26), (20_000, 1)])
def test_parquet_in_small_row_groups(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, group_bytes: int
) -> None:
    monkeypatch.setattr(export, "GROUP_ROWS", group_rows)
    monkeypatch.setattr(export, "GROUP_BYTES", group_bytes)
    kept = KeptRows(pool, "wide")
    count = export.write_rows_parquet(kept, tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_rows == count == kept.document.kept
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(sizes) <= 8  # rows of a shard
    table = file.read()
    expected = kept_samples(pool)
    assert set(table["uid"].to_pylist()) == expected.keys()
    for row in table.to_pylist():
        assert row["caption"].encode() == expected[row["uid"]]["txt"]


def test_csv_is_read_as_it_was_by_two_readers(pool: str, tmp_path: Path) -> None:
    count = export.write_rows_csv(KeptRows(pool, "wide"), tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as f:
        read = list(csv.DictReader(f))
    assert len(read) == count
    expected = {uid: sample["txt"].decode() for uid, sample in kept_samples(pool).items()}
    assert {row["uid"]: row["caption"] for row in read} == expected
    assert set(CAPTIONS) <= {row["caption"] for row in read} | {""}
    assert list(read[0]) == list(export.CSV_COLUMNS)
    table = pa_csv.read_csv(
        tmp_path / "x.csv", parse_options=pa_csv.ParseOptions(newlines_in_values=True)
    )
    assert (
        dict(zip(table["uid"].to_pylist(), table["caption"].to_pylist(), strict=True)) == expected
    )


def test_a_full_disk_is_an_error(pool: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        export.write_rows_parquet(KeptRows(pool, "wide"), Path("/dev/full"))


def test_the_kept_samples_and_their_rows(pool: str, tmp_path: Path) -> None:
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


def test_shards_of_an_earlier_export_go(pool: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "00099.tar").write_bytes(b"old")
    (folder / "notes.txt").write_bytes(b"mine")
    write_shard_folder(KeptRows(pool, "wide"), str(folder))
    assert not (folder / "00099.tar").exists()
    assert (folder / "notes.txt").exists()


def test_an_export_of_another_view_that_is_replaced_is_named(
    pool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choose_views(
        PoolWriter(pool), dataclasses.replace(RECIPE, views=(*RECIPE.views, View(name="raw")))
    )
    folder = str(tmp_path / "out")
    for view in ("wide", "wide"):
        export_view(pool, view, folder)
    assert not caplog.messages
    export_view(pool, "raw", folder)
    assert caplog.messages == [f"the export of the view wide in {folder} is replaced"]


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
    stage = Stage(name="adopt", work=adopt_tars, job=adoption(pool, source))
    assert not execute(stage, tar_tickets(source), engine="inline").failed
    score(PoolWriter(pool), FILTERS, engine="inline")
    choose_views(PoolWriter(pool), Recipe(name="r", source=source, views=(View(name="raw"),)))
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


def test_a_damaged_tar_is_refused(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(read_commits(pool).tar(4))
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00004\.tar is damaged"):
        export.write_shard_folder(KeptRows(pool, "wide"), str(tmp_path / "out"))
