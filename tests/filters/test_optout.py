"""The policy run again over stored signals: which rows it drops, and by which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from filters.base import Batch
from filters.optout import POLICIES, Optout
from manifests import disk
from tests.support import commands
from tests.support.bundles import mask_of
from tests.support.small_pool import Row, make_pool

SITE = "http://site.example"
# what a row's signals are, the words of respect, the words of strict
ROWS: list[tuple[dict[str, Any] | None, str, str]] = [
    (None, "", ""),
    ({"x-robots-tag": ["noarchive"]}, "", "x-robots-tag: noarchive"),
    ({"x-robots-tag": ["noai"]}, "x-robots-tag: noai", "x-robots-tag: noai"),
    ({"x-robots-tag": ["gptbot: noindex"]}, "", "x-robots-tag: noindex"),
    ({"page": {"meta": ["index"], "tdm-policy": ["https://x/p"]}}, "", "tdm-policy"),
    ({"tdm-reservation": ["maybe"]}, "", "tdm-reservation: maybe"),
    ({"content-usage": ["train ai"]}, "", "content-usage: cannot be read"),
    ({"content-usage": ["train-ai=y"]}, "", ""),
    ({"site": {SITE: {"robots.txt": {"status": 200, "allowed": True}}}}, "", ""),
    (
        {"site": {SITE: {"robots.txt": {"status": 200, "allowed": True, "disallowed": ["CCBot"]}}}},
        "",
        "robots.txt: CCBot is disallowed",
    ),
    (
        {"site": {SITE: {"robots.txt": {"allowed": True, "usage": ["/img/ train-ai=n"]}}}},
        "robots.txt: train-ai=n",
        "robots.txt: train-ai=n",
    ),
    # We are allowed by name
    ({"site": {SITE: {"robots.txt": {"allowed": True, "disallowed": ["*"]}}}}, "", ""),
    (
        {"site": {SITE: {"tdmrep.json": {"location": "/", "tdm-reservation": 1}}}},
        "tdmrep.json: tdm-reservation 1 for /",
        "tdmrep.json: tdm-reservation 1 for /",
    ),
    (
        {"site": {SITE: {"tdmrep.json": {"unread": "status 503"}}}},
        "",
        "tdmrep.json cannot be read: status 503",
    ),
    ({"site": {SITE: {"ai.txt": {"not_asked": "disallowed by robots.txt"}}}}, "", ""),
    (
        {"site": {SITE: {"ai.txt": {"allowed": False, "rule": "Disallow: *"}}}},
        "ai.txt: Disallow: *",
        "ai.txt: Disallow: *",
    ),
]


def stored(signals: list[dict[str, Any] | None]) -> Batch:
    texts = [None if signal is None else json.dumps(signal) for signal in signals]
    rows = pa.table({"optout": pa.array(texts, pa.string())})
    return Batch(captions=[""] * len(texts), images=None, rows=rows)


def test_the_words_of_each_policy() -> None:
    scores = Optout(user_agent="clipmill/0.1").score(stored([row[0] for row in ROWS]))
    assert list(zip(scores["optout_respect"], scores["optout_strict"], strict=True)) == [
        row[1:] for row in ROWS
    ]
    # Strict refuses whatever respect refuses
    assert all(strict for _, respect, strict in ROWS if respect)
    assert POLICIES == ("respect", "strict", "ignore")


def test_rows_without_the_column_were_never_judged() -> None:
    batch = Batch(captions=["", ""], images=None, rows=pa.table({"url": ["a", "b"]}))
    assert Optout(user_agent="clipmill/0.1").score(batch) == {
        "optout_respect": [None, None],
        "optout_strict": [None, None],
    }


RECIPE = """
name: r
source: {kind: files, paths: [x.csv]}
fetch: {user_agent: "clipmill/0.1 (+https://x.example)"}
filters: [optout]
views:
  raw: []
  respected: [{allowed: "optout_respect = ''"}]
  strict: [{allowed: "optout_strict = ''"}]
"""


def test_a_stricter_policy_drops_exactly_the_rows_that_it_names(tmp_path: Path) -> None:
    texts = stored([signals for signals, _, _ in ROWS]).rows["optout"].to_pylist()
    given = [Row(caption="", more={"optout": text}) for text in texts]
    pool = make_pool(tmp_path / "pool", given, per_shard=len(ROWS))
    (tmp_path / "r.yaml").write_text(RECIPE)
    words = [pool, "--recipe", str(tmp_path / "r.yaml")]
    assert commands.score([*words, "--engine", "inline"]) == 0
    assert commands.filter_pool(words) == 0
    keys = disk.read_parquet(disk.join(pool, "shards", "00000.parquet"))["key"].to_pylist()

    def kept(view: str) -> list[str]:
        table = mask_of(pool, view, 0)
        return [key for key, keep in zip(keys, table["kept"].to_pylist(), strict=True) if keep]

    assert kept("raw") == keys
    assert kept("respected") == [key for key, row in zip(keys, ROWS, strict=True) if not row[1]]
    assert kept("strict") == [key for key, row in zip(keys, ROWS, strict=True) if not row[2]]
    assert (len(kept("respected")), len(kept("strict"))) == (12, 5)
