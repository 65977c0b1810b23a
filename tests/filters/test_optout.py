"""The policy run again over stored signals: which rows it drops, and by which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.filters.base import Batch
from clipmill.filters.optout import (
    RESPECT,
    STRICT,
    Optout,
    refusal,
    refusing_signals,
    statements,
    usages,
)
from clipmill.manifests import disk
from clipmill.manifests.schema import OPTOUT_SIGNALS, Fetch
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


def of_site(file: str, **said: Any) -> dict[str, Any]:
    return {"site": {SITE: {file: said}}}


SIGNALS: list[tuple[dict[str, Any], list[str]]] = [
    ({"x-robots-tag": ["noai, noindex, noarchive"]}, ["noai", "noindex", "noarchive"]),
    ({"x-robots-tag": ["gptbot: noai", "noindex"]}, ["other-crawlers", "noindex"]),
    ({"x-robots-tag": ["noai, gptbot: noai"]}, ["noai"]),
    ({"tdm-reservation": ["1"], "tdm-policy": ["https://x/p"]}, ["tdm-reservation", "tdm-policy"]),
    ({"tdm-reservation": ["yes"]}, ["tdm-reservation"]),
    ({"content-usage": ["train-ai=n, bots=n"]}, ["train-ai", "any-use"]),
    ({"content-usage": "train-ai=n", "content-signal": "ai-train=no"}, ["train-ai", "ai-train"]),
    ({"content-signal": ["search=yes,ai-train=no,use=reference"]}, ["ai-train", "any-use"]),
    ({"content-signal": ["ai-train=yes, use=immediate"]}, []),
    ({"content-signal": ["use=full"]}, []),
    ({"content-signal": ["AI-Train = No; search = yes"]}, ["ai-train"]),
    ({"content-usage": ["ai-use=n, search=n"]}, []),  # neither is training
    ({"license": ['<https://x/l.xml>; rel="license"; type="Application/RSL+xml"']}, ["license"]),
    ({"license": ["<https://creativecommons.org/licenses/by/4.0/>; rel=license"]}, []),
    ({"page": {"license": ["<https://x/l>; type=application/rsl+xml"]}}, ["license"]),
    (of_site("robots.txt", license=["/l.xml"]), ["license"]),
    (of_site("robots.txt", signal=["ai-train=no"], usage=["search=y"]), ["ai-train"]),
    (of_site("robots.txt", allowed=False, unread="status 403"), ["robots_txt", "unread"]),
    (of_site("tdmrep.json", **{"tdm-reservation": "x"}), ["unread"]),
    (of_site("tdmrep.json", **{"tdm-policy": "p"}), ["tdm-policy"]),
    # Of a pool that others wrote, in another form
    ({"site": {"https://x": ["no"]}}, ["unread"]),
    ({"site": {"https://x": {"robots.txt": "no", "ai.txt": 7}}}, ["unread", "unread"]),
    (of_site("robots.txt", license=[7, "/l.xml"], usage=None, disallowed=[None]), ["license"]),
]  # fmt: skip


@pytest.mark.parametrize(("signals", "names"), SIGNALS, ids=str)
def test_each_statement_that_says_no_is_named(signals: dict[str, Any], names: list[str]) -> None:
    found = list(statements(signals, "clipmill/0.1"))
    assert [each.signal for each in found] == names
    # A list refuses for exactly what it names, a Disallow always
    for name in OPTOUT_SIGNALS:
        refused = refusal(signals, "clipmill/0.1", (name,))
        first = next((each for each in found if each.signal in (name, "robots_txt")), None)
        assert refused == (first and (first.reason, first.words))
    assert (refusal(signals, "clipmill/0.1", ()) is not None) is ("robots_txt" in names)
    assert refusal(signals, "clipmill/0.1", "ignore") is None
    score = Optout(user_agent="clipmill/0.1").score(stored([signals]))
    assert score["optout_signals"][0].split() == sorted(set(names))


@given(st.text("abtrainseyo-=,;:? \"'\u00e9\n", max_size=60))
def test_a_usage_of_any_text_ends_and_names_known_signals(text: str) -> None:
    assert {signal for signal, _ in usages(text)} <= STRICT


def test_policies_are_sets_of_signals() -> None:
    assert refusing_signals("strict") == STRICT | {"robots_txt"}
    assert refusing_signals("respect") == RESPECT | {"robots_txt"}
    assert {"train-ai", "ai-train", "license"} <= RESPECT < STRICT
    assert refusing_signals(["noai"]) == {"noai", "robots_txt"}
    assert refusing_signals("ignore") == frozenset()
    for policy in ("polite", "train-ai", ("noai", "train_ai")):
        with pytest.raises(ValueError, match=r"optout has '(polite|train.ai)'; it"):
            Fetch(optout=policy)


def test_rows_without_the_column_were_never_judged() -> None:
    batch = Batch(captions=["", ""], images=None, rows=pa.table({"url": ["a", "b"]}))
    assert Optout(user_agent="clipmill/0.1").score(batch) == {
        "optout_respect": [None, None],
        "optout_strict": [None, None],
        "optout_signals": [None, None],
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
  but_training: [{allowed: "optout_signals NOT LIKE '% train-ai %'"}]
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
    assert len(kept("but_training")) == len(ROWS) - 1
