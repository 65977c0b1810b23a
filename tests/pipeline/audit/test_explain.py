"""The history of a row, whatever it is named by, and shown so that no stranger writes to the
terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.schema import Recipe, Rule, View
from clipmill.pipeline.audit.explain import explain_lines, explain_row
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import choose_views
from tests.support import audited, commands
from tests.support.commit_records import read_commit_records
from tests.support.exported import FILTERS, RECIPE, exported_pool
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import Row, make_pool

NAMES = ("big", "many")  # the rules of the view words
KEEPS = {True: "keeps", False: "rejects"}


def sidecar_rows(pool: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for shard in read_commit_records(pool):
        rows += read_sidecar(pool, shard).to_pylist()
    return rows


def text_of(history: dict[str, Any]) -> str:
    return "\n".join(explain_lines(history))


@pytest.mark.slow
def test_the_whole_history_of_a_row(pool: str) -> None:
    for row in sidecar_rows(pool):
        history = explain_row(pool, row["uid"])
        [attempt] = history["attempts"]
        assert history["pair"]["title"] == f"title {row['link']}"
        assert history["pair"]["warc_offset"] == 100 * row["link"]
        assert attempt["sidecar"] == row
        [scores] = attempt["scores"].values()
        decision = attempt["views"]["words"]
        width, words = 10 + row["link"], len(row["caption"].split())
        text = text_of(history)
        if row["reason"]:
            assert decision == {"kept": False, "rule": "not_stored"}
            assert f"{row['reason']} (" in text
            assert "it failed" in text
            continue
        assert scores["caption_words"] == words
        big, many = decision["rules"]
        assert big["values"] == {"original_width": width}
        [(call, value)] = [each for each in many["values"].items() if each[0] != "caption_words"]
        kept = [width >= 20, words >= value]
        assert [rule["outcome"] for rule in (big, many)] == [KEEPS[each] for each in kept]
        first = next((name for name, is_kept in zip(NAMES, kept, strict=True) if not is_kept), None)
        assert (decision["kept"], decision["rule"]) == (first is None, first)
        assert first is None or f"words: not kept by {first}" in text
        assert f"big: original_width >= 20; original_width = {width}" in text
        assert f"caption_words = {words}; {call} = {value}" in text
        drawn = attempt["views"]["drawn"]
        [rule] = drawn["rules"]
        state = "not known for one row alone" if drawn["kept"] else "rejects"
        assert (rule["rule"], rule["outcome"]) == ("random_like words, seed 0", state)


def test_a_retried_row_has_two_attempts(pool: str) -> None:
    audited.retry_transient(pool)
    retried = next(row for row in sidecar_rows(pool) if row["class"] == "transient")
    history = explain_row(pool, retried["uid"])
    first, second = history["attempts"]
    assert (first["sidecar"]["reason"], second["sidecar"]["reason"]) == ("dns", None)
    assert second["sidecar"]["retry_of"] == first["sidecar"]["key"]
    assert "older than this shard" in text_of(history)


def test_a_row_by_url_key_and_file_name(pool: str) -> None:
    stored = next(row for row in sidecar_rows(pool) if row["reason"] is None)
    lost = next(row for row in sidecar_rows(pool) if row["reason"] is not None)
    for row in (stored, lost):
        last_part = row["url"].rpartition("/")[2]
        for name in (row["uid"], row["url"], row["key"], last_part):
            assert explain_row(pool, name)["uid"] == row["uid"], name
    assert explain_row(pool, stored["image_name"])["uid"] == stored["uid"]


@pytest.mark.parametrize(
    ("url", "name", "fits"),
    [
        ("https://x.test/a/dog.jpg?size=2", "dog.jpg", True),
        ("https://x.test/a/dog.jpg#top", "dog.jpg", True),
        ("/data/images/dog.jpg", "dog.jpg", True),
        ("dog.jpg", "dog.jpg", True),
        ("https://x.test/hotdog.jpg", "dog.jpg", False),
        ("https://x.test/dog.jpg/other", "dog.jpg", False),
        ("https://x.test/a.b+c(1).jpg", "a.b+c(1).jpg", True),
        ("https://x.test/aXb+c(1).jpg", "a.b+c(1).jpg", False),
    ],
)
def test_the_last_part_of_a_path_is_a_name(url: str, name: str, fits: bool, tmp_path: Path) -> None:
    pool = make_pool(tmp_path, [Row(caption="x", url=url), Row(caption="y")])
    if fits:
        assert explain_row(pool, name)["attempts"][0]["sidecar"]["url"] == url
    else:
        with pytest.raises(ValueError, match="has no row with uid, URL, key or file name"):
            explain_row(pool, name)


def test_several_matches_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = [f"https://host{i}.test/same.jpg" for i in range(25)]
    pool = make_pool(tmp_path, [Row(caption="x", url=url) for url in urls])
    history = explain_row(pool, "same.jpg")
    assert [match["url"] for match in history["matches"]] == urls
    lines = explain_lines(history)
    assert lines[0] == "25 rows fit 'same.jpg'; give one of these uids"
    first = history["matches"][0]
    assert lines[1] == f"match   {first['uid']}  shard 00000 key 000000000  {urls[0]}"
    assert lines[-1].split() == ["and", "5", "more"]
    assert commands.audit(["explain", pool, "same.jpg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["matches"] == history["matches"]


def test_a_pair_that_waits(tmp_path: Path) -> None:
    rows = audited.write_pairs(str(tmp_path))
    for name in (rows[3]["uid"], rows[3]["url"], "3.jpg"):
        history = explain_row(str(tmp_path), name)
        assert history["attempts"] == []
        assert history["pair"]["url"] == rows[3]["url"]
        assert "not attempted yet" in text_of(history)


def test_captions_and_urls_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caption, url = "a \x1b[2J dog \x9b31m \u202e", "https://x.test/\x1b]0;title\x07.jpg"
    pool = make_pool(tmp_path, [Row(caption=caption, url=url), Row(caption="y", url=url)])
    uid = sidecar_rows(pool)[0]["uid"]
    for row in (uid, url, "\x1bx"):
        commands.audit(["explain", pool, row, "--json"])
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        assert not [c for c in shown if c != "\n" and not c.isprintable()]
    commands.audit(["explain", pool, uid, "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert any(r"a \x1b[2J dog \x9b31m \u202e" in line for line in lines)
    assert json.loads(lines[-1])["attempts"][0]["sidecar"]["caption"] == caption


def test_every_rule_of_a_view_is_shown_whatever_the_others_say(tmp_path: Path) -> None:
    pool = exported_pool(tmp_path / "pool")
    rules = (
        Rule(name="words", where="caption_words > 3"),
        Rule(name="wide", where="original_width >= top(original_width, 0.5)"),
        Rule(name="language", where="coalesce(page_lang, 'en') = 'en'"),
    )
    recipe = Recipe(
        name="r", source=RECIPE.source, filters=FILTERS, views=(View(name="three", rules=rules),)
    )
    choose_views(PoolWriter(pool), recipe)
    uid = disk.read_parquet(read_commits(pool).sidecar(0), ["uid"])["uid"][0].as_py()
    history = explain_row(pool, uid)
    decision = history["attempts"][0]["views"]["three"]
    assert decision["rule"] == "words"
    assert [(rule["name"], rule["outcome"]) for rule in decision["rules"]] == [
        ("words", "rejects"), ("wide", "rejects"), ("language", "keeps"),
    ]  # fmt: skip
    assert "          rejects  words: caption_words > 3; caption_words = 1" in explain_lines(
        history
    )
    assert history["attempts"][0]["views"]["wide"]["rules"] == [
        {"name": "wide", "rule": "original_width >= 200", "outcome": "rejects",
         "values": {"original_width": 100}},
    ]  # fmt: skip
    best = disk.read_parquet(read_commits(pool).sidecar(5), ["uid"])["uid"][7].as_py()
    states = explain_row(pool, best)["attempts"][0]["views"]["three"]["rules"]
    assert [rule["outcome"] for rule in states] == ["keeps", "keeps", "keeps"]
