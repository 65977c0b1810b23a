from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from manifests.layout import PoolLayout
from manifests.records import ViewRulesDocument, read_document
from pipeline.audit.counts import count_pool
from pipeline.look.survey import Survey, view_effects


def test_the_numbers_of_the_rules_sum_to_the_books(pool: str, survey: Survey) -> None:
    counts = count_pool(pool)
    for name, effects in survey.effects.items():
        funnel = counts.views[name].funnel
        assert effects.kept == counts.views[name].kept == funnel[-1][1]
        assert effects.stored == counts.fetch.stored == funnel[1][1]
        assert effects.stored == effects.kept + sum(rule.first for rule in effects.rules)
        left = effects.stored
        for rule, (step, after) in zip(effects.rules, funnel[2:], strict=True):
            left -= rule.first
            assert (step, after) == (rule.name, left)
        assert not effects.disagrees


def test_rejected_and_alone_are_those_that_the_view_was_made_with(
    pool: str, survey: Survey
) -> None:
    document = read_document(PoolLayout(pool).view_rules("basic"), ViewRulesDocument)
    for rule, effect in zip(survey.effects["basic"].rules, document.rules, strict=True):
        assert (rule.name, rule.rejected, rule.alone) == (
            effect.rule,
            effect.rejected,
            effect.alone,
        )


def test_the_overlap_of_two_rules_is_counted_by_hand(survey: Survey) -> None:
    effects = survey.effects["basic"]
    words = np.asarray(survey.rows.table["caption_words"].fill_null(0).to_numpy()) <= 2
    side = np.asarray(survey.rows.table["original_width"].fill_null(0).to_numpy()) < 200
    stored = survey.rows.stored
    at = {name: place for place, name in enumerate(effects.compared)}
    overlap = np.array(effects.overlap)
    assert overlap[at["words"], at["side"]] == (words & side & stored).sum()
    assert overlap[at["words"], at["words"]] == (words & stored).sum()
    assert (overlap == overlap.T).all()


def test_a_slider_counts_the_rows_that_pass_the_other_rules(survey: Survey) -> None:
    effects = survey.effects["basic"]
    table = survey.rows.table
    side = np.asarray(table["original_width"].fill_null(0).to_numpy()) >= 200
    shape = np.asarray(table["aspect"].fill_null(9).to_numpy()) <= 3
    expected = survey.rows.stored & side & shape
    assert np.array_equal(survey.scope("basic", "caption_words"), expected)
    assert effects.replaced("caption_words") == ("words",)
    assert survey.scope("basic", "height").sum() == effects.kept
    assert survey.scope("", "height").sum() == effects.stored
    with pytest.raises(KeyError):
        survey.scope("no_view", "height")


def test_masks_that_the_rules_do_not_give_are_noticed(survey: Survey) -> None:
    view = survey.detailed["basic"]
    assert view.kept is not None
    wrong = dataclasses.replace(view, kept=np.roll(view.kept, 1))
    assert view_effects(survey.rows, wrong, (), {}).disagrees
