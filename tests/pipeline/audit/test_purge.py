"""A purge: what it removes is in no file of the pool, every other byte of an image stays, counts
agree, and a kill at any moment is made good by the next purge. Then purges through the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clipmill.filters import FILTERS
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles, view_shards
from clipmill.manifests.commits import (
    open_shard_files,
    read_commits,
    read_index_document,
    update_index,
)
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import (
    ScoreSetDocument,
    ShardTable,
    ViewDocument,
    ViewRule,
    read_document,
)
from clipmill.manifests.schema import FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit import purge as purge_module
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.explain import explain_lines, explain_row
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.audit.purge import (
    find_users,
    minus,
    purge_lines,
    purge_rows,
    purges_of_name,
    purges_of_uid,
    read_criteria,
)
from clipmill.pipeline.pool.lease import PoolWriter, hold_lease
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.pool.tars import index_tar
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import choose_views, write_selected_view
from tests.support import audited, commands
from tests.support.bundles import scores_of
from tests.support.commit_records import pool_fingerprint, read_commit_records
from tests.support.exported import exported_pool
from tests.support.folders import make_bundles_small
from tests.support.other_tars import pack, picture
from tests.support.purged import contents, make, members, rows_of
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import Row, make_pool, rows, set_name
from tests.support.toy_pool_filters import Often

ROWS = 240


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("whole") / "pool", ROWS))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("small") / "pool", 24))


def test_a_hundred_of_a_hundred_rows_are_gone(whole: Path, tmp_path: Path) -> None:
    pool = str(shutil.copytree(whole, tmp_path / "pool"))
    before = rows_of(pool)
    kept_before = read_document(PoolLayout(pool).view_json("words"), ViewDocument)
    chosen = list(before.values())[:: len(before) // 100][:100]
    lines = [f"uid={row['uid']}" for row in chosen[:50]]
    lines += ["# by URL", "", *(f"url={row['url']}" for row in chosen[50:])]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    images = {row["uid"]: members(pool, row) for row in before.values() if row["image_name"]}
    result = purge_rows(PoolWriter(pool), read_criteria([str(tmp_path / "rows.txt")]))
    assert result.rows == 100
    everything = list(contents(pool))
    gone = 0
    for row in chosen:
        parts = [row["url"].encode(), row["caption"].split()[-1].encode()]
        parts += [images[row["uid"]][0]] if row["uid"] in images else []
        gone += not any(part in content for part in parts for content in everything)
    assert gone == 100
    after = rows_of(pool)
    purged = {row["uid"] for row in chosen}
    assert after.keys() == before.keys()
    for uid, row in after.items():
        if uid in purged:
            values = {name for name, value in row.items() if value is not None}
            assert values == {"uid", "key", "status", "reason", "class", "shard"}
            assert (row["reason"], row["class"]) == ("purged", "refused")
        elif uid in images:
            assert members(pool, row) == images[uid]
    counts = count_pool(read_commits(pool))
    assert counts.complete
    assert counts.problems == ()
    assert counts.fetch.reasons["purged"] == 100
    assert verify(pool) == []
    document = read_document(PoolLayout(pool).view_json("words"), ViewDocument)
    assert document.kept == kept_before.kept - result.views["words"]
    assert document.fingerprint == read_commits(pool).fingerprint != kept_before.fingerprint
    assert purge_rows(PoolWriter(pool), read_criteria([str(tmp_path / "rows.txt")])).rows == 0


def test_domains_and_hashes_fit_what_was_received(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    urls = [
        "https://a.bad.example/1.jpg",
        "https://BAD.example:8080/2.jpg",
        "https://user@bad.example/3.jpg",
        "https://notbad.example/4.jpg",
        "https://good.example/bad.example/5.jpg",
        "https://good.example/6.jpg",
    ]
    with ShardWriter(PoolWriter(pool), 0, "task", "0") as writer:
        for i, url in enumerate(urls):
            sha256 = f"{i:064x}"
            record = {"url": url, "caption": f"c{i}", "uid": f"{i:032x}", "sha256": sha256}
            writer.add(i, record, audited.image_bytes(20, i))
        writer.commit(len(urls))
    shown = Path(PoolLayout(pool).progress_json)
    shown.write_text('{"hosts": ["bad.example"]}')
    criteria = read_criteria(["domain=Bad.Example.", f"sha256={5:064X}"])
    assert purge_rows(PoolWriter(pool), criteria).rows == 4
    assert not shown.exists(), "what a build showed has names of hosts"
    reasons = [row["reason"] for row in rows_of(pool).values()]
    assert reasons == ["purged", "purged", "purged", None, None, "purged"]
    assert verify(pool) == []


@pytest.mark.parametrize(
    "word", ["host=x", "uid=12", "sha256=zz", "url=", "nothing", f"uid={'g' * 32}"]
)
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"^{word}: "):
        read_criteria([word])


def test_a_pair_without_a_plan_is_dropped_and_counted(tmp_path: Path) -> None:
    pool = str(tmp_path / "pool")
    rows = audited.write_pairs(pool, 5)
    assert purge_rows(PoolWriter(pool), {"uid": {rows[2]["uid"]}}).rows == 1
    crawl = count_pool(read_commits(pool)).crawl
    assert crawl is not None
    assert (crawl.pairs, crawl.reasons["purged"]) == (4, 1)
    assert count_pool(read_commits(pool)).problems == ()


def test_views_and_the_runs_that_drew_from_them_are_named(small: Path, tmp_path: Path) -> None:
    pool = str(shutil.copytree(small, tmp_path / "pool"))
    run(tmp_path / "study/runs/a/seed-0", pool, "raw")
    run(tmp_path / "study/runs/a/seed-1", pool, "other")
    run(tmp_path / "single", pool, "raw", "run.json")
    run(tmp_path / "elsewhere", "/other/place", "raw")
    disk.write_json(tmp_path / "study/ablation.json", {})
    (tmp_path / "study/report.html").write_text("")
    users = {"study/runs/a/seed-0", "study", "study/report.html", "single"}
    single = str(tmp_path / "single")
    assert list(find_users(pool, ["raw"], [single])) == [single]
    stored = next(row for row in rows_of(pool).values() if row["image_name"])
    result = purge_rows(PoolWriter(pool), {"uid": {stored["uid"]}})
    assert result.views["raw"] == 1
    assert set(result.runs) == {str(tmp_path / user) for user in users}
    assert any("study/runs/a/seed-0" in line for line in purge_lines(result))
    with pytest.raises(ValueError, match="is not a folder"):
        purge_rows(
            PoolWriter(pool), {"uid": {next(iter(rows_of(pool)))}}, used_by=[str(tmp_path / "none")]
        )


def test_what_depends_on_other_rows_is_old_after_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILTERS, "often", Often)
    given = [Row(caption=f"word {i % 3}") for i in range(12)]
    pool = make_pool(tmp_path, given, per_shard=4)
    often = FilterSpec(name="often")
    view = View(name="rare", rules=(Rule(name="rare", where="often <= 4"),))
    recipe = Recipe(
        name="r",
        source=Source(kind="files", paths=("x.csv",)),
        filters=(FilterSpec(name="caption"), often),
        views=(View(name="raw"), view),
    )
    score(PoolWriter(pool), recipe.filters, engine="inline")
    choose_views(PoolWriter(pool), recipe)
    left = Path(PoolLayout(pool).score_scratch("often@0-before"), "run-route-00000.parquet")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"captions")
    url = "https://img0.example/0.jpg"
    result = purge_rows(PoolWriter(pool), read_criteria([f"url={url}"]))
    old = [name.partition("@")[0] for name in result.old]
    assert old == ["often", "rare"]
    assert "old     often@" in "\n".join(purge_lines(result))
    assert not left.parent.parent.exists()
    assert [line.partition(": stale")[0] for line in verify(pool)] == [
        f"scores/{result.old[0]}", "views/rare",
    ]  # fmt: skip
    assert choose_views(PoolWriter(pool), recipe, ["raw"])["raw"].kept == 11
    with pytest.raises(ValueError, match=r"scores of filter often .* are of an older state"):
        choose_views(PoolWriter(pool), recipe)
    assert score(PoolWriter(pool), recipe.filters, engine="inline")["failed"] == {}
    assert choose_views(PoolWriter(pool), recipe)["rare"].kept == 11
    columns = scores_of(pool, set_name(often), 0)["often"].to_pylist()
    assert columns == [None, 4, 4, 3]
    assert verify(pool) == []


# --------------------------------------------------------------------------------------------------
# The content of rows goes, everything beside it stays.


def test_a_funnel_without_the_purged_rows() -> None:
    document = ViewDocument(
        name="v",
        rules=(ViewRule(name="a"), ViewRule(name="b")),
        thresholds={},
        funnel=(("attempted", 10), ("stored", 9), ("a", 6), ("b", 4)),
        kept=4,
        fingerprint="old",
        scores={},
        shards=ShardTable(file="shards-0.parquet", count=1, sha256=""),
    )
    changed = minus(document, {"": 1, "a": 1, "b:missing": 1, "not_stored": 5}, "new")
    assert changed.funnel == (("attempted", 10), ("stored", 6), ("a", 4), ("b", 3))
    assert (changed.kept, changed.fingerprint) == (3, "new")


# --------------------------------------------------------------------------------------------------
# Runs, ablations and reports that drew from a view are found by their documents.


def run(folder: Path, pool: str, view: str, name: str = "blend.json") -> None:
    blend = {"pools": {"web": pool}, "views": {f"web/{view}": 1.0}}
    disk.write_json(folder / name, blend if name == "blend.json" else {"blend": blend})


def test_pools_hidden_folders_and_damaged_documents_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / "pool"
    run(pool / "shards/00003/deep", str(pool), "raw")
    run(tmp_path / ".hidden", str(pool), "raw")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    disk.write_json(tmp_path / "list/run.json", [1])
    assert list(find_users(str(pool), ["raw"], [])) == []


# --------------------------------------------------------------------------------------------------
# What was purged is known without its content; a row of a selected view and stray files too.


def row_of(pool: str, shard: int, row: int) -> dict[str, str]:
    sidecar = disk.read_parquet(read_commits(pool).sidecar(shard), ["uid", "url"])
    values: dict[str, str] = sidecar.to_pylist()[row]
    return values


def test_a_purged_url_uid_and_host_are_explained_without_their_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path / "pool", rows(20))
    by_url, by_host, by_uid = row_of(pool, 0, 1), row_of(pool, 0, 2), row_of(pool, 1, 3)
    host = by_host["url"].split("/")[2]
    purge_rows(PoolWriter(pool), read_criteria([f"url={by_url['url']}", f"domain={host}"]))
    purge_rows(PoolWriter(pool), read_criteria([f"uid={by_uid['uid']}"]))
    for name in (by_url["url"], by_host["url"], f"https://www.{host}/another.jpg"):
        (purge,) = explain_row(pool, name)["purged"]
        assert (purge["by"], purge["rows"]) == (["domain", "url"], 2)
        assert purge["at"].endswith("Z")
    (line,) = explain_lines(explain_row(pool, by_url["url"]))
    assert "by domain and url, with 2 rows" in line
    assert "http" not in line
    history = explain_row(pool, by_uid["uid"])
    for purged in (history["purged"], explain_row(pool, by_uid["url"])["purged"]):
        assert [purge["by"] for purge in purged] == [["uid"]]
    assert any(line.startswith("purged") for line in explain_lines(history))
    assert explain_row(pool, by_host["uid"])["purged"][0]["by"] == ["domain", "url"]
    assert explain_row(pool, row_of(pool, 1, 5)["uid"])["purged"] == []
    for path in Path(pool, "purges").iterdir():
        for text in (by_url["url"], by_uid["url"], host):
            assert text not in path.read_text()
    assert commands.audit(["explain", pool, by_url["url"]]) == 0
    assert "purged" in capsys.readouterr().out
    assert commands.audit(["explain", pool, "https://never.example/x.jpg"]) == 2
    assert (
        purges_of_name(PoolLayout(pool), "not a url")
        == purges_of_uid(PoolLayout(pool), "ab" * 16)
        == []
    )


def test_a_killed_purge_leaves_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(tmp_path / "pool", rows(10))
    row = row_of(pool, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(purge_module.disk, "remove", _killed_at_the_journal)
        with pytest.raises(KeyboardInterrupt):
            purge_rows(PoolWriter(pool), read_criteria([f"url={row['url']}"]))
    with pytest.raises(ValueError, match=r"no row of .* matches"):  # the first one is ended
        purge_rows(PoolWriter(pool), read_criteria(["url=https://other.example/"]))
    assert len(disk.list_names(disk.join(pool, "purges"))) == 1
    assert len(explain_row(pool, row["url"])["purged"]) == 1


def _killed_at_the_journal(path: str) -> None:
    if str(path).endswith("purge.json"):
        raise KeyboardInterrupt
    Path(path).unlink(missing_ok=True)


def test_a_row_that_a_selected_view_does_not_keep(tmp_path: Path) -> None:
    pool = make_pool(tmp_path / "pool", rows(10))
    commits = read_commits(pool)
    write_selected_view(
        PoolWriter(commits.pool),
        commits,
        "even",
        "in the even rows",
        lambda start, stop: np.arange(start, stop) % 2 == 0,
    )
    decision = explain_row(pool, row_of(pool, 0, 1)["uid"])["attempts"][0]["views"]["even"]
    [rule] = decision["rules"]
    assert (rule["rule"], rule["outcome"]) == ("in the even rows", "rejects")


def test_a_stray_folder_is_no_view_and_a_stray_file_has_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = exported_pool(tmp_path / "pool")
    stray = Path(pool, "views", "stray.json")
    stray.mkdir()
    assert commands.audit(["verify", pool]) == 0
    recipe = Recipe(
        name="r", source=Source(kind="files", paths=("x.csv",)), views=(View(name="raw"),)
    )
    choose_views(PoolWriter(pool), recipe)
    uid = row_of(pool, 0, 0)["uid"]
    assert set(explain_row(pool, uid)["attempts"][0]["views"]) == {"raw", "wide"}
    stray.rmdir()
    stray.write_text("{}")
    capsys.readouterr()
    assert commands.audit([pool]) == 3
    output = capsys.readouterr().out
    assert "views/stray.json is no ViewDocument" in output
    assert "make the view again with clipmill filter, or remove it" in output


# --------------------------------------------------------------------------------------------------
# Purges through the command: of rows that are not there, twice, under another lease, of adopted
# tars, of all of a shard, in bundles; and what a build makes of the pool afterwards.


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
    columns = {
        name: AlignedFiles.of_scores(PoolLayout(pool), scores).read(name)[0]
        for name in commits.names()
    }
    masks = {
        name: AlignedFiles.of_view(PoolLayout(pool), "words").read(name)[0]
        for name in commits.names()
    }
    documents = read_document(layout.view_json("words"), ViewDocument)
    scored = read_document(layout.score_set_json(scores), ScoreSetDocument).scored
    chosen = [
        row for row in before.values() if row["image_name"] and int(row["shard"]) in (1, 4, 5)
    ]
    uids = {row["uid"] for row in chosen}
    assert purge(pool, capsys, *(f"uid={uid}" for uid in uids))["rows"] == len(uids)
    # A reader that trusts the closed index finds the new files, and so does one that does not.
    document = read_index_document(PoolLayout(pool))
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
    view, columns_of = (
        AlignedFiles.of_view(PoolLayout(pool), "words"),
        AlignedFiles.of_scores(PoolLayout(pool), scores),
    )
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
    words = read_document(layout.view_json("words"), ViewDocument)
    assert int(view_shards(PoolLayout(pool), words)[1].sum()) == words.kept < documents.kept
    now = read_document(layout.score_set_json(scores), ScoreSetDocument)
    assert now.scored == scored - len(uids)
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
