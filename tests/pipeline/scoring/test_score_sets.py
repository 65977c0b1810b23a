"""Score sets: names, documents, files and bundles, the filters that a command asks for, and what a
pool without a stored row is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import complete_score_sets
from clipmill.manifests.schema import Fetch, FilterSpec, Recipe, Source
from clipmill.pipeline.executor.tickets import Report, Stage, Ticket
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.score_columns import commit_columns
from clipmill.pipeline.scoring import score_sets
from clipmill.pipeline.scoring.score_sets import (
    filter_specs,
    reasons_text,
    scored_shards,
    shards_with_rows,
)
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views import files
from tests.support import chosen
from tests.support.folders import make_bundles_small
from tests.support.pairs import write_part
from tests.support.small_pool import Row, make_pool, rows, set_name, write_shard

CAPTION, PICTURE = FilterSpec(name="caption"), FilterSpec(name="picture")
TOKENS = FilterSpec(name="tokens", options={"tokenizer": "clip"})
RECIPE = chosen.recipe(chosen.view("raw"), filters=(CAPTION, TOKENS))
NAME = set_name(CAPTION)


def test_a_set_is_complete_once_its_document_is_there_and_of_the_rows_of_the_pool(
    tmp_path: Path,
) -> None:
    pool = make_pool(tmp_path, rows(10))
    assert complete_score_sets(PoolLayout(pool)) == {}
    assert score_sets.read_score_set(PoolLayout(pool), NAME) is None
    with pytest.raises(ValueError, match=r"\(caption@\w+\) are not there; run clipmill score"):
        score_sets.PoolSets(read_commits(pool), [CAPTION]).require("caption")
    score(PoolWriter(pool), [CAPTION, PICTURE], engine="inline")
    documents = complete_score_sets(PoolLayout(pool))
    assert list(documents) == [NAME, set_name(PICTURE)]
    assert documents[NAME].columns == ("caption_words", "caption_chars")
    disk.remove(PoolLayout(pool).score_set_json(set_name(PICTURE)))
    assert list(complete_score_sets(PoolLayout(pool))) == [NAME]
    name, document = score_sets.PoolSets(read_commits(pool), [CAPTION]).require("caption")
    assert (name, document.stored) == (NAME, 8)
    write_shard(pool, 1, list(enumerate(rows(5), start=10)))
    with pytest.raises(ValueError, match="are of an older state of the pool"):
        score_sets.PoolSets(read_commits(pool), [CAPTION]).require("caption")
    disk.write_json(PoolLayout(pool).score_set_json(NAME), {"name": "caption"})
    with pytest.raises(ValueError, match=r"scores\.json is no ScoreSetDocument"):
        complete_score_sets(PoolLayout(pool))


# --- filters --------------------------------------------------------------------------------------


def test_the_filters_of_a_recipe_some_of_them_and_changes() -> None:
    assert filter_specs(RECIPE, [], {}) == list(RECIPE.filters)
    changed = FilterSpec(name="tokens", options={"tokenizer": "x"})
    assert filter_specs(RECIPE, ["tokens"], {"tokens.tokenizer": "x"}) == [changed]
    assert filter_specs(None, ["caption"], {}) == [CAPTION]


def test_the_opt_out_filter_of_a_recipe_has_the_agent_of_the_recipe() -> None:
    def agent(**options: Any) -> Any:
        recipe = Recipe(
            name="r",
            source=Source(kind="files", paths=("x.csv",)),
            fetch=Fetch(user_agent="mybot/1.0 (+https://x.example)"),
            filters=(FilterSpec(name="optout", options=options),),
        )
        (spec,) = filter_specs(recipe, [], {})
        return spec.options["user_agent"]

    assert agent() == "mybot/1.0 (+https://x.example)"
    assert agent(user_agent="other") == "other"


@pytest.mark.parametrize(
    ("recipe", "names", "changes", "message"),
    [
        (RECIPE, ["language"], {}, "has no filter 'language'.*; it has caption, tokens"),
        (None, [], {}, "no filter to score by"),
        (None, ["tokens"], {"shade.offset": 1}, "--set shade.offset: write FILTER.OPTION"),
        (None, ["tokens"], {"tokens": 1}, "--set tokens: write FILTER.OPTION"),
    ],
)
def test_filters_that_cannot_be_meant(
    recipe: Recipe | None, names: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        filter_specs(recipe, names, changes)


# --- files and bundles ----------------------------------------------------------------------------


def commit(folder: Path, values: list[int], **metadata: object) -> int:
    written = {"uids": "u", "sidecar": "s", "rows": 2, "stored": 2, **metadata}
    table = pa.table({"a": values})
    return commit_columns(PoolWriter(str(folder)), "a@1", 0, table, written)


def test_columns_of_the_same_rows_stay_and_others_are_replaced(tmp_path: Path) -> None:
    path = PoolLayout(str(tmp_path)).score_part("a@1", 0)
    assert commit(tmp_path, [1, 2]) == 2
    assert commit(tmp_path, [5]) == 2
    assert disk.read_parquet(path)["a"].to_pylist() == [1, 2]
    assert commit(tmp_path, [5], sidecar="other") == 1
    assert disk.read_parquet(path)["a"].to_pylist() == [5]
    assert commit(tmp_path, [3, 4, 5], pool="now") == 3
    Path(path).write_bytes(b"PAR1")
    assert commit(tmp_path, [6], pool="now") == 1
    assert disk.read_parquet(path)["a"].to_pylist() == [6]


def columns(pool: str) -> list[dict[str, Any]]:
    files = AlignedFiles.of_scores(PoolLayout(pool), NAME)
    values: list[dict[str, Any]] = []
    for shard in read_commits(pool).names():
        values += files.read(shard)[0].to_pylist()
    return values


def test_columns_end_in_bundles_that_show_only_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_pool(tmp_path / "one", rows(15), per_shard=3)
    first = score(PoolWriter(one), [CAPTION], engine="inline")["sets"][NAME]
    assert disk.list_names(PoolLayout(one).score_set(NAME)) == [
        "bundle-00000.parquet", "scores.json",
    ]  # fmt: skip
    expected = columns(one)
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path / "pool", rows(15), per_shard=3)
    second = score(PoolWriter(pool), [CAPTION], engine="inline")["sets"][NAME]
    assert disk.list_names(PoolLayout(pool).score_set(NAME)) == [
        "bundle-00000.parquet", "bundle-00001.parquet", "bundle-00002.parquet", "scores.json",
    ]  # fmt: skip
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert columns(pool) == expected
    assert scored_shards(read_commits(pool), NAME).all()


def test_a_kill_while_a_bundle_is_made_costs_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    pool = make_pool(tmp_path, rows(18), per_shard=3)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for target in ("publish", "remove"):
        with monkeypatch.context() as patch:
            patch.setattr("clipmill.pipeline.scoring.score_sets.disk." + target, killed)
            with pytest.raises(KeyboardInterrupt):
                score(PoolWriter(pool), [CAPTION], engine="inline")
        assert scored_shards(read_commits(pool), NAME).all()
        assert score_sets.read_score_set(PoolLayout(pool), NAME) is None
    assert score(PoolWriter(pool), [CAPTION], engine="inline")["failed"] == {}
    assert len(columns(pool)) == 18


def test_tickets_of_bundles_share_the_numbers_of_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = np.arange(100_000)
    commits: Any = SimpleNamespace(shards=shards)
    monkeypatch.setattr(
        score_sets, "bundle_runs", lambda _: [range(n, n + 1000) for n in shards[::1000].tolist()]
    )
    monkeypatch.setattr(score_sets, "bundle_name", lambda _: "not there")
    held: list[Ticket] = []

    def execute(stage: Stage, tickets: list[Ticket], engine: str) -> Report:
        held.extend(tickets)
        return Report()

    monkeypatch.setattr(score_sets, "execute", execute)
    score_sets.make_bundles(PoolWriter(str(tmp_path)), commits, ["a@1", "b@2"], "inline")
    assert len(held) == 200
    assert all(np.shares_memory(ticket.payload.shards, shards) for ticket in held)


def test_a_bundle_of_a_shard_without_columns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundles_small(monkeypatch)
    with pytest.raises(ValueError, match="there are no columns of shard 4"):
        score_sets.write_bundle(PoolWriter(str(tmp_path)), NAME, [4, 5])


# --- pools without rows ---------------------------------------------------------------------------


def test_a_pool_that_lost_all_rows_names_the_reasons_and_a_row(tmp_path: Path) -> None:
    lost = [Row(caption="x", reason="missing_file") for _ in range(8)]
    pool = make_pool(tmp_path, [*lost, Row(caption="x", reason="dns")], per_shard=5)
    expected = (
        r"none of the 9 rows is stored: missing_file 8, dns 1; "
        r"an example of missing_file: row 000000000: https://img0\.example/0\.jpg"
    )
    with pytest.raises(ValueError, match=expected):
        shards_with_rows(read_commits(pool))
    with pytest.raises(ValueError, match=expected):
        files.choose_views(PoolWriter(pool), RECIPE)
    with pytest.raises(ValueError, match=expected):
        score(PoolWriter(pool), [CAPTION], engine="inline")


def test_a_source_whose_rows_were_all_refused_is_not_told_to_build_first(tmp_path: Path) -> None:
    reasons = {"bad_url": 7700, "no_caption": 27}
    write_part(tmp_path, PAIRS.empty_table(), links=7727, reasons=reasons)
    expected = "none of the 7727 rows of the source became a pair: bad_url 7700, no_caption 27"
    with pytest.raises(ValueError, match=expected):
        files.choose_views(PoolWriter(str(tmp_path)), RECIPE)


def test_a_folder_that_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no committed shard; build it first"):
        shards_with_rows(read_commits(str(tmp_path)))


def test_the_most_frequent_reasons_come_first_and_the_rest_is_counted() -> None:
    reasons = {"a": 1, "b": 9, "c": 3, "d": 3, "e": 2, "f": 1, "g": 1}
    assert reasons_text(reasons) == "b 9, c 3, d 3, e 2, a 1 and 2 other reasons"
    assert reasons_text({"dns": 2}) == "dns 2"
