"""The schedule of a blend, and blends that a run cannot have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from manifests.schema import Blend, CurriculumStage
from train.mixture.schedule import blend_schedule, blend_sources

ROWS = {"web/a": [40, 60], "web/b": [300]}


def schedule_of(steps: int = 10, batch: int = 10, **keys: Any) -> Any:
    views = keys.pop("views", {"web/a": 0.5, "web/b": 0.5})
    blend = Blend(name="b", pools={"web": "/p"}, views=views, **keys)
    return blend_schedule(blend, blend_sources(blend, ROWS), steps, batch)


def counts(schedule: Any, first: int, last: int) -> list[int]:
    return (schedule.drawn(last) - schedule.drawn(first)).tolist()


def test_a_plain_blend_has_the_schedule_that_it_had_before() -> None:
    assert schedule_of().identity() == {}
    assert counts(schedule_of(), 0, 100) == [50, 50]


def test_stages_begin_at_shares_or_steps() -> None:
    schedule = schedule_of(
        views={"web/a": 1, "web/b": 0},
        curriculum=(
            CurriculumStage(at=0.25, views={"web/a": 1, "web/b": 1}),
            CurriculumStage(step=6, views={"web/b": 2}),
        ),
    )
    assert [stage.start for stage in schedule.stages] == [0, 20, 60]
    assert counts(schedule, 0, 20) == [20, 0]
    assert counts(schedule, 20, 60) == [20, 20]
    assert counts(schedule, 60, 100) == [0, 40]


def test_weights_may_be_repeats() -> None:
    schedule = schedule_of(views={"web/a": 3, "web/b": 1}, weights="repeats")
    assert counts(schedule, 0, 100) == [50, 50]  # 3 x 100 rows and 1 x 300


def test_caps_and_epochs_end_a_view_and_the_smaller_counts() -> None:
    schedule = schedule_of(caps={"web/a": 7}, epochs={"web/a": 2})
    assert counts(schedule, 0, 100) == [7, 93]
    schedule = schedule_of(steps=40, epochs={"web/a": 0.5})
    assert counts(schedule, 0, 400) == [50, 350]
    assert np.bincount(schedule.draws(np.arange(400))[0]).tolist() == [50, 350]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"caps": {"web/a": 7, "web/b": 30}},
            r"after 37 samples every view that it draws has reached.*set samples_seen=30",
        ),
        ({"caps": {"web/a": 2, "web/b": 2}}, "after 4 samples every view .* leave one without$"),
        (
            {"curriculum": (CurriculumStage(step=10, views={"web/a": 1}),)},
            "a stage of the curriculum begins at step 10, and the run has 10 steps",
        ),
        (
            {"curriculum": (CurriculumStage(at=0.01, views={"web/a": 1}),)},
            r"begins at 0.01 of the run \(step 0\), and the one before it at step 0",
        ),
        (
            {
                "curriculum": (
                    CurriculumStage(step=6, views={"web/a": 1}),
                    CurriculumStage(at=0.5, views={"web/b": 1}),
                )
            },
            r"begins at 0.5 of the run \(step 5\), and the one before it at step 6",
        ),
        (
            {
                "caps": {"web/a": 5},
                "curriculum": (CurriculumStage(step=5, views={"web/a": 1}),),
            },
            "after 50 samples every view that it draws",
        ),
    ],
)
def test_what_a_run_cannot_have_is_refused_with_the_way_to_mend_it(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        schedule_of(**keys)
    assert "\n" not in str(refused.value)
