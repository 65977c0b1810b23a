from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests.arrays import Integers
from clipmill.train.identity import differences
from clipmill.train.mixture.order import ORDER_VERSION, Order, put_apart
from clipmill.train.mixture.schedule import SourceRows, most_in_a_batch, wheel_sequence, wheel_slots


def source(name, weight, *rows):
    return SourceRows(name=name, weight=weight, shard_rows=rows)


def blend():
    return [
        source("web/a", 0.6, 30, 0, 50, 40),
        source("web/b", 0.3, 25, 25),
        source("more/c", 0.1, 7),
    ]


def drawn(order, step):
    return list(zip(*(column.tolist() for column in order.batch(step)), strict=True))


# --- the promises of the order


@st.composite
def orders(draw):
    lanes = draw(st.sampled_from([1, 2, 3, 4, 8]))
    batch = lanes * draw(st.integers(1, 4))
    count = draw(st.integers(1, 4))
    rows = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)
    weights = st.one_of(st.integers(1, 9), st.sampled_from([0.1, 0.25, 1.5]))
    sources = [source(f"s{k}", draw(weights), *draw(rows)) for k in range(count)]
    slots = wheel_slots(sources)
    most = most_in_a_batch(wheel_sequence(slots), count, batch)
    for k, one in enumerate(sources):
        if one.rows < most[k]:  # a batch would hold a row twice
            more = draw(st.integers(most[k] - one.rows, most[k] + 30))
            sources[k] = source(one.name, one.weight, *one.shard_rows, more)
    return Order(sources, batch, lanes, draw(st.integers(1, 5)), draw(st.integers(0, 3)))


@pytest.mark.slow
@settings(max_examples=60)
@given(orders())
def test_after_any_step_no_row_was_drawn_more_than_once_oftener_than_another(order):
    seen = [
        {(shard, row): 0 for shard, rows in enumerate(s.shard_rows) for row in range(rows)}
        for s in order.sources
    ]
    for step in range(30):
        for s, shard, row in drawn(order, step):
            seen[s][shard, row] += 1  # KeyError: a row that the source does not have
        for counts in seen:
            assert max(counts.values()) - min(counts.values()) <= 1
    repeats = order.repeats(30)
    for of, counts in zip(order.sources, seen, strict=True):
        assert repeats[of.name].drawn == sum(counts.values())


@pytest.mark.slow
@settings(max_examples=100)
@given(orders())
def test_no_batch_holds_a_row_twice(order):
    for step in range(40):
        rows = drawn(order, step)
        assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("rows", [32, 33, 40, 64, 127, 128, 129, 500])
