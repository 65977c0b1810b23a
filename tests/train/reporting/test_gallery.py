from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from manifests.documents import ViewDocument
from manifests.schema import Ablation, Blend
from train.ablation import expand_runs
from train.reporting import gallery
from train.reporting.gallery import ArmView


@pytest.fixture(scope="module")
def views(concluded: str) -> list[ArmView]:
    path = disk.join(concluded, "ablation.json")
    ablation = disk.from_plain(Ablation, disk.read_json(path))
    runs = expand_runs(ablation, concluded, built=False)
    return gallery.open_views({run.arm: run.blend for run in runs})


def by_hand(arm: str, kept: list[bool], path: str = "/p") -> ArmView:
    document = ViewDocument(
        name=arm, rules=(), thresholds={}, funnel=(), kept=sum(kept), fingerprint="", scores={},
        shards={"00000": sum(kept)},
    )  # fmt: skip
    rule = pa.chunked_array([pa.array([None if k else "x" for k in kept], pa.string())])
    return ArmView(
        arm=arm, pool="web", path=path, view=arm, document=document, shards=("00000",),
        sizes=(len(kept),), kept=np.array(kept), rule=rule,
    )  # fmt: skip


def test_views_of_one_pool_are_read_row_by_row(views: list[ArmView]) -> None:
    raw, half, a_a = views
    assert (raw.arm, half.arm, a_a.arm) == ("raw", "half", "a_a")
    assert raw.sizes == (16, 16, 16)
    assert half.kept.sum() == half.document.kept
    assert half.stored.all()
    assert a_a.kept is raw.kept, "a view of two arms is read once"


def test_jaccard_by_hand() -> None:
    first = by_hand("first", [True, True, True, False])
    second = by_hand("second", [False, True, True, True])
    none = by_hand("none", [False] * 4)
    elsewhere = by_hand("elsewhere", [True, True], path="/other")
    overlap = gallery.overlap([first, second, none, elsewhere])
    assert overlap.arms == ("first", "second", "none", "elsewhere")
    assert overlap.jaccard[0] == (1.0, 2 / 4, 0.0, 0.0)
    assert overlap.jaccard[2] == (0.0, 0.0, 0.0, 0.0)
    both = [first, dataclasses.replace(second, arm="first")]  # an arm of two views has their union
    assert gallery.overlap([*both, none]).jaccard[0][0] == 1.0
    union = gallery.overlap([*both, by_hand("all", [True] * 4)])
    assert union.jaccard[0][1] == 1.0


def test_the_nearest_rows_are_those_next_to_the_threshold(views: list[ArmView]) -> None:
    half = views[1]
    scores = gallery.read_scores(half, "clip_score")
    assert scores is not None
    assert gallery.thresholds_of(half, "clip_score") == [0.25]
    near = gallery.nearest_to_threshold(half, scores)
    distance = np.abs(scores - 0.25)
    assert len(near) == gallery.EXAMPLES
    assert distance[near].max() <= np.sort(distance)[gallery.EXAMPLES - 1]
    assert distance[near].tolist() == sorted(distance[near])
    scores[near[0]] = np.nan
    assert near[0] not in gallery.nearest_to_threshold(half, scores)
    assert gallery.nearest_to_threshold(views[0], scores) == []  # raw has no threshold
    assert gallery.read_scores(half, "nothing") is None


def test_examples_are_drawn_from_kept_and_rejected_rows(views: list[ArmView]) -> None:
    (shown,) = gallery.examples(views, "raw")
    assert (shown.pool, shown.view) == ("web", "half")
    assert {example.rule for example in shown.kept} == {None}
    assert {example.rule for example in shown.rejected} == {"chosen"}
    assert len(shown.kept) == len(shown.rejected) == len(shown.near) == gallery.EXAMPLES
    assert all(example.image.startswith("data:image/jpeg;base64,") for example in shown.near)
    assert gallery.examples(views, "raw") == (shown,), "the draw has a fixed seed"


def test_funnels_and_histograms_count_the_rows(views: list[ArmView]) -> None:
    pool, view = gallery.funnels(views)
    assert pool.steps == (("attempted", 48), ("stored", 48))
    assert view.steps == (("stored", 48), ("clip", 24))
    (histogram,) = gallery.histograms(views)
    assert sum(histogram.counts["stored"]) == 48
    assert sum(histogram.counts["half"]) == 24
    assert histogram.marks == {"half": 0.25}
    assert gallery.histograms(views, "nothing") == ()


def test_a_view_that_is_not_there_is_refused(concluded: str, tiny_pool: str) -> None:
    blend = Blend(name="x", pools={"web": tiny_pool}, views={"web/none": 1.0})
    with pytest.raises(ValueError, match="has no view 'none'"):
        gallery.open_views({"x": blend})
