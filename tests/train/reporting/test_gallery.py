from __future__ import annotations

import dataclasses
import os

import numpy as np

from manifests import disk
from manifests.layout import PoolLayout
from manifests.records import RuleEffect, ViewRulesDocument
from tests.support.reports import view_by_hand
from train.reporting import data
from train.reporting.data import ArmView


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