def test_no_batch_holds_a_row_twice_where_an_epoch_ends_in_it(rows):
    order = Order([source("a", 1, rows // 2, rows - rows // 2)], 32, 8)
    batches = [drawn(order, step) for step in range(60)]
    for batch in batches:
        assert len(set(batch)) == 32
    every = [row for batch in batches for row in batch]
    for epoch in range(len(every) // rows):
        assert len(set(every[epoch * rows : (epoch + 1) * rows])) == rows or rows % 32
    if rows > 32:
        assert sorted(every[:rows]) != every[:rows] != every[rows : 2 * rows]


@pytest.mark.slow
@settings(max_examples=60)
@given(orders())
def test_every_prefix_of_every_batch_holds_each_source_within_one_sample_of_its_share(order):
    slots = wheel_slots(order.sources)
    source_of = np.concatenate([order.batch(step)[0] for step in range(20)])
    n = np.arange(1, len(source_of) + 1)
    for s, count in enumerate(slots):
        assert np.abs(np.cumsum(source_of == s) - n * count / sum(slots)).max() < 1


@pytest.mark.slow
@settings(max_examples=30)
@given(orders(), st.integers(0, 400))
def test_a_fresh_order_answers_as_one_that_ran(order, step):
    for before in range(0, step, 7):
        order.batch(before)
    fresh = Order(order.sources, order.batch_size, order.lanes, order.window, order.seed)
    assert drawn(fresh, step) == drawn(order, step)


@pytest.mark.parametrize("world", [1, 2, 3, 8, 96, 1000])
def test_ranks_together_draw_the_same_batch_whatever_their_number(world):
    sources = [source("a", 0.7, *[900] * 30), source("b", 0.3, *[700] * 20)]
    batch = 12_000
    whole, of_ranks = Order(sources, batch, 16), Order(sources, batch, 16)
    for step in (0, 1, 3):
        parts = []
        for rank in range(world):
            rows = range(rank * batch // world, (rank + 1) * batch // world)
            parts.append(of_ranks.batch(step, rows))
        for column, expected in zip(zip(*parts, strict=True), whole.batch(step), strict=True):
            assert np.array_equal(np.concatenate(column), expected)


def test_the_order_of_the_sources_in_a_blend_does_not_matter():
    one, other = Order(blend(), 32, 8), Order(blend()[::-1], 32, 8)
    for step in range(5):
        named = [
            [(o.sources[s].name, shard, row) for s, shard, row in drawn(o, step)]
            for o in (one, other)
        ]
        assert named[0] == named[1]
    assert one.fingerprint() == other.fingerprint()


def test_a_source_keeps_its_order_when_another_joins_the_blend():
    alone, joined = Order(blend()[:1], 20, 1), Order([*blend()[:1], source("z", 0.6, 500)], 20, 1)
    first = [x[1:] for step in range(6) for x in drawn(alone, step)]
    second = [x[1:] for step in range(12) for x in drawn(joined, step) if x[0] == 0]
    # Inside a batch draws are placed by lane; with one lane they stay in the order of dealing.
    assert first[:100] == second[:100]


def test_epochs_and_seeds_differ():
    def epoch(seed, number):
        order = Order([source("a", 1, 40, 40)], 20, 4, seed=seed)
        return [x for step in range(4 * number, 4 * number + 4) for x in drawn(order, step)]

    runs = [epoch(0, 0), epoch(0, 1), epoch(1, 0)]
    assert sorted(runs[0]) == sorted(runs[1]) == sorted(runs[2])
    assert runs[0] != runs[1]
    assert runs[0] != runs[2]


def test_a_lane_reads_a_window_of_shards_at_a_time():
    order = Order([source("a", 1, *[10] * 12)], 10, 1, window=3)
    shards = [set(order.batch(step)[1].tolist()) for step in range(12)]
    windows = [set().union(*shards[k : k + 3]) for k in range(0, 12, 3)]
    assert [len(window) for window in windows] == [3, 3, 3, 3]
    assert set().union(*windows) == set(range(12))
    assert len(shards[0]) == 3  # rows of a window are mixed


def test_a_rank_reads_few_shards_beside_those_of_its_lanes():
    order = Order([source("a", 0.6, *[40] * 96), source("b", 0.4, *[40] * 64)], 256, 64)
    for rank in range(4):
        # One epoch of each
        batches = [order.batch(step, range(rank * 64, rank * 64 + 64)) for step in range(25)]
        for s, shards in ((0, 96), (1, 64)):
            seen = {int(k) for of, shard, _ in batches for k in shard[of == s]}
            # A quarter is its own; a window reaches over the edges
            assert len(seen) <= 0.4 * shards


@settings(max_examples=60)
@given(orders(), st.integers(0, 12))
def test_a_substitute_is_another_row_of_the_source_than_any_that_its_batch_needs(order, step):
    batch = drawn(order, step)
    for s, one in enumerate(order.sources):
        positions = [position for position, row in enumerate(batch) if row[0] == s]
        in_batch = {row[1:] for row in batch if row[0] == s}
        for attempt in range(3):
            rows = [order.substitute(s, step, position, attempt) for position in positions]
            assert all(row < one.shard_rows[shard] for shard, row in rows)
            if one.rows > len(in_batch):
                assert not in_batch & set(rows)
            if one.rows >= 16 * (len(in_batch) + 1):
                assert len(set(rows)) == len(rows)


def test_a_substitute_depends_on_every_number_that_names_it():
    rows = [source("a", 0.5, 4000, 5000), source("b", 0.5, 9000)]
    order = Order(rows, 32, 8, seed=1)
    in_step = order.batch(3)[0]
    first, second = np.flatnonzero(in_step == 0)[:2].tolist()
    other = int(np.flatnonzero(in_step == 1)[0])
    named = [(0, 3, first, 1), (0, 3, second, 1), (0, 3, first, 2), (1, 3, other, 1)]
    substitutes = [order.substitute(*numbers) for numbers in named]
    substitutes.append(Order(rows, 32, 8, seed=2).substitute(0, 3, first, 1))
    substitutes += [order.substitute(0, step, first, 0) for step in range(10, 20)]
    assert len(set(substitutes)) == len(substitutes)
    again = Order(rows, 32, 8, seed=1)  # also where other batches were asked for before
    assert [again.substitute(*numbers) for numbers in reversed(named)] == substitutes[3::-1]


def test_of_few_rows_outside_of_the_batch_every_one_is_tried():
    order = Order([source("a", 1, 40)], 32, 4)
    outside = {(0, k) for k in range(40)} - {row[1:] for row in drawn(order, 17)}
    for position in range(32):
        tried = {order.substitute(0, 17, position, attempt) for attempt in range(16)}
        assert tried == outside


def test_golden_substitutes():
    order = Order(blend(), 16, 4, window=2, seed=7)
    substitutes = []
    for step in range(4):
        for position, (s, _, _) in enumerate(drawn(order, step)[:3]):
            substitutes.append(order.substitute(s, step, position, step))
    assert substitutes == GOLDEN_SUBSTITUTES


def test_golden_order_at_the_border_of_small_sources():
    """Epochs of a source with less than four times its draws of a batch, 16 here, follow from one
    another; others do not. Which of them a source has is part of the order.
    """
    digests = {}
    for rows in (63, 64, 79, 80):
        order = Order([source("a", 1, rows)], 16, 4, window=2, seed=7)
        every = np.concatenate([order.batch(step)[2] for step in range(40)])
        digests[rows] = hashlib.sha256(every.astype("<i8").tobytes()).hexdigest()[:16]
    assert digests == GOLDEN_BORDER


GOLDEN_BORDER = {
    63: "8c966d2209661ffe",
    64: "1779cd8ae085bab8",
    79: "7f0e94fa53ab93d7",
    80: "09a7cd6077a37c9a",
}


def test_golden_order():
    order = Order(blend(), 16, 4, window=2, seed=7)
    assert drawn(order, 0)[:6] == GOLDEN_START
    digest = hashlib.sha256()
    for step in range(40):
        for column in order.batch(step):
            digest.update(column.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == GOLDEN_DIGEST, (
        "a change of the order: bump ORDER_VERSION, then this"
    )
    assert order.fingerprint() == GOLDEN_FINGERPRINT
    assert ORDER_VERSION == 2


GOLDEN_START = [(0, 2, 30), (0, 0, 17), (1, 0, 11), (0, 2, 20), (1, 1, 19), (0, 0, 3)]
GOLDEN_DIGEST = "da2bcbc11bc8a6f1"
GOLDEN_FINGERPRINT = "55264a983501"
GOLDEN_SUBSTITUTES = [
    (2, 0),
    (0, 22),
    (0, 24),
    (2, 18),
    (0, 6),
    (0, 23),
    (0, 7),
    (2, 37),
    (0, 13),
    (2, 49),
    (1, 2),
    (0, 16),
]


# --- what is refused and reported


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"batch_size": 48}, "batch_size: 32 -> 48"),
        ({"lanes": 16}, "lanes: 8 -> 16"),
        ({"window": 3}, "window: 2 -> 3"),
        ({"seed": 1}, "seed: 0 -> 1"),
        (
            {"sources": [*blend()[:2], source("more/c", 0.2, 7)]},
            "sources.more/c.weight: 0.1 -> 0.2",
        ),
        ({"sources": [*blend()[:2], source("more/c", 0.1, 8)]}, "sources.more/c.rows: 7 -> 8"),
        ({"sources": [*blend()[:2], source("d", 0.1, 7)]}, "sources.more/c: {"),
    ],
)
def test_the_fingerprint_holds_all_that_decides_the_order(change, name):
    settings: dict[str, Any] = {
        "sources": blend(),
        "batch_size": 32,
        "lanes": 8,
        "window": 2,
        "seed": 0,
    }
    before, after = Order(**settings), Order(**settings | change)
    assert before.fingerprint() != after.fingerprint()
    assert before.fingerprint() == Order(**settings).fingerprint()
    assert any(line.startswith(name) for line in differences(before.identity(), after.identity()))
    assert differences(before.identity(), before.identity()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (blend(), 100, 64),
            r"64 lanes do not divide a batch of 100; lanes may be 1, 2, 4, 5, 10, 20, 25, 50, 100",
        ),
        ((blend(), 2050, 64), r"lanes may be 1, 2, 5, 10, 25, 41, 50, 82, 205, 410$"),
        (
            ([source("a", 1, 5)], 8, 8),
            r"fewer rows than a batch: a keeps 5, and a batch of 8 draws 8 of it; lower batch_size",
        ),
        (
            ([source("a", 3, 500), source("b", 1, 3)], 16, 8),
            r"b keeps 3, and a batch of 16 draws 4 of it; lower batch_size or its weight",
        ),
        (([source("a", 1, 50), source("b", 1, 0, 0)], 8, 8), "'b' keeps no row"),
        (([source("a", 1, 50), source("a", 1, 50)], 8, 8), "different names"),
        (([], 8, 8), "different names"),
        ((blend(), 32, 0), "lanes is 0"),
        ((blend(), 32, 8, 0), "window is 0"),
    ],
)
def test_what_cannot_be_ordered_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Order(*arguments)


