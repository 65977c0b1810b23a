"""Groups of rows that show one image, and the row of each that survives."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.filters import make
from clipmill.filters.base import PoolFilter
from clipmill.filters.duplicates import Duplicate, as_score, sizes, survivors
from clipmill.manifests.schema import FilterSpec
from tests.support.pool_filters import run_inline

BASES = np.random.default_rng(7).integers(0, 2**64, (40, 4), dtype=np.uint64)
WIDTH = 16
DIRECTIONS = np.random.default_rng(8).normal(size=(12, WIDTH)).astype(np.float32)


def duplicate(**options: Any) -> PoolFilter:
    filter_ = make(FilterSpec(name="duplicate", options=options))
    assert isinstance(filter_, Duplicate)
    return filter_


def near_hash(base: int, flipped: int, random: np.random.Generator) -> bytes:
    """A base hash of 256 bits with so many bits flipped."""
    bits = np.unpackbits(BASES[base].view(np.uint8))
    bits[random.choice(256, flipped, replace=False)] ^= 1
    return np.packbits(bits).tobytes()


def pool_rows(rows: int, seed: int) -> pa.Table:
    """Rows of a pool, some of them copies: hashes within 15 bits of one of eight bases."""
    random = np.random.default_rng(seed)
    base = random.integers(0, 8, rows)
    hashes: list[bytes | None] = [near_hash(b, int(random.integers(0, 16)), random) for b in base]
    vectors = DIRECTIONS[base] + random.normal(0, 0.003, (rows, WIDTH)).astype(np.float32)
    embeddings = pa.array(list(vectors.astype(np.float16)), pa.list_(pa.float16(), WIDTH))
    lacking = random.random(rows) < 0.1
    uids = [f"{number:032x}" for number in random.permutation(10 * rows)[:rows]]
    return pa.table(
        {
            "uid": uids,
            "sha256": [None if no else f"{b:064x}" for b, no in zip(base, lacking, strict=True)],
            "pdq": pa.array(
                [None if no else value for value, no in zip(hashes, lacking, strict=True)],
                pa.binary(32),
            ),
            "pdq_quality": pa.array(
                random.choice([100, 60, 20], rows, p=[0.5, 0.4, 0.1]), pa.int8()
            ),
            "embed_image": pa.array(
                [None if no else v for v, no in zip(embeddings, lacking, strict=True)],
                embeddings.type,
            ),
            "score": pa.array(random.choice([0.1, 0.2, 0.3, np.nan], rows)),
            "base": base,
        }
    )


def shards_of(rows: pa.Table, shards: int, seed: int = 0) -> list[pa.Table]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows.take(pa.array(part)) for part in np.array_split(order, shards)]


@settings(max_examples=25)
@given(
    on=st.sampled_from(["sha256", "perceptual", "embedding"]),
    best=st.sampled_from([None, "score"]),
    shards=st.integers(1, 5),
    partitions=st.sampled_from([1, 2, 5, 40]),
    seed=st.integers(0, 50),
)
def test_the_columns_do_not_depend_on_shards_partitions_or_order(
    on: str, best: str | None, shards: int, partitions: int, seed: int
) -> None:
    rows = pool_rows(60, seed)
    of_clusters = {"sample": 1.0, "clusters": 3} if on == "embedding" else {}
    filter_ = duplicate(on=on, best=best, **of_clusters)
    expected = run_inline(filter_, [rows], 1)
    assert run_inline(filter_, shards_of(rows, shards, seed), partitions) == expected
    by_uid = {row["uid"]: row for row in rows.to_pylist()}
    lacking = {uid for uid, row in by_uid.items() if row["sha256"] is None}
    assert lacking == set(by_uid) - set(expected)
    groups: dict[str, list[str]] = {}
    for uid, values in expected.items():
        groups.setdefault(values["duplicate_group"], []).append(uid)
    for group, members in groups.items():
        assert group == min(members)
        assert {expected[uid]["duplicate_size"] for uid in members} == {len(members)}
        assert sum(expected[uid]["duplicate_survivor"] for uid in members) == 1
        assert len({by_uid[uid]["base"] for uid in members}) == 1
    if on == "sha256":
        assert len(groups) == len({by_uid[uid]["base"] for uid in expected})


def test_near_hashes_are_one_group_and_plain_images_are_left_out() -> None:
    random = np.random.default_rng(1)
    hashes = [near_hash(0, flipped, random) for flipped in (0, 31, 0, 33, 0)]
    rows = pa.table(
        {
            "uid": ["c", "b", "a", "d", "e", "f"],
            "pdq": pa.array([*hashes, None], pa.binary(32)),
            "pdq_quality": pa.array([50, 100, 49, 100, 3, 100], pa.int8()),
            "clip": pa.array([0.1, 0.3, 0.9, 0.9, 0.9, 0.9]),
        }
    )
    expected = {
        "b": ("b", 2, True),
        "c": ("b", 2, False),
        "a": ("a", 1, True),  # its hash is noise
        "d": ("d", 1, True),  # 33 bits from c, and more from b
        "e": ("e", 1, True),
    }
    columns = run_inline(duplicate(on="perceptual", best="clip"), [rows], 3)
    assert {uid: tuple(values.values()) for uid, values in columns.items()} == expected
    all_of_them = run_inline(duplicate(on="perceptual", best="clip", quality=0), [rows], 3)
    assert {uid for uid, v in all_of_them.items() if v["duplicate_group"] == "a"} == set("abce")


def test_a_chain_is_one_group_though_its_ends_are_far() -> None:
    base = BASES[0]
    middle, end = base.copy(), base.copy()
    middle[0] ^= np.uint64(2**31 - 1)
    end[0] ^= np.uint64(2**62 - 1)
    rows = pa.table(
        {
            "uid": ["a", "b", "c"],
            "pdq": pa.array([h.tobytes() for h in (base, middle, end)], pa.binary(32)),
            "pdq_quality": pa.array([90, 90, 90], pa.int8()),
        }
    )
    columns = run_inline(duplicate(on="perceptual"), [rows], 1)
    assert [values["duplicate_group"] for values in columns.values()] == ["a", "a", "a"]
    assert [values["duplicate_survivor"] for values in columns.values()] == [True, False, False]


def test_without_a_score_the_embedding_farthest_from_the_centroid_survives() -> None:
    vectors = np.array([[1, 0], [1, 0.02], [1, 0.05]], np.float16)
    rows = pa.table(
        {
            "uid": ["a", "b", "c"],
            "embed_image": pa.array(list(vectors), pa.list_(pa.float16(), 2)),
        }
    )
    columns = run_inline(duplicate(on="embedding", sample=1.0), [rows], 2)
    assert [values["duplicate_size"] for values in columns.values()] == [3, 3, 3]
    assert [values["duplicate_survivor"] for values in columns.values()] == [False, False, True]


def test_64_bit_hashes_have_a_radius_of_their_own_and_other_widths_need_one() -> None:
    numbers = [0, 0b111111, 0b11111110000000]
    rows = pa.table({"uid": ["a", "b", "c"], "phash": pa.array(numbers, pa.int64())})
    columns = run_inline(duplicate(on="perceptual", column="phash"), [rows], 1)
    assert [values["duplicate_group"] for values in columns.values()] == ["a", "a", "c"]
    wide = pa.table({"uid": ["a"], "h": pa.array([bytes(16)], pa.binary(16)), "h_quality": [99]})
    with pytest.raises(ValueError, match="have 128 bits; set radius"):
        run_inline(duplicate(on="perceptual", column="h"), [wide], 1)
    assert len(run_inline(duplicate(on="perceptual", column="h", radius=9), [wide], 1)) == 1


def test_what_it_reads() -> None:
    assert duplicate(on="sha256").reads == ("sha256",)
    assert duplicate(on="perceptual", best="clip_l14").reads == ("pdq", "pdq_quality", "clip_l14")
    assert duplicate(on="perceptual", column="pic_phash").reads == ("pic_phash",)
    assert duplicate(on="embedding", best="hard").reads == ("embed_image",)
    assert not duplicate(on="sha256").linked
    assert duplicate(on="embedding").linked


def test_texts_as_best_and_as_hashes_are_refused() -> None:
    rows = pa.table({"uid": ["a"], "sha256": ["0"], "caption": ["x"]})
    with pytest.raises(ValueError, match="best names the column 'caption' of type string"):
        run_inline(duplicate(on="sha256", best="caption"), [rows], 1)
    with pytest.raises(ValueError, match="hashes are of type string"):
        run_inline(
            duplicate(on="perceptual", column="caption", quality_column="n", radius=1),
            [rows.append_column("n", pa.array([99]))],
            1,
        )
    with pytest.raises(ValueError, match="embeddings are of type string"):
        run_inline(duplicate(on="embedding", column="caption"), [rows], 1)


SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("-inf")]))


@given(st.lists(st.tuples(st.integers(0, 3), SCORES), min_size=1, max_size=20), st.randoms())
def test_the_best_row_of_each_group_survives_in_any_order(
    rows: list[tuple[int, float | None]], random: object
) -> None:
    table = [(f"u{number:02d}", f"g{group}", score) for number, (group, score) in enumerate(rows)]
    random.shuffle(table)  # type: ignore[attr-defined]
    uids, groups, scores = (pa.array(values) for values in zip(*table, strict=True))
    survives = survivors(uids, groups, as_score(scores.cast(pa.float64()), "s"))
    expected = set()
    for group in set(groups.to_pylist()):
        members = [(uid, score) for uid, own, score in table if own == group]

        def rank(member: tuple[str, float | None]) -> tuple[float, str]:
            score = member[1]
            return (2 if score is None or score != score else -np.arctan(score)), member[0]

        expected.add(min(members, key=rank)[0])
    assert {uid for (uid, *_), alive in zip(table, survives, strict=True) if alive} == expected
    of_group = groups.to_pylist()
    assert sizes(groups).tolist() == [of_group.count(group) for group in of_group]


def test_without_a_score_the_smallest_uid_survives_and_of_two_equal_ones_the_first() -> None:
    uids, groups = pa.array(["b", "a", "a", "c"]), pa.array(["g", "g", "g", "h"])
    assert survivors(uids, groups, None).tolist() == [False, True, False, True]


def test_numbers_of_all_kinds_are_scores() -> None:
    for column in (
        pa.array([True, False]),
        pa.array(np.array([1, 0.5], np.float16)),
        pa.array([decimal.Decimal("1.5"), None]),
        pa.nulls(2),
        pa.array([3, 2], pa.int8()),
        pa.chunked_array([[2**53 + 1], [2**53]]),  # large integers keep their digits
    ):
        survives = survivors(pa.array(["a", "b"]), pa.array(["g", "g"]), as_score(column, "best"))
        assert survives.tolist() == [True, False]
