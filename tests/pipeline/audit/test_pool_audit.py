"""The audit of a pool as a person reads it: counts, problems, notes, and one last line; and counts
that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clipmill.manifests import disk, identity
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import SHARD_VERSION, PoolLayout
from clipmill.manifests.records import CrawlCounts, FinalCounts, ScoreCounts
from clipmill.manifests.schema import Recipe, Rule, Source, View
from clipmill.pipeline.audit.counts import count_pool, write_pool_json
from clipmill.pipeline.audit.integrity import audit_lines, audit_pool, count_lines
from clipmill.pipeline.external.adopt import adopt_tars, tar_tickets
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import member_block
from clipmill.pipeline.views.files import choose_views
from tests.support import audited, commands, plans
from tests.support.commit_records import pool_fingerprint, read_commit_records
from tests.support.other_tars import adoption, take
from tests.support.pairs import write_part
from tests.support.small_pool import Row, make_pool


def test_a_pool_on_its_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = str(tmp_path)
    audited.write_pairs(pool)
    assert commands.audit([pool]) == 3
    assert "no shard is planned yet: run clipmill build" in capsys.readouterr().out
    tasks = plans.planned(pool, audited.RECIPE)
    audited.write_shard(pool, tasks[0])
    fetch = audit_pool(pool).counts.fetch  # type: ignore[union-attr]
    assert (fetch.shards, fetch.planned) == (1, len(tasks))
    assert commands.audit([pool]) == 3
    assert f"{len(tasks) - 1} shards are missing: run clipmill build" in capsys.readouterr().out


def test_views_that_the_recipe_no_longer_has_are_a_note(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(name="r", source=Source(kind="wat", paths=("x",)), views=(View(name="raw"),))
    disk.write_json(PoolLayout(pool).recipe_json, recipe)
    assert commands.audit([pool, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("note")] == [
        "note    views that recipe 'r' does not have stay in the pool: drawn, words; "
        "a view is removed by deleting views/NAME.json and then the folder views/NAME"
    ]
    assert json.loads(lines[-1])["notes"] == [lines[-3].removeprefix("note    ")]


def test_a_view_with_other_rules_than_recipe_json_is_a_note(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.write_json(PoolLayout(pool).recipe_json, audited.RECIPE)
    assert commands.audit([pool]) == 0
    assert "note" not in capsys.readouterr().out
    rule = Rule(name="big", where="original_width >= 25")
    choose_views(
        PoolWriter(pool), audited.recipe_with(View(name="words", rules=(rule,))), ["words"]
    )
    assert commands.audit([pool]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert lines[0] == (
        "note    view words has other rules than recipe.json of the pool: rule big was "
        "(original_width >= 20) and is (original_width >= 25); rule many (caption_words >= "
        "top(caption_words, 0.5)) is gone; clipmill filter made it with another recipe"
    )
    assert len(lines) == 1


def test_a_pool_that_lost_all_rows_names_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path, [Row(caption="x", reason="missing_file", url="/data/\x1b[1m.jpg")])
    commands.audit([pool])
    out = capsys.readouterr().out
    assert (
        "note    none of the 1 rows is stored; an example of missing_file: "
        r"row 000000000: /data/\x1b[1m.jpg"
    ) in out


def test_a_source_without_a_pair_is_not_told_to_build_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_part(tmp_path, PAIRS.empty_table(), links=9, reasons={"bad_url": 9})
    assert commands.audit([str(tmp_path)]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("the source gave no pair: correct it in the recipe")


def test_adopted_tars_that_changed_or_went_away_are_problems(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    members = member_block("a.jpg", audited.image_bytes(20, 1)) + member_block("a.txt", b"words")
    tar.write_bytes(members + bytes(1024))
    pool = str(tmp_path / "pool")
    take(pool, tar)
    assert audit_pool(pool).is_fine
    tar.write_bytes(members.replace(b"words", b"sword") + bytes(1024))  # of the same size
    audit = audit_pool(pool, verify_files=True)
    assert not audit.is_fine
    assert audit.damaged == (f"{tar}: damaged: another sha256",)
    [problem] = audit.problems
    assert problem.startswith(f"{tar}: changed since shard 00000 was adopted from it: ")
    assert audit_lines(audit)[-3:] == [
        f"WRONG   {problem}", f"WRONG   {audit.damaged[0]}", "2 problems found",
    ]  # fmt: skip
    tar.unlink()
    assert audit_pool(pool).problems == (f"{tar}: missing; shard 00000 was adopted from it",)


def test_a_damaged_document_is_a_problem_and_the_rest_is_counted(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = PoolLayout(pool)
    [name] = disk.list_names(layout.scores)
    Path(layout.view_json("raw")).write_text("{")
    Path(layout.score_set_json(name)).write_text('{"name": 3}')
    assert commands.audit([pool]) == 3
    lines = capsys.readouterr().out.splitlines()
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert len(wrong) == 2
    assert "scores.json is no ScoreSetDocument" in wrong[0]
    assert "views/raw.json is not JSON" in wrong[1]
    assert any(line.startswith("view    words: attempted 24") for line in lines)
    assert lines[-1] == "2 problems found"


def test_verify_as_a_command(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.audit(["verify", pool, "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == "all counts are consistent and all files are intact"
    for line in (
        "crawl   26 links of 1 parts = 24 pairs + 2 dropped",
        "        24 attempted = 18 stored + 6 not stored",
    ):
        assert line in out
    plain = json.loads(out[-1])
    assert (plain["complete"], plain["problems"], plain["damaged"]) == (True, [], [])
    assert plain["fetch"]["stored"] == 18
    tar = Path(pool) / "shards/00001.tar"
    tar.write_bytes(tar.read_bytes()[:-1])
    assert commands.audit(["verify", pool]) == 3
    assert "WRONG   shards/00001.tar: damaged" in capsys.readouterr().out
    Path(PoolLayout(pool).commit_record(0)).write_text("{")
    assert commands.audit(["verify", pool, "--json"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("WRONG   the pool cannot be counted: ") for line in lines)
    assert any(line.startswith("WRONG   shards/00000_stats.json: damaged") for line in lines)
    assert any(line.startswith("WRONG   shards/00001.tar: damaged") for line in lines)
    assert json.loads(lines[-1])["complete"] is False


def test_a_folder_that_is_no_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = str(tmp_path)
    for words in ([pool], ["verify", pool], ["explain", pool, "0" * 32]):
        assert commands.audit(words) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1


# --------------------------------------------------------------------------------------------------
# `clipmill audit` as a command: statuses, one line for a mistake, JSON at the end.


@pytest.mark.parametrize("row", ["none.jpg", "f" * 32])
def test_a_row_that_is_not_there_is_a_mistake(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path, [Row(caption="a cat"), Row(caption="a dog", reason="http_4xx")])
    assert commands.audit(["explain", pool, row]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "POOL", ""], "ROW is empty; give a uid"),
        (["explain", "POOL", "x", "--engine", "ray"], "Unknown option: --engine"),
        (["POOL", "--engine", "inline"], "Unknown option: --engine"),
        (["lock", "POOL", ""], "parquet"),
    ],
)
def test_no_option_is_ignored(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path, [Row(caption="a cat")])
    assert commands.audit([pool if word == "POOL" else word for word in words]) == 2
    assert message in capsys.readouterr().err


def test_the_counts_of_a_whole_pool(pool: str) -> None:
    counts = count_pool(read_commits(pool))
    assert counts.crawl == CrawlCounts(parts=1, links=26, pairs=24, reasons={"empty_alt": 2})
    fetch = counts.fetch
    assert fetch.shards == fetch.planned == len(read_commit_records(pool)) > 1
    assert fetch.attempted == 24 == fetch.stored + sum(fetch.reasons.values())
    assert fetch.reasons == {"dns": 2, "http_4xx": 4}
    assert fetch.classes == {"permanent": 4, "transient": 2}
    assert counts.views["raw"].kept == fetch.stored == 18
    assert list(counts.scores.values()) == [ScoreCounts(rows=24, stored=18, scored=18)]
    assert (counts.complete, counts.problems) == (True, ())


def test_a_row_that_was_retried_counts_once(pool: str) -> None:
    audited.retry_transient(pool)
    counts = count_pool(read_commits(pool))
    fetch = counts.fetch
    assert (fetch.attempted, fetch.retries, fetch.stored) == (26, 2, 20)
    assert fetch.reasons == {"dns": 2, "http_4xx": 4}
    assert fetch.final == FinalCounts(stored=20, reasons={"http_4xx": 4})
    assert "        with their retries 20 of 24 rows are stored" in list(count_lines(counts))
    assert counts.problems == ()


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("count", 1, "shards/00001: {} attempted, but"),
        ("successes", -1, "attempted, but {} stored +"),
        ("failed_to_resize", 1, "with a reason, but failed_to_download + failed_to_resize = "),
        ("task", "other", "rows of task other; the plan has"),
    ],
)
def test_counts_that_contradict_each_other_are_named(
    pool: str, key: str, change: Any, message: str
) -> None:
    path = PoolLayout(pool).commit_record(1)
    record = disk.read_json(path)
    value = record[key] + change if isinstance(change, int) else change
    disk.write_json(path, {**record, key: value})
    problems = count_pool(read_commits(pool)).problems
    assert any(message.format(value) in problem for problem in problems), problems
    assert commands.audit([pool]) == 3
    disk.write_json(path, record)
    assert count_pool(read_commits(pool)).problems == ()


def test_a_reason_of_another_version_is_named(pool: str) -> None:
    path = PoolLayout(pool).commit_record(1)
    record = disk.read_json(path)
    reasons = dict(record["reasons"])
    _, rows = reasons.popitem()
    reasons["eclipse"] = rows
    disk.write_json(path, {**record, "reasons": reasons})
    counts = count_pool(read_commits(pool))
    assert any("rows have the reason 'eclipse', which is none of" in p for p in counts.problems)
    assert counts.fetch.reasons["eclipse"] == rows
    assert commands.audit([pool]) == 3


def test_links_that_are_lost_are_named(pool: str) -> None:
    path = PoolLayout(pool).pairs_part(0)
    table, metadata = disk.read_parquet(path), disk.read_metadata(path)
    disk.write_parquet(path, table, {**metadata, "links": 27})
    assert count_pool(read_commits(pool)).problems == (
        "pairs/part-00000.parquet: 27 links, but 24 pairs + 2 dropped",
    )
    longer = pa.concat_tables([table, table.slice(0, 1)])
    disk.write_parquet(path, longer, {**metadata, "links": 27, "pairs": 25})
    assert count_pool(read_commits(pool)).problems == (
        "all shards are committed with 24 rows, but there are 25 pairs",
    )


def test_a_tar_of_the_recipe_that_was_not_adopted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(member_block("x.txt", b"words") + bytes(1024))
    pool = str(tmp_path / "pool")
    source = Source(kind="shards", paths=(str(tmp_path / "*.tar"),))
    disk.write_json(PoolLayout(pool).recipe_json, Recipe(name="r", source=source))
    work = adopt_tars(adoption(pool, source))
    for done, ticket in enumerate(tar_tickets(source), 1):
        work(ticket)
        counts = count_pool(read_commits(pool))
        assert (counts.fetch.shards, counts.fetch.planned) == (done, 2)
        assert counts.complete == (done == 2)
    (tmp_path / "a.tar").unlink()
    (tmp_path / "b.tar").unlink()
    assert "there is no file" in count_pool(read_commits(pool)).problems[0]


def test_pool_json_can_be_made_again(pool: str) -> None:
    first = write_pool_json(read_commits(pool), audited.RECIPE, {"crawl": 1.5, "fetch": 2.0})
    assert first == disk.read_json(disk.join(pool, "pool.json"))
    assert (first["recipe"], first["recipe_hash"]) == (
        "audited",
        identity.recipe_hash(audited.RECIPE),
    )
    assert first["fingerprint"] == pool_fingerprint(read_commit_records(pool))
    assert first["fetch"]["stored"] == 18
    assert first["versions"]["shard"] == [SHARD_VERSION]
    again = write_pool_json(read_commits(pool), audited.RECIPE, {"fetch": 0.5})
    assert again["seconds"] == {"crawl": 1.5, "fetch": 2.5}
    disk.remove(disk.join(pool, "pool.json"))
    assert {**write_pool_json(read_commits(pool), audited.RECIPE, {}), "seconds": 0} == {
        **first,
        "seconds": 0,
    }
