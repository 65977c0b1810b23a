"""Audit: every sum of a pool adds up or is named, and any row's history can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manifests import disk, identity
from manifests.pool_layout import SHARD_VERSION, PoolLayout, pool_fingerprint, read_commit_records
from manifests.schema import Recipe, Source
from pipeline.accounting.counts import (
    count_lines,
    count_pool,
    explain_lines,
    explain_row,
    write_pool_json,
)
from pipeline.audit import main
from pipeline.fetch import plan
from pipeline.pool import member_block, read_sidecar
from tests.support import audited


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return audited.make(tmp_path / "pool")


def change(path: str | Path, **values: Any) -> None:
    """Another value in a JSON file."""
    disk.write_json(path, {**disk.read_json(path), **values})


# --- books ---------------------------------------------------------------------------------------------------------


def test_the_books_of_a_whole_pool(pool: str) -> None:
    found = count_pool(pool)
    assert found["crawl"] == {"parts": 1, "links": 26, "pairs": 24, "reasons": {"empty_alt": 2}}
    fetched = found["fetch"]
    assert fetched["shards"] == fetched["planned"] == len(read_commit_records(pool)) > 1
    assert fetched["attempted"] == 24 == fetched["stored"] + sum(fetched["reasons"].values())
    assert fetched["reasons"] == {"dns": 2, "http_4xx": 4}
    assert fetched["classes"] == {"permanent": 4, "transient": 2}
    assert found["views"]["raw"]["kept"] == fetched["stored"] == 18
    [scores] = found["scores"].values()
    assert scores == {"rows": 24, "stored": 18, "scored": 18}
    assert (found["complete"], found["problems"]) == (True, [])
    text = "\n".join(count_lines(found))
    assert "24 attempted = 18 stored" in text
    assert "http_4xx" in text
    assert "attempted 24 → stored 18 → big" in text


def test_a_pool_on_its_way_is_not_complete(tmp_path: Path) -> None:
    pool = str(tmp_path)
    audited.write_pairs(pool)
    assert count_pool(pool)["complete"] is False
    assert count_pool(pool)["fetch"]["planned"] == 0
    tasks = plan.write_plan(pool, audited.RECIPE)
    audited.write_shard(pool, tasks[0])
    found = count_pool(pool)
    assert (found["fetch"]["shards"], found["fetch"]["planned"]) == (1, len(tasks))
    assert (found["complete"], found["problems"]) == (False, [])
    assert main([pool]) == 3


def test_a_row_that_was_retried_counts_once(pool: str) -> None:
    rows = [r for n in read_commit_records(pool) for r in read_sidecar(pool, n).to_pylist()]
    keys = [row["key"] for row in rows if row["class"] == "transient"]
    for task in plan.add_retries(pool, audited.RECIPE, keys):
        audited.write_shard(pool, task)
    fetched = count_pool(pool)["fetch"]
    assert (fetched["attempted"], fetched["retries"], fetched["stored"]) == (26, 2, 20)
    assert fetched["reasons"] == {"dns": 2, "http_4xx": 4}
    assert fetched["final"] == {"stored": 20, "reasons": {"http_4xx": 4}}
    assert count_pool(pool)["problems"] == []
    history = explain_row(pool, next(row["uid"] for row in rows if row["class"] == "transient"))
    assert [attempt["sidecar"]["reason"] for attempt in history["attempts"]] == ["dns", None]
    assert history["attempts"][1]["sidecar"]["retry_of"] == history["attempts"][0]["sidecar"]["key"]
    assert "older than this shard" in "\n".join(explain_lines(history))


def test_what_does_not_add_up_is_named(pool: str) -> None:
    record = read_commit_records(pool)["00001"]
    place = PoolLayout(pool).commit_record(1)
    for changes, message in [
        ({"count": record.count + 1}, "shards/00001: {} attempted are not"),
        ({"successes": record.successes - 1}, "are not {} stored"),
        ({"failed_to_resize": 1}, "its two kinds of failure"),
        ({"task": "other"}, "rows of task other; the plan has"),
    ]:
        change(place, **changes)
        value = next(iter(changes.values()))
        assert any(message.format(value) in problem for problem in count_pool(pool)["problems"]), (
            message
        )
        assert main([pool]) == 3
        disk.write_json(place, record.to_plain())
    assert count_pool(pool)["problems"] == []


def test_links_that_are_lost_are_named(tmp_path: Path) -> None:
    pool = audited.make(tmp_path)
    path = disk.join(pool, "pairs", "part-00000.parquet")
    table, notes = disk.read_parquet(path), disk.read_metadata(path)
    disk.write_parquet(path, table, {**notes, "links": 27})
    assert count_pool(pool)["problems"] == [
        "pairs/part-00000.parquet: 27 links are not 24 pairs + 2 dropped"
    ]
    disk.write_parquet(path, table, {**notes, "links": 27, "pairs": 25})
    assert (
        "all shards are there, and 25 pairs are not 24 rows attempted"
        in count_pool(pool)["problems"]
    )


def test_a_tar_of_the_recipe_that_was_not_adopted(tmp_path: Path) -> None:
    from pipeline.external.adopt import adopt, tickets

    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(member_block("x.txt", b"words") + bytes(1024))
    pool = str(tmp_path / "pool")
    source = Source(kind="shards", paths=(str(tmp_path / "*.tar"),))
    disk.write_json(disk.join(pool, "recipe.json"), Recipe(name="r", source=source))
    work = adopt({"pool": pool})
    for done, ticket in enumerate(tickets(source), 1):
        work(ticket)
        found = count_pool(pool)
        assert (found["fetch"]["shards"], found["fetch"]["planned"], found["complete"]) == (
            done,
            2,
            done == 2,
        )
    (tmp_path / "a.tar").unlink()
    (tmp_path / "b.tar").unlink()
    assert "there is no tar at" in count_pool(pool)["problems"][0]


def test_a_folder_that_is_no_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--verify"], ["--explain", "0" * 32]):
        assert main([str(tmp_path), *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1


# --- pool.json -----------------------------------------------------------------------------------------------------


def test_pool_json_can_be_made_again(pool: str) -> None:
    first = write_pool_json(pool, audited.RECIPE, {"crawl": 1.5, "fetch": 2.0})
    assert first == disk.read_json(disk.join(pool, "pool.json"))
    assert (first["recipe"], first["recipe_hash"]) == (
        "audited",
        identity.recipe_hash(audited.RECIPE),
    )
    assert first["fingerprint"] == pool_fingerprint(read_commit_records(pool))
    assert first["fetch"]["stored"] == 18
    assert first["versions"]["shard"] == [SHARD_VERSION]
    again = write_pool_json(pool, audited.RECIPE, {"fetch": 0.5})
    assert again["seconds"] == {"crawl": 1.5, "fetch": 2.5}
    disk.remove(disk.join(pool, "pool.json"))
    assert {**write_pool_json(pool, audited.RECIPE, {}), "seconds": 0} == {**first, "seconds": 0}


# --- one row -------------------------------------------------------------------------------------------------------


def test_the_whole_history_of_a_row(pool: str) -> None:
    rows = [
        row
        for number in read_commit_records(pool)
        for row in read_sidecar(pool, number).to_pylist()
    ]
    for row in rows:
        history = explain_row(pool, row["uid"])
        [attempt] = history["attempts"]
        assert history["pair"]["title"] == f"title {row['link']}"
        assert history["pair"]["warc_offset"] == 100 * row["link"]
        assert attempt["sidecar"] == row
        [scores] = attempt["scores"].values()
        said, width, words = (
            attempt["views"]["words"],
            10 + row["link"],
            len(row["caption"].split()),
        )
        text = "\n".join(explain_lines(history))
        if row["reason"]:
            assert said == {"kept": False, "rule": "not_stored"}
            assert f"{row['reason']} (" in text
            assert "it failed" in text
            continue
        assert scores["caption_words"] == words
        if width < 20:
            assert said["rule"] == "big"
            assert said["values"] == {"original_width": width}
            assert f"not kept by big: original_width >= 20; original_width = {width}" in text
        elif not said["kept"]:
            assert said["rule"] == "many"
            assert said["values"] == {"caption_words": words}
            [(call, value)] = said["thresholds"].items()
            assert words < value
            assert f"{call} = {value}" in text
        drawn = attempt["views"]["drawn"]
        assert drawn["kept"] or "drawn at random, as many as words keeps" in drawn["note"]


def test_a_pair_that_waits(tmp_path: Path) -> None:
    rows = audited.write_pairs(str(tmp_path))
    history = explain_row(str(tmp_path), rows[3]["uid"])
    assert history["attempts"] == []
    assert history["pair"]["url"] == rows[3]["url"]
    assert "not attempted yet" in "\n".join(explain_lines(history))


def test_explain_as_a_command(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    uid = read_sidecar(pool, 0, ["uid"])["uid"].to_pylist()[0]
    assert main([pool, "--explain", uid, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["uid"] == uid
    assert main([pool, "--explain", "f" * 32]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"error: {pool} has no row with uid '{'f' * 32}', neither among its pairs nor among 24 rows attempted\n"
    )


def test_verify_as_a_command(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([pool, "--verify", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == "every sum adds up and every file is whole"
    assert json.loads(out[-1])["damaged"] == []
    tar = Path(pool) / "shards/00001.tar"
    tar.write_bytes(tar.read_bytes()[:-1])
    assert main([pool, "--verify"]) == 3
    assert "WRONG   shards/00001.tar: damaged" in capsys.readouterr().out
    Path(PoolLayout(pool).commit_record(0)).write_text("{")
    assert main([pool, "--verify"]) == 3
    told = capsys.readouterr().out
    assert "shards/00000_stats.json: damaged" in told
    assert "shards/00001.tar: damaged" in told
