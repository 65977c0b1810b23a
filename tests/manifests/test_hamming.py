from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import hashes as hamming
from clipmill.manifests.arrays import Hashes, Mask
from clipmill.manifests.hashes import as_words, distances, near_pairs_between, near_pieces


def drawn_hashes(rows: int, words: int, radius: int, seed: int = 0) -> Hashes:
    """Drawn hashes, a third of them copies of others with up to radius + 2 flipped bits."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, (rows, words), dtype=np.uint64)
    for copy, source in random.integers(0, rows, (rows // 3, 2)):
        hashes[copy] = hashes[source]
        for bit in random.integers(0, 64 * words, random.integers(0, radius + 3)):
            hashes[copy, bit // 64] ^= np.uint64(1 << int(bit % 64))
    return hashes


def all_pairs(hashes: Hashes, radius: int) -> set[tuple[int, int, int]]:
    matrix = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(-1, dtype=int)
    first, second = np.nonzero(np.triu(matrix <= radius, 1))
    return {(int(i), int(j), int(matrix[i, j])) for i, j in zip(first, second, strict=True)}


def near_pairs(hashes: Hashes, radius: int, sides: Mask | None = None) -> set[tuple[int, int, int]]:
    """(i, j, distance) with i < j of all pairs within the radius; only of different sides."""
    pairs = set[tuple[int, int, int]]()
    wanted = None if sides is None else lambda i, j: sides[i] != sides[j]
    for i, j in near_pieces(hashes, radius, wanted):
        distance = distances(hashes[i], hashes[j])
        columns = np.minimum(i, j), np.maximum(i, j), distance
        pairs.update(zip(*(column.tolist() for column in columns), strict=True))
    return pairs


@settings(max_examples=40)
@given(
    rows=st.integers(0, 200),
    words=st.sampled_from([1, 4]),
    radius=st.integers(0, 70),
    seed=st.integers(0, 99),
)
def test_all_near_pairs_are_found_and_no_others(
    rows: int, words: int, radius: int, seed: int
) -> None:
    hashes = drawn_hashes(rows, words, radius, seed)
    assert near_pairs(hashes, radius) == all_pairs(hashes, radius)


@pytest.mark.parametrize(
    ("words", "radius", "rows_of_the_plan"),
    [(4, 31, 100), (4, 31, 10**6), (4, 31, 10**8), (1, 6, 10**6), (1, 10, 10**6), (1, 0, 10**9)],
)
def test_the_plan_for_many_rows_finds_the_same_pairs(
    words: int, radius: int, rows_of_the_plan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = drawn_hashes(300, words, radius)
    expected = all_pairs(hashes, radius)
    assert len(expected) > 15
    plan = hamming._plan(rows_of_the_plan, 2 * words, radius)
    monkeypatch.setattr(hamming, "_plan", lambda *_: plan)
    monkeypatch.setattr(hamming, "PIECE", 50)
    assert near_pairs(hashes, radius) == expected


@settings(max_examples=40)
@given(
    words=st.sampled_from([1, 4, 5]),
    flips=st.integers(0, 40),
    apart=st.integers(0, 60),
    radius=st.integers(0, 300),
    seed=st.integers(0, 99),
)
def test_all_near_pairs_of_crowds_are_found_and_no_others(
    words: int, flips: int, apart: int, radius: int, seed: int
) -> None:
    """Two crowds, whose centres differ in some bits, drawn hashes and the opposite of one."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, 64 * words, np.uint8) ^ np.zeros((150, 1), np.uint8)
    bits[70:120, :apart] = 1 - bits[70:120, :apart]
    for row in range(120):
        flipped = random.integers(0, 64 * words, flips)
        bits[row, flipped] = 1 - bits[row, flipped]
    bits[120:] = random.integers(0, 2, (30, 64 * words))
    bits[-1] = 1 - bits[0]
    hashes = np.packbits(bits, axis=1).view(np.uint64)[random.permutation(150)]
    side = random.integers(0, 2, 150).astype(bool)
    expected = all_pairs(hashes, radius)
    of_two_sides = {pair for pair in expected if side[pair[0]] != side[pair[1]]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming, "CROWD", 5)
        patch.setattr(hamming, "CHUNK", 70)
        patch.setattr(hamming, "PIECE", 1000)
        assert near_pairs(hashes, radius) == expected
        assert near_pairs(hashes, radius, side) == of_two_sides


