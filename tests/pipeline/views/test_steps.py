"""Rules of views in order: other views in place, plain values that are equal exactly if they
decide equally."""

from __future__ import annotations

import pytest

from manifests.schema import Rule, View
from pipeline.views.rules import Step, rule_text, rules_hash, rules_of, steps_of

BASIC = View(name="basic", rules=(Rule(name="words", where="words > 2"),))
HALF = View(name="half", rules=(Rule(name="part", sample=0.5, seed=3),))
ALIKE = View(name="alike", rules=(Rule(name="random", random_like="basic", seed=1),))
ALL = View(
    name="all",
    rules=(
        Rule(name="first", view="basic"),
        Rule(name="second", view="half"),
        Rule(name="third", view="alike"),
    ),
)
VIEWS = (ALL, BASIC, HALF, ALIKE)


def test_the_rules_of_other_views_stand_in_place_under_the_name_of_the_rule() -> None:
    assert steps_of(VIEWS, "all") == (
        Step(name="first.words", where="words > 2"),
        Step(name="second.part", sample=0.5, seed=3),
        Step(name="third.random", random_like="basic", seed=1),
    )


def test_plain_rules_of_each_kind_and_their_text() -> None:
    first, second, third = rules_of(VIEWS, "all")
    assert first == {"name": "first.words", "where": "words > 2"}
    assert second == {"name": "second.part", "sample": 0.5, "seed": 3}
    like = rules_hash(rules_of(VIEWS, "basic"))
    assert third == {"name": "third.random", "random_like": "basic", "seed": 1, "like": like}
    assert [rule_text(rule) for rule in (first, second, third)] == [
        "words > 2",
        "sample 0.5, seed 3",
        "random_like basic, seed 1",
    ]


def test_a_random_view_changes_with_the_view_that_it_is_like() -> None:
    harder = View(name="basic", rules=(Rule(name="words", where="words > 3"),))
    assert rules_of((BASIC, ALIKE), "alike") != rules_of((harder, ALIKE), "alike")
    assert rules_of((BASIC, ALIKE, HALF), "alike") == rules_of((ALIKE, BASIC), "alike")


def test_views_in_a_circle_and_views_that_are_not_there() -> None:
    one = View(name="one", rules=(Rule(name="r", view="two"),))
    two = View(name="two", rules=(Rule(name="r", random_like="one"),))
    with pytest.raises(ValueError, match="in a circle: one -> two -> one"):
        steps_of((one, two), "one")
    with pytest.raises(ValueError, match="there is no view 'thre'"):
        steps_of((one, two), "thre")
