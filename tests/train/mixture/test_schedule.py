"""The schedule of a blend: positions of sources against a count, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.schema import Blend
from train.mixture.schedule import Schedule, SourceRows, blend_sources


def test_weights_may_be_repeats() -> None:
    views = {"web/a": 3.0, "web/b": 1.0}
    blend = Blend(name="b", pools={"web": "/p"}, views=views, weights="repeats")
    schedule = Schedule(blend_sources(blend, {"web/a": [40, 60], "web/b": [300]}))
    assert schedule.drawn(100).tolist() == [50, 50]  # 3 x 100 rows and 1 x 300


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 0.5, 0.3]), min_size=1, max_size=4), st.integers(1, 12))
def test_the_draws_of_a_source_are_counted_from_0(weights: list[float], batch: int) -> None:
    sources = [
        SourceRows(name=f"s{-k}", weight=weight, shard_rows=(9,))
        for k, weight in enumerate(weights)
    ]
    schedule = Schedule(sources)
    source, draw = schedule.draws(np.arange(120))
    for s in range(len(sources)):
        own = draw[source == s]
        assert own.tolist() == list(range(len(own)))
    most = schedule.most_in_a_batch(batch)
    for n in range(0, 120 - batch, batch):
        counts = np.bincount(source[:n], minlength=len(sources))
        assert schedule.drawn(n).tolist() == counts.tolist()
        one, number = schedule.draws(np.array([n]))  # a position alone
        assert (one[0], number[0]) == (source[n], draw[n])
        counts = np.bincount(source[n : n + batch], minlength=len(sources))
        assert (counts <= most).all()