@pytest.mark.parametrize("differing", ["first bits", "last bits", "one in eight", "one block"])
def test_a_pair_at_exactly_the_radius_is_found_wherever_its_bits_are(
    differing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = hamming._plan(10**6, 8, 31)
    monkeypatch.setattr(hamming, "_plan", lambda *_: plan)
    bits = {
        "first bits": range(31),
        "last bits": range(225, 256),
        "one in eight": range(3, 3 + 8 * 31, 8),
        "one block": range(0, 248, 8),
    }[differing]
    flipped = np.zeros(256, np.uint8)
    flipped[list(bits)] = 1
    base = np.random.default_rng(5).integers(0, 2**64, (1, 4), dtype=np.uint64)
    other = base ^ np.packbits(flipped).view(np.uint64)
    assert near_pairs(np.concatenate([base, other]), 31) == {(0, 1, 31)}
    assert near_pairs(np.concatenate([base, other]), 30) == set()


def test_many_rows_with_equal_keys_are_compared_in_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hamming, "PIECE", 1000)
    plan = hamming._plan(10**6, 8, 31)
    monkeypatch.setattr(hamming, "_plan", lambda *_: plan)
    hashes = np.zeros((400, 4), np.uint64)
    hashes[:, 3] = np.arange(400)
    sizes = [len(i) for i, _ in near_pieces(hashes, 31)]
    assert max(sizes) < 1000 * 64
    assert len(near_pairs(hashes, 31)) == 400 * 399 // 2


def test_columns_become_words() -> None:
    numbers = pa.array([-1, 0, 5], pa.int64())
    assert as_words(numbers).tolist() == [[2**64 - 1], [0], [5]]
    data = pa.array([bytes(range(32)), bytes(32), b"\xff" * 32], pa.binary(32))
    words = as_words(pa.chunked_array([data.slice(1)]))
    assert words.shape == (2, 4)
    assert distances(words[:1], words[1:]).tolist() == [256]
    assert as_words(data)[0].tobytes() == bytes(range(32))
    assert as_words(pa.array([], pa.binary(32))).shape == (0, 4)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="of type string"):
        as_words(pa.array(["ab"]))
    with pytest.raises(ValueError, match="6 bytes"):
        as_words(pa.array([b"123456"], pa.binary(6)))
    with pytest.raises(ValueError, match="radius is -1"):
        list(near_pieces(np.zeros((2, 1), np.uint64), -1))


def test_pairs_between_two_lists_are_all_pairs_of_few_bits() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2**64, 200, dtype=np.uint64)
    first[50:60] = first[0]  # equal rows of a side are no pairs, and each has its pairs
    second = np.concatenate([rng.integers(0, 2**64, 300, dtype=np.uint64), first[:80], first[:3]])
    for i in range(300, 380):
        for bit in rng.choice(64, i % 8, replace=False):
            second[i] ^= np.uint64(1) << np.uint64(bit)
    distance = np.bitwise_count(first[:, None] ^ second[None, :])
    expected = [(i, j, distance[i, j]) for i, j in np.argwhere(distance <= 4)]
    pairs = near_pairs_between(first[:, None], second[:, None], 4)
    assert list(zip(*pairs, strict=True)) == expected
    assert len(expected) > 40
    empty = near_pairs_between(first[:, None], second[:0, None], 4)
    assert [len(part) for part in empty] == [0, 0, 0]
