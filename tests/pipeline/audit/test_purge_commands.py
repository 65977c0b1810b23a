"""Purges through the command: of rows that are not there, twice, under another lease, of adopted
tars, of all of a shard, in bundles; and what a build makes of the pool afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards
from manifests.commits import open_shard_files, read_commits, read_index_document, update_index
from manifests.layout import PoolLayout, pool_fingerprint, read_commit_records
from manifests.records import ScoreSetDocument, ViewDocument
from manifests.records import read_document as read_json
from manifests.schema import Recipe, Source, View
from pipeline import recipe_run
from pipeline.audit.integrity import verify
from pipeline.pool.lease import hold_lease, read_sidecar
from pipeline.pool.tars import index_tar
from tests.support import audited, commands
from tests.support.folders import make_bundles_small
from tests.support.other_tars import pack, picture
from tests.support.purged import make, members, rows_of


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("small") / "pool", 24))


@pytest.fixture
def pool(small: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(small, tmp_path / "pool"))


def files(pool: str | Path) -> dict[str, bytes]:
    """Every file but the lease, by its path in the pool."""
    contents = {}
    for path in Path(pool).rglob("*"):
        name = str(path.relative_to(pool))
        if path.is_file() and "lease" not in name:
            contents[name] = path.read_bytes()
    return contents


def purge(pool: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON line of a purge that ended well."""
    capsys.readouterr()
    assert commands.audit(["purge", pool, "--json", *words]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_no_row_matches_is_a_mistake(
    pool: str, capsys: pytest.CaptureFixture[str], dry: list[str]
) -> None:
    before = files(pool)
    assert commands.audit(["purge", pool, *dry, f"uid={'0' * 32}", "domain=scool.test"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "domain=scool.test: no row of" in line
    assert files(pool) == before
    assert commands.audit([pool, "--dry-run"]) == 2
    assert "Unknown option: --dry-run" in capsys.readouterr().err


def test_a_dry_run_says_what_a_purge_then_does(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(row for row in rows_of(pool).values() if row["image_name"])
    before = files(pool)
    planned = purge(pool, capsys, f"uid={row['uid']}", "--dry-run")
    assert commands.audit(["purge", pool, f"uid={row['uid']}", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "1 rows would be purged, 1 shards replaced; nothing was changed" in output
    assert row["url"] in output
    assert files(pool) == before
    done = purge(pool, capsys, f"uid={row['uid']}")
    changed = ("dry_run", "urls", "old")
    assert {k: v for k, v in planned.items() if k not in changed} == {
        k: v for k, v in done.items() if k not in changed
    }
    assert purge(pool, capsys, f"uid={row['uid']}", "--dry-run")["rows"] == 0


def test_a_pool_that_is_being_written_is_left_alone(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = next(iter(rows_of(pool)))
    before = files(pool)
    with hold_lease(pool):
        assert commands.audit(["purge", pool, f"uid={uid}"]) == 2
        assert "is being written by" in capsys.readouterr().err
        assert files(pool) == before
    assert purge(pool, capsys, f"uid={uid}")["rows"] == 1


@pytest.mark.parametrize("which", ["last", "stored", "all"])
def test_the_last_row_and_all_rows_of_a_shard(
    pool: str, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    shard = next(iter(read_commits(pool).names()))
    rows = read_sidecar(pool, shard).to_pylist()
    chosen = {"last": rows[-1:], "stored": [r for r in rows if r["image_name"]], "all": rows}[which]
    kept = [row for row in rows_of(pool).values() if row["uid"] not in {r["uid"] for r in chosen}]
    images = {row["uid"]: members(pool, row) for row in kept if row["image_name"]}
    result = purge(pool, capsys, *(f"uid={row['uid']}" for row in chosen))
    assert result["rows"] == len(chosen)
    assert verify(pool) == []
    assert commands.audit([pool]) == 0
    after = rows_of(pool)
    assert {uid: members(pool, after[uid]) for uid in images} == images
    if which != "last":
        tar = Path(read_commits(pool).tar(shard))
        assert index_tar(str(tar)) == []
        assert tar.read_bytes() == bytes(10240)


def test_a_damaged_tar_is_not_given_a_new_hash(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(row for row in rows_of(pool).values() if row["image_name"])
    tar = Path(read_commits(pool).tar(row["shard"]))
    data = bytearray(tar.read_bytes())
    data[600] ^= 1
    tar.write_bytes(data)
    assert commands.audit(["purge", pool, f"uid={row['uid']}"]) == 2
    assert "mend it first" in capsys.readouterr().err
    assert tar.read_bytes() == data
    data[600] ^= 1
    tar.write_bytes(data)  # mended: the purge that was begun is ended by the next command
    assert commands.audit(["purge", pool, f"uid={'0' * 32}"]) == 2, (
        "and its own selector matches nothing"
    )
    assert rows_of(pool)[row["uid"]]["reason"] == "purged"
    assert verify(pool) == []
    assert not tar.exists()


def test_bundles_of_masks_and_scores_and_a_closed_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bundles_small(monkeypatch)
    pool = make(tmp_path / "pool", 96)
    update_index(pool)
    layout, commits = PoolLayout(pool), read_commits(pool)
    assert len(commits) > 7
    before = rows_of(pool)
    scores = next(name for name in disk.list_names(layout.scores) if "@" in name)
    columns = {name: AlignedFiles.of_scores(pool, scores).read(name)[0] for name in commits.names()}
    masks = {name: AlignedFiles.of_view(pool, "words").read(name)[0] for name in commits.names()}
    documents = read_json(layout.view_json("words"), ViewDocument)
    scored = read_json(layout.score_set_json(scores), ScoreSetDocument).scored
    chosen = [
        row for row in before.values() if row["image_name"] and int(row["shard"]) in (1, 4, 5)
    ]
    uids = {row["uid"] for row in chosen}
    assert purge(pool, capsys, *(f"uid={uid}" for uid in uids))["rows"] == len(uids)
    # A reader that trusts the closed index finds the new files, and so does one that does not.
    document = read_index_document(pool)
    assert document is not None
    assert document.closed
    after = read_commits(pool)
    records = read_commit_records(pool)
    assert list(after.records()) == list(records.values())
    assert document.fingerprint == pool_fingerprint(records) != commits.fingerprint
    paths = open_shard_files(pool)
    for name, record in records.items():
        assert record.revision == (int(name) in (1, 4, 5))
        assert disk.exists(paths.tar(name))
        assert pq.read_table(paths.sidecar(name)).num_rows == record.count
    view, columns_of = AlignedFiles.of_view(pool, "words"), AlignedFiles.of_scores(pool, scores)
    for name in after.names():
        rows = [row["uid"] in uids for row in read_sidecar(pool, name).to_pylist()]
        mask, values = view.read(name)[0].to_pylist(), columns_of.read(name)[0].to_pylist()
        for i, is_purged in enumerate(rows):
            if is_purged:
                assert mask[i] == {"kept": False, "rule": "not_stored"}
                assert set(values[i].values()) == {None}
            else:
                assert mask[i] == masks[name].to_pylist()[i]
                assert values[i] == columns[name].to_pylist()[i]
    words = read_json(layout.view_json("words"), ViewDocument)
    assert int(view_shards(pool, words)[1].sum()) == words.kept < documents.kept
    assert read_json(layout.score_set_json(scores), ScoreSetDocument).scored == scored - len(uids)
    assert verify(pool) == []
    assert commands.audit([pool]) == 0


# --- and then a build -----------------------------------------------------------------------------


def test_a_build_does_not_fetch_a_purged_row_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, pool = audited.local_recipe(tmp_path), str(tmp_path / "pool")
    recipe_run.build(recipe, pool, engine="inline")
    chosen = list(rows_of(pool).values())[4]
    assert purge(pool, capsys, f"url={chosen['url']}")["rows"] == 1
    before = files(pool)
    result = recipe_run.build(recipe, pool, engine="inline")
    assert result["complete"]
    assert not result["changed"]
    after = files(pool)
    assert {n for n in before if before[n] != after.get(n)} <= {"pool.json"}
    assert rows_of(pool)[chosen["uid"]]["url"] is None
    result = recipe_run.build(recipe, pool, engine="inline", retry="transient")
    assert rows_of(pool)[chosen["uid"]]["reason"] == "purged"


def test_a_row_that_waits_to_be_fetched_is_never_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, pool = audited.local_recipe(tmp_path), str(tmp_path / "pool")
    recipe_run.build(recipe, pool, engine="inline", until="plan")
    (tmp_path / "pool/shards").mkdir(exist_ok=True)
    pairs = pq.read_table(PoolLayout(pool).pairs_part(0)).to_pylist()
    assert purge(pool, capsys, f"uid={pairs[3]['uid']}")["rows"] == 1
    (tmp_path / "source/3.jpg").unlink()
    result = recipe_run.build(recipe, pool, engine="inline")
    assert result["complete"]
    assert result["fetch"]["reasons"] == {"purged": 1}
    assert verify(pool) == []


def test_a_row_of_an_adopted_tar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members_of_tar = []
    for i in range(4):
        values = {"url": f"http://h.test/{i}", "caption": f"thing {i}"}
        members_of_tar += [
            (f"s{i}.jpg", picture(shade=10 * i)),
            (f"s{i}.json", json.dumps(values).encode()),
        ]
    tar = pack(tmp_path / "given/00000.tar", members_of_tar)
    source = Source(kind="shards", paths=(str(tar),))
    recipe = Recipe(name="adopted", source=source, views=(View(name="raw"),))
    pool = str(tmp_path / "pool")
    recipe_run.build(recipe, pool, engine="inline")
    before, given = rows_of(pool), tar.read_bytes()
    chosen = next(row for row in before.values() if row["url"] == "http://h.test/2")
    result = purge(pool, capsys, f"uid={chosen['uid']}")
    assert result["adopted"] == [str(tar)]
    assert tar.read_bytes() == given
    record = read_commits(pool).record(0)
    assert (record.adopted, record.tar) == (False, "00000.r1.tar")
    copy = PoolLayout(pool).tar(record)
    assert {m.name for m in index_tar(copy)} == {n for n, _ in members_of_tar if n[:2] != "s2"}
    assert verify(pool) == []
    result = recipe_run.build(recipe, pool, engine="inline")  # does not adopt it again
    assert result["complete"]
    assert not result["changed"]
    assert rows_of(pool)[chosen["uid"]]["reason"] == "purged"
    # A second purge is of the pool's own copy.
    other = next(row for row in before.values() if row["url"] == "http://h.test/0")
    assert purge(pool, capsys, f"uid={other['uid']}")["adopted"] == []
    assert verify(pool) == []
    assert recipe_run.build(recipe, pool, engine="inline")["complete"]
