from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import (
    RuleEffect,
    ScoreSetDocument,
    ViewRulesDocument,
    read_document,
)
from clipmill.manifests.schema import Blend
from clipmill.study import data
from clipmill.study.data import ArmView, open_views
from tests.support.bundles import change_shard
from tests.support.reports import view_by_hand


@pytest.fixture
def pool(views: list[ArmView], tmp_path: Path) -> str:
    """A copy of the pool that a test may damage."""
    shutil.copytree(views[0].path, tmp_path / "pool")
    return str(tmp_path / "pool")


def blend(pool: str, view: str) -> dict[str, Blend]:
    return {"x": Blend(name="x", pools={"web": pool}, views={f"web/{view}": 1.0})}


def test_views_of_one_pool_are_read_row_by_row(views: list[ArmView]) -> None:
    raw, half, a_a = views
    assert (raw.arm, half.arm, a_a.arm) == ("raw", "half", "a_a")
    assert raw.columns.sizes == (16, 16, 16)
    assert half.kept.sum() == half.document.kept
    assert half.stored.all()
    assert a_a.kept is raw.kept, "a view of two arms is read once"
    assert a_a.columns is half.columns, "views of one pool share its columns"
    rejected = int(np.flatnonzero(~half.kept)[0])
    assert half.rule_of(rejected) == "chosen"
    assert half.rule_of(int(np.flatnonzero(half.kept)[0])) is None


def test_a_score_column_is_read_once(views: list[ArmView]) -> None:
    half = views[1]
    scores = half.scores("clip_score")
    assert scores is not None
    assert scores is half.scores("clip_score")
    assert len(scores) == 48
    assert half.scores("nothing") is None
    assert half.thresholds("clip_score") == [0.25]
    assert half.thresholds("aspect") == []