def test_too_many_repeats_are_refused_with_what_would_fit():
    order = Order([source("web/a", 0.75, 60, 60), source("web/b", 0.25, 10)], 40, 8)
    order.check_repeats(40, None)
    order.check_repeats(8, 8)
    with pytest.raises(
        ValueError,
        match=r"web/b would be repeated 40.0 times \(400 draws of 10 rows\).* 320 samples",
    ):
        order.check_repeats(40, 8)


# --- stages, limits, and rows that are kept apart


class Modulo:
    """Rows collide where their numbers over all shards are equal modulo `different`."""

    column = "group"

    def __init__(self, of, different, *sources):
        self._first = [np.cumsum([0, *each.shard_rows]) for each in of]
        self.different, self.sources = different, frozenset(sources)

    def __call__(self, source, shard, row):
        numbers: Integers = (self._first[source][shard] + row) % self.different
        return numbers


def test_a_batch_holds_no_number_twice_for_any_rank_and_any_step():
    of = [source("a", 0.5, 40, 60), source("b", 0.25, 70), source("c", 0.25, 90)]
    numbers = Modulo(of, 64, 0, 1)

    def of_row(s, shard, row):
        return int(numbers(s, np.array([shard]), np.array([row]))[0])

    def order():
        return Order(of, 32, 8, 2, distinct=numbers)

    whole, plain = order(), Order(of, 32, 8, 2)
    changed = 0
    every: list[tuple[int, int, int]] = []
    for step in range(160):
        rows = drawn(whole, step)
        every += rows
        kept_apart = [of_row(s, shard, row) for s, shard, row in rows if s < 2]
        assert len(set(kept_apart)) == len(kept_apart)
        # A source that cannot collide keeps its rows.
        assert [r for r in rows if r[0] == 2] == [r for r in drawn(plain, step) if r[0] == 2]
        changed += rows != drawn(plain, step)
    assert changed > 40
    steps_of_block = 64
    of_plain = [row for step in range(steps_of_block) for row in drawn(plain, step)]
    assert Counter(every[: len(of_plain)]) == Counter(of_plain)  # a block draws the same rows
    for step, ranks in ((77, 2), (3, 8), (130, 32)):
        fresh = order()
        parts = [
            fresh.batch(step, range(r * 32 // ranks, (r + 1) * 32 // ranks)) for r in range(ranks)
        ]
        together = [tuple(np.concatenate(column).tolist()) for column in zip(*parts, strict=True)]
        assert list(zip(*together, strict=True)) == drawn(whole, step)
    for step in range(20):  # a row of another number than all of its batch comes for another
        rows = drawn(whole, step)
        present = {of_row(s, shard, row) for s, shard, row in rows if s < 2}
        for position, (s, _, _) in enumerate(rows):
            if s < 2:
                assert of_row(s, *whole.substitute(s, step, position, 0)) not in present
    assert whole.identity()["distinct"] == "group"
    assert whole.fingerprint() != plain.fingerprint()


def test_large_batches_are_put_apart_four_by_four():
    of = [source("a", 1, 40_000)]
    order = Order(of, 1024, 8, 2, distinct=Modulo(of, 20_000, 0))
    plain = Order(of, 1024, 8, 2)
    changed = 0
    for first in (0, 4, 8):
        steps = range(first, first + 4)
        blocks = [Counter(r for step in steps for r in drawn(o, step)) for o in (order, plain)]
        assert blocks[0] == blocks[1]
        changed += sum(drawn(order, step) != drawn(plain, step) for step in steps)
    assert changed > 3
    # No two batches at the end of one block and the start of the next have exchanged draws, but
    # those of one block have: its halves differ from those of the plain order.
    halves = [Counter(r for step in (0, 1) for r in drawn(o, step)) for o in (order, plain)]
    assert halves[0] != halves[1]


class OneOrAlike(Modulo):
    """Every fifteenth row has the number 0, the others have one of their own."""

    def __call__(self, source, shard, row):
        place: Integers = self._first[source][shard] + row
        return np.where(place % 15 == 0, 0, place)


def test_the_step_that_has_no_other_row_is_named():
    """Two draws of a batch of 30 have the number 0, so a block has more of them than steps."""
    of = [source("a", 1, 30 * 500)]
    numbers, steps_of_block = OneOrAlike(of, 1, 0), 69
    order, plain = Order(of, 30, 5, distinct=numbers), Order(of, 30, 5)
    for first in (0, steps_of_block):
        block = [plain.batch(first + k) for k in range(steps_of_block)]
        sources, shard, row = (np.concatenate(column) for column in zip(*block, strict=True))
        _, left = put_apart(sources, numbers(0, shard, row), 30)
        assert left is not None
        assert left >= 30  # not the first step
        with pytest.raises(ValueError, match=f"step {first + left // 30} would draw a row of a "):
            order.batch(first)


def test_too_few_different_rows_for_a_batch_are_refused():
    of = [source("a", 1, 40), source("b", 1, 40)]
    with pytest.raises(
        ValueError, match=r"step 0 would draw a row of [ab] .*distinct: group.*lower"
    ):
        Order(of, 32, 8, distinct=Modulo(of, 20, 0, 1)).batch(0)


# --- chances and captions


class Tenth:
    """Rows of one source whose number is divisible by 4 have the chance 1, others 0.1."""

    def __init__(self, of, source, candidates):
        self._first = np.cumsum([0, *of[source].shard_rows])
        self.candidates = {source: candidates}
        self.looked_at: Counter[int] = Counter()

    def __call__(self, source, shard, row):
        assert source in self.candidates
        self.looked_at.update((self._first[shard] + row).tolist())
        return np.where((self._first[shard] + row) % 4 == 0, 1.0, 0.1)

    def unique(self, source, rows, drawn):
        return 1

    def identity(self):
        return {"a": "tenth"}


def test_a_balanced_source_draws_by_chance_at_any_step_and_rank():
    of = [source("a", 0.5, *[100] * 40), source("b", 0.5, *[100] * 40)]
    balance = Tenth(of, 0, 12)
    order, plain = Order(of, 32, 8, balance=balance), Order(of, 32, 8)
    counts: Counter[tuple[int, int]] = Counter()
    for step in range(300):
        rows = drawn(order, step)
        assert len(set(rows)) == 32
        assert [r for r in rows if r[0] == 1] == [r for r in drawn(plain, step) if r[0] == 1]
        counts.update((shard, row) for s, shard, row in rows if s == 0)
    divisible = sum(count for (_, row), count in counts.items() if row % 4 == 0)
    # 1,000 rows of chance 1 and 3,000 of 0.1: ten draws of the first for three of the others.
    assert abs(divisible / sum(counts.values()) - 10 / 13) < 0.03
    # 4,800 draws look at 57,600 candidates: each row 14 or 15 times.
    assert max(counts.values()) <= 15
    looks = balance.looked_at.values()
    assert len(looks) == 4000
    assert max(looks) - min(looks) <= 1
    fresh = Order(of, 32, 8, balance=balance)
    parts = [fresh.batch(211, range(k, k + 16)) for k in (0, 16)]
    together = [tuple(np.concatenate(column).tolist()) for column in zip(*parts, strict=True)]
    assert list(zip(*together, strict=True)) == drawn(order, 211)
    assert order.identity()["balance"] == {"a": "tenth"}
    assert order.repeats(3)["a"].unique == 1
    assert order.repeats(3)["b"].unique == 48


@pytest.mark.parametrize("rows", [20, 39, 70])  # 1, 1 and 3 candidates
def test_a_small_balanced_source_looks_at_fewer_candidates_and_repeats_no_row_in_a_batch(rows):
    of = [source("a", 0.5, rows), source("b", 0.5, 400)]
    order, plain = Order(of, 32, 4, balance=Tenth(of, 0, 64)), Order(of, 32, 4)
    for step in range(120):
        drawn_rows = drawn(order, step)
        assert len(set(drawn_rows)) == 32
        if rows < 40:  # the next row is the only candidate of a draw
            assert drawn_rows == drawn(plain, step)


def test_captions_have_exact_shares_for_any_rank():
    of = [source("a", 0.5, 70), source("b", 0.5, 400)]
    order = Order(of, 32, 4, captions={"a": {"alt": 0.25, "made": 0.75}})
    counts: Counter[str | None] = Counter()
    for step in range(25):
        columns = order.captions(step, range(32))
        sources = order.batch(step)[0].tolist()
        assert [column is None for column in columns] == [s == 1 for s in sources]
        assert columns == order.captions(step, range(20)) + order.captions(step, range(20, 32))
        counts.update(columns)
    assert order.repeats(25)["a"].captions == {"alt": counts["alt"], "made": counts["made"]}
    assert counts["alt"] == 100
    assert {name: repeats.share for name, repeats in order.repeats(25).items()} == {
        "a": 0.5,
        "b": 0.5,
    }
    assert order.repeats(25)["b"].captions is None
    assert [sorted(each.document()) for each in order.repeats(25).values()] == [
        ["captions", "drawn", "repeats", "rows", "share", "unique"],
        ["drawn", "repeats", "rows", "share", "unique"],
    ]
    assert order.fingerprint() != Order(of, 32, 4).fingerprint()


def test_golden_draws_by_chance_captions_and_later_substitutes():
    """Which random numbers each of them takes is part of the order, as the plain draws are."""
    of = [source("a", 0.5, *[100] * 4), source("b", 0.5, 70)]
    shares = {"b": {"alt": 0.25, "made": 0.75}}
    order = Order(of, 16, 4, window=2, seed=7, balance=Tenth(of, 0, 6), captions=shares)
    digest = hashlib.sha256()
    for step in range(30):
        for column in order.batch(step):
            digest.update(column.astype("<i8").tobytes())
        digest.update(repr(order.captions(step, range(16))).encode())
    assert digest.hexdigest()[:16] == "de0fb243485f4676"
    plain = Order(of, 16, 4, window=2, seed=7)
    s = drawn(plain, 9)[2][0]
    assert [plain.substitute(s, 9, 2, attempt) for attempt in range(12)] == GOLDEN_LATER
    assert ORDER_VERSION == 2


GOLDEN_LATER = [
    (0, 26), (1, 98), (3, 67), (1, 26), (0, 16), (2, 81),
    (2, 93), (0, 12), (0, 93), (1, 4), (1, 12), (1, 21),
]  # fmt: skip