def test_a_view_or_pool_that_is_not_there_is_refused(pool: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no view 'none'"):
        open_views(blend(pool, "none"))
    with pytest.raises(ValueError, match=r"it has no pool\.json"):
        open_views(blend(str(tmp_path / "gone"), "raw"))


def test_masks_and_scores_of_other_rows_are_refused(pool: str) -> None:
    layout = PoolLayout(pool)
    scores = layout.score_bundle("clip_score@ab", 1)
    change_shard(scores, 1, lambda table: table.slice(0, 1))
    (half,) = open_views(blend(pool, "half"))
    with pytest.raises(ValueError, match="does not have the columns of shard 00001"):
        half.scores("clip_score")
    change_shard(layout.view_bundle("half", 1), 1, lambda mask: mask.slice(0, 1))
    with pytest.raises(ValueError, match="does not fit its shard or its view"):
        open_views(blend(pool, "half"))


@pytest.fixture
def rich(views: list[ArmView], tmp_path_factory: pytest.TempPathFactory) -> list[ArmView]:
    """The views over a pool whose sidecars have sizes, hosts, languages, copies and a score of
    harm.
    """
    pool = str(tmp_path_factory.mktemp("rich") / "pool")
    shutil.copytree(views[0].path, pool)
    layout = PoolLayout(pool)
    for number in range(3):
        shard = f"{number:05d}"
        sidecar = disk.read_parquet(layout.sidecar(shard))
        rows = np.arange(16)
        columns = {
            "original_width": pa.array(100 + 10 * rows),
            "original_height": pa.array(np.full(16, 100)),
            "page_lang": pa.array(["en", "de"] * 8),
            "url": pa.array([f"http://Host{row % 3}.example/{row}.jpg" for row in rows]),
            "sha256": pa.array([f"{number}-{row // 2}" for row in rows]),
            "punsafe": pa.array(np.where(rows < 4, 0.9, 0.1)),
        }
        for name, column in columns.items():
            if name in sidecar.column_names:
                sidecar = sidecar.drop([name])
            sidecar = sidecar.append_column(name, column)
        disk.write_parquet(layout.sidecar(shard), sidecar, {})
    return open_views(
        {
            arm: Blend(name=arm, pools={"web": pool}, views={f"web/{arm}": 1.0})
            for arm in ("all", "half")
        }
    )


def test_score_histograms_count_the_rows(views: list[ArmView]) -> None:
    (histogram,) = data.histograms(views)
    assert sum(histogram.counts["stored"]) == 48
    assert sum(histogram.counts["half"]) == 24
    assert histogram.marks == {"half": 0.25}
    assert histogram.divergence["all"] == 0.0
    assert histogram.divergence["half"] > 0.0
    assert data.histograms(views, "nothing") == ()


def test_divergence_by_hand() -> None:
    assert data.divergence(np.array([1, 0]), np.array([1, 1])) == pytest.approx(1.0)
    assert data.divergence(np.array([2, 2]), np.array([1, 1])) == 0.0
    assert data.divergence(np.array([0, 0]), np.array([1, 1])) == 0.0


def test_sizes_languages_and_hosts_of_each_view(rich: list[ArmView]) -> None:
    samples = data.sample_pools(rich)
    names = [one.column for one in data.other_histograms(samples)]
    assert names == ["longer side, pixels", "aspect ratio"]
    languages, hosts = data.categories(samples)
    assert languages.labels == ("en", "de")
    assert languages.counts["stored"] == (24, 24)
    assert sum(languages.counts["half"]) == 24
    assert hosts.labels == ("host0.example", "host1.example", "host2.example")
    assert hosts.counts["stored"] == (18, 15, 15)
    assert languages.divergence["all"] == 0.0


def test_copies_and_marks_of_harm(rich: list[ArmView]) -> None:
    samples = data.sample_pools(rich)
    (copies,) = data.duplicate_groups(samples)
    assert copies.key == "byte for byte"
    assert dict(zip(copies.labels, copies.groups["stored"], strict=True))["2"] == 24
    (rate,) = data.safety_rates(samples)
    assert (rate.column, rate.meaning) == ("punsafe", "above 0.5")
    assert rate.counts["stored"] == (12, 48)
    assert rate.counts["half"][1] == 24


def test_of_a_large_pool_some_shards_are_read(rich: list[ArmView]) -> None:
    (sample,) = data.sample_pools(rich, most=17)
    assert (len(sample.shards), sample.rows, sample.whole) == (2, 32, False)
    assert data.categories([sample])[0].sampled_rows == 32
    assert len(sample.masks["stored"]) == 32
    (all_rows,) = data.sample_pools(rich)
    assert all_rows.whole


def test_a_pool_without_these_columns_shows_nothing(views: list[ArmView]) -> None:
    samples = data.sample_pools(views)
    assert data.safety_rates(samples) == ()
    bare = [dataclasses.replace(one, masks={"stored": one.masks["stored"]}) for one in samples]
    assert all(one.divergence == {} for one in data.other_histograms(bare))


def test_equal_or_missing_values_make_no_histogram() -> None:
    masks = {"stored": np.ones(5, dtype=bool)}
    for values in (np.full(5, 2.0), np.full(5, np.nan)):
        assert data._histogram("web", "x", values, masks, {}) is None
    few = data._histogram("web", "x", np.array([1.0, 2.0, 2.0, 3.0, np.nan]), masks, {})
    assert few is not None
    assert few.counts["stored"] == (1, 2, 1), "a bin for each whole number"


def test_text_and_truth_columns_of_harm() -> None:
    texts = data._marked("NSFW", pa.chunked_array([["UNLIKELY", "nsfw", None]]))
    assert texts is not None
    assert texts[0].tolist() == [False, True, False]
    assert texts[1].tolist() == [True, True, False]
    words = pa.chunked_array([["", "x-robots-tag: noai", None]])  # NULL was never judged
    optouts = data._marked("optout_respect", words)
    assert optouts is not None
    assert (optouts[0].tolist(), optouts[1].tolist()) == ([False, True, False], [True, True, False])
    truths = data._marked("has_face", pa.chunked_array([[True, False]]))
    assert truths is not None
    assert truths[0].tolist() == [True, False]
    assert data._marked("faces", pa.chunked_array([[[1], [2]]])) is None


def test_a_score_set_of_fewer_shards_is_not_used(rich: list[ArmView]) -> None:
    layout = PoolLayout(rich[0].path)
    path = layout.score_set_json("clip_score@ab")
    document = read_document(path, ScoreSetDocument)
    disk.write_json(path, dataclasses.replace(document, fingerprint="of other shards"))
    assert set(rich[0].columns.score_sets().values()) == {"clip_score@ab"}
    disk.remove(layout.score_bundle("clip_score@ab", 0))
    vars(rich[0].columns).pop("pool")  # it opened the bundle
    assert rich[0].columns.score_sets() == {}


def test_jaccard_by_hand() -> None:
    first = view_by_hand("first", [True, True, True, False])
    second = view_by_hand("second", [False, True, True, True])
    none = view_by_hand("none", [False] * 4)
    elsewhere = view_by_hand("elsewhere", [True, True], path="/other")
    overlap = data.overlap([first, second, none, elsewhere])
    assert overlap.arms == ("first", "second", "none", "elsewhere")
    assert overlap.jaccard[0] == (1.0, 2 / 4, 0.0, 0.0)
    assert overlap.jaccard[2] == (0.0, 0.0, 0.0, 0.0)
    both = [first, dataclasses.replace(second, arm="first")]  # an arm of two views has their union
    assert data.overlap([*both, none]).jaccard[0][0] == 1.0
    union = data.overlap([*both, view_by_hand("all", [True] * 4)])
    assert union.jaccard[0][1] == 1.0


def test_the_nearest_rows_are_those_next_to_the_threshold(views: list[ArmView]) -> None:
    half = views[1]
    scores = half.scores("clip_score")
    assert scores is not None
    assert half.thresholds("clip_score") == [0.25]
    near = data.nearest_to_threshold(half, scores)
    distance = np.abs(scores - 0.25)
    assert len(near) == data.EXAMPLES
    assert distance[near].max() <= np.sort(distance)[data.EXAMPLES - 1]
    assert distance[near].tolist() == sorted(distance[near])
    without = scores.copy()
    without[near[0]] = np.nan
    assert near[0] not in data.nearest_to_threshold(half, without)
    assert data.nearest_to_threshold(half, np.full(48, np.nan)) == []
    tied = data.nearest_to_threshold(half, np.full(48, 0.3))
    assert tied == list(range(data.EXAMPLES)), "of equal distances the first rows"
    assert data.nearest_to_threshold(views[0], scores) == []  # raw has no threshold


def test_examples_are_drawn_from_kept_and_rejected_rows(views: list[ArmView]) -> None:
    (shown,) = data.examples(views, "raw")
    assert (shown.pool, shown.view) == ("web", "half")
    assert {example.rule for example in shown.kept} == {None}
    assert {example.rule for example in shown.rejected} == {"chosen"}
    assert len(shown.kept) == len(shown.rejected) == len(shown.near) == data.EXAMPLES
    assert all(example.image.startswith("data:image/jpeg;base64,") for example in shown.near)
    assert data.examples(views, "raw") == (shown,), "the draw has a fixed seed"


def test_funnels_count_the_rows(views: list[ArmView]) -> None:
    pool, view = data.funnels(views)
    assert pool.steps == (("attempted", 48), ("stored", 48))
    assert view.steps == (("stored", 48), ("clip", 24))


def test_rules_that_a_pool_counted(views: list[ArmView]) -> None:
    assert data.rule_effects(views) == (), "an older pool did not count them"
    half = views[1]
    path = PoolLayout(half.path).view_rules("half")
    effect = RuleEffect(rule="clip", rejected=24, alone=None)
    document = ViewRulesDocument(fingerprint=half.document.fingerprint, stored=48, rules=(effect,))
    disk.write_json(path, document)
    (shown,) = data.rule_effects(views)
    assert (shown.view, shown.stored, shown.rules) == ("half", 48, (("clip", 24, None),))
    disk.write_json(path, dataclasses.replace(document, fingerprint="of other shards"))
    assert data.rule_effects(views) == ()
    os.remove(path)
