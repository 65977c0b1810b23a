"""Exact search of near hashes: all pairs of rows whose Hamming distance is at most a radius.

The method is multi-index hashing. The bits are dealt to blocks of 32. If two hashes differ in at
most `radius` bits, they differ in one block in at most radius // blocks bits (Norouzi, Punjani and
Fleet, 2012). The bits of a block are dealt to parts; the few differing bits leave some parts equal,
so that rows are sorted by every choice of so many parts, and only rows with equal parts are
compared: the block first, then the whole hash. Nothing is missed, whatever the hashes are; the
choice of the number of parts decides only the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]  # (rows, 64-bit words)
Indices = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
Pairs = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], NDArray[np.int64]]
# (i, j) -> (pairs,) of bool
Wanted = Callable[[NDArray[np.integer[Any]], NDArray[np.integer[Any]]], NDArray[np.bool_]]

BLOCK = 32  # bits that one sort key and one first comparison have
MAX_PARTS = 12  # more parts of a block than this never were the fastest choice
PIECE = 1 << 20  # pairs that are compared at a time: about 40 MB
SHORT_KEY = 16  # bits of the keys that are sorted by radix, which is faster than any other sort
# Costs in nanoseconds, measured on one core: they choose the number of parts, not the result.
RADIX_NS, SORT_NS, COMPARE_NS, VERIFY_NS, PASS_NS = 30.0, 90.0, 4.0, 30.0, 200_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One sort: rows with equal bits under `mask` of a block are compared, up to `radius` there."""

    block: int
    mask: int
    radius: int


def as_words(column: Any) -> Hashes:
    """(rows, words) of an Arrow array without NULL: int64 values, or binary of a fixed width that
    is a multiple of 8 bytes."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    assert array.null_count == 0
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        if width % 8:
            raise ValueError(f"hashes have {width} bytes; a multiple of 8 is needed")
        if not len(array):  # its buffer may be missing
            return np.zeros((0, width // 8), np.uint64)
        data = np.frombuffer(array.buffers()[1], np.uint8)
        data = data[array.offset * width : (array.offset + len(array)) * width]
        words: Hashes = data.view(np.uint64).reshape(len(array), width // 8)
        return words
    if not pa.types.is_int64(array.type) and not pa.types.is_uint64(array.type):
        raise ValueError(f"hashes are of type {array.type}; 64-bit integers or bytes are needed")
    numbers: Hashes = array.to_numpy().view(np.uint64).reshape(-1, 1)
    return numbers


def distances(first: Hashes, second: Hashes) -> NDArray[np.int64]:
    """Bits that differ, row by row."""
    count: NDArray[np.int64] = np.bitwise_count(first ^ second).sum(axis=-1, dtype=np.int64)
    return count


def near_pairs(
    hashes: Hashes, radius: int, sides: NDArray[np.bool_] | None = None, threads: int = 1
) -> Pairs:
    """(i, j, distance) with i < j of all pairs within `radius`, in order; each pair once.

    sides: only pairs of rows of different sides. Memory: besides the pairs, about 40 bytes a row.
    The pairs of equal rows are quadratic in their number: use `near_pieces` where many are equal.
    """
    rows = len(hashes)
    keys = [np.zeros(0, np.int64)]
    wanted = None if sides is None else lambda i, j: sides[i] != sides[j]
    for i, j in near_pieces(hashes, radius, wanted, threads):
        keys.append(np.unique(np.minimum(i, j).astype(np.int64) * rows + np.maximum(i, j)))
    pairs = np.unique(np.concatenate(keys))
    i, j = np.divmod(pairs, max(1, rows))
    return i, j, distances(hashes[i], hashes[j])


def near_pairs_between(first: Hashes, second: Hashes, radius: int) -> Pairs:
    """(i, j, distance) of all pairs first[i], second[j] within `radius`, in order.

    Equal rows of a side are searched for once, however many there are.
    """
    uniques, positions = [], []
    for hashes in (first, second):
        unique, inverse = np.unique(hashes, axis=0, return_inverse=True)
        uniques.append(unique)
        positions.append(inverse.reshape(-1))
    both = np.concatenate(uniques)
    sides = np.arange(len(both)) >= len(uniques[0])
    low, high, _ = near_pairs(both, radius, sides)
    keys = [np.zeros(0, np.int64)]
    rows_of = [_rows_of_unique(*each) for each in zip(positions, uniques, strict=True)]
    for of_first, of_second in zip(low.tolist(), (high - len(uniques[0])).tolist(), strict=True):
        i, j = rows_of[0][of_first], rows_of[1][of_second]
        keys.append((i[:, None] * len(second) + j).ravel())
    i, j = np.divmod(np.sort(np.concatenate(keys)), max(1, len(second)))
    return i, j, distances(first[i], second[j])


def _rows_of_unique(
    inverse: NDArray[np.integer[Any]], unique: Hashes
) -> list[NDArray[np.integer[Any]]]:
    """The rows that have each of the different hashes."""
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(unique)))
    return np.split(order, ends[:-1])


def near_pieces(
    hashes: Hashes, radius: int, wanted: Wanted | None = None, threads: int = 1
) -> Iterator[Indices]:
    """All pairs (i, j) within `radius`, some at a time. A pair may come several times, and in
    either order; i is never j.

    wanted: (i, j) -> which of these pairs are asked for. It is called for each pass anew, so that
    it can leave out what earlier pairs have made needless.
    """
    if radius < 0:
        raise ValueError(f"radius is {radius}; it must be at least 0")
    rows = len(hashes)
    if rows < 2:
        return
    assert rows < 2**32
    blocks = blocks_of(hashes)

    def search(each: _Pass) -> list[Indices]:
        pairs = []
        for i, j in _pairs_of_pass(blocks[each.block], each):
            if wanted is not None:
                chosen = wanted(i, j)
                i, j = i[chosen], j[chosen]
            near = distances(hashes[i], hashes[j]) <= radius
            if near.any():
                pairs.append((i[near], j[near]))
        return pairs

    passes = _plan(rows, len(blocks), radius)
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(passes), threads):
            for pieces in pool.map(search, passes[start : start + threads]):
                yield from pieces


def blocks_of(hashes: Hashes) -> list[NDArray[np.uint32]]:
    """The hashes as blocks of 32 bits. Neighbouring bits of a hash go to different blocks, because
    they resemble each other."""
    rows, words = hashes.shape
    count = words * 64 // BLOCK
    blocks = np.zeros((count, rows), np.uint32)
    order = np.arange(words * 64).reshape(BLOCK, count).T.ravel()
    for start in range(0, rows, 1 << 16):
        part = np.ascontiguousarray(hashes[start : start + (1 << 16)])
        bits = np.unpackbits(part.view(np.uint8).reshape(len(part), -1), axis=1)
        dealt = np.ascontiguousarray(np.packbits(bits[:, order], axis=1))
        blocks[:, start : start + len(part)] = dealt.view(np.uint32).T
    return list(blocks)


def _plan(rows: int, blocks: int, radius: int) -> list[_Pass]:
    """The passes that together miss no pair, with the number of parts that is expected to be
    fastest for hashes whose bits are drawn."""
    each, more = divmod(radius, blocks)
    plan: list[_Pass] = []
    cost = 0.0
    for block in range(blocks):
        # A pair within `radius` that is beyond `each` in blocks 0 to `more` has at most each - 1
        # in one of the others.
        block_radius = each if block <= more else each - 1
        if block_radius < 0:
            continue
        passes, its_cost = _plan_block(rows, block, block_radius)
        plan += passes
        cost += its_cost
    all_pairs = rows * (rows - 1) / 2
    if all_pairs * VERIFY_NS <= cost:
        return [_Pass(block=0, mask=0, radius=BLOCK)]
    return plan


def _plan_block(rows: int, block: int, radius: int) -> tuple[list[_Pass], float]:
    """The passes of a block, one for each choice of its parts that may be equal; and their cost."""
    if radius == 0:
        return [_Pass(block=block, mask=2**BLOCK - 1, radius=0)], PASS_NS + rows * SORT_NS
    best: tuple[float, int, bool] | None = None
    for equal in range(max(1, MAX_PARTS - radius) + 1):
        for is_short in (True, False):
            bits = BLOCK * equal / (radius + equal)
            if is_short:
                bits = min(bits, SHORT_KEY)
            sort = rows * (RADIX_NS if is_short else SORT_NS)
            compare = rows**2 / 2 / 2**bits * COMPARE_NS
            cost = math.comb(radius + equal, equal) * (PASS_NS + sort + compare)
            if best is None or cost < best[0]:
                best = cost, equal, is_short
    assert best is not None
    cost, equal, is_short = best
    parts = radius + equal
    passes = []
    for chosen in itertools.combinations(range(parts), equal):
        bits_of_key = [bit for bit in range(BLOCK) if bit % parts in chosen]
        if is_short:
            bits_of_key = bits_of_key[:SHORT_KEY]
        mask = sum(1 << bit for bit in bits_of_key)
        passes.append(_Pass(block=block, mask=mask, radius=radius))
    return passes, cost


def sorted_by(
    words: NDArray[np.uint32], mask: int
) -> tuple[NDArray[np.integer[Any]], NDArray[np.unsignedinteger[Any]]]:
    """(row numbers in the order of the bits under the mask, these bits in that order)."""
    if mask.bit_count() <= SHORT_KEY:
        keys = _gather_bits(words, mask)
        index = np.argsort(keys, kind="stable")  # a radix sort for 16-bit integers
        return index, keys[index]
    keyed = (words & np.uint32(mask)).astype(np.uint64) << np.uint64(32)
    keyed |= np.arange(len(words), dtype=np.uint64)
    keyed.sort()
    return (keyed & np.uint64(2**32 - 1)).astype(np.uint32), (keyed >> np.uint64(32))


def _gather_bits(words: NDArray[np.uint32], mask: int) -> NDArray[np.uint16]:
    """The bits under a mask of at most 16, next to each other."""
    halves = np.zeros((2, 1 << 16), np.uint16)
    values = np.arange(1 << 16, dtype=np.uint32)
    for position, bit in enumerate(b for b in range(BLOCK) if mask >> b & 1):
        is_set = values >> np.uint32(bit % 16) & np.uint32(1)
        halves[bit // 16] |= (is_set << np.uint32(position)).astype(np.uint16)
    keys: NDArray[np.uint16] = halves[0][words & np.uint32(0xFFFF)]
    keys |= halves[1][words >> np.uint32(16)]
    return keys


def _pairs_of_pass(words: NDArray[np.uint32], each: _Pass) -> Iterator[Indices]:
    """Pairs of rows that agree under the mask and are within the radius of the block."""
    rows = len(words)
    index, keys = sorted_by(words, each.mask)
    ordered = words[index]
    is_last = np.append(keys[1:] != keys[:-1], True)
    ends = np.flatnonzero(is_last) + 1
    sizes = np.diff(ends, prepend=0)
    end_of = np.repeat(ends.astype(np.uint32), sizes)
    shifts = _dense_shifts(sizes, rows)
    for i, shift in _near_by_shift(ordered, shifts, each.radius):
        yield index[i], index[i + shift]
    first = np.flatnonzero(np.arange(rows, dtype=np.uint32) + np.uint32(shifts + 1) < end_of)
    counts = end_of[first].astype(np.int64) - first - shifts - 1
    totals = np.cumsum(counts)
    start = 0
    while start < len(first):
        done = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, done + PIECE)))
        i, j = _expand(first[start:stop], counts[start:stop], shifts)
        near = np.bitwise_count(ordered[i] ^ ordered[j]) <= each.radius
        yield index[i[near]], index[j[near]]
        start = stop


def _dense_shifts(sizes: NDArray[np.int64], rows: int) -> int:
    """How many of the following rows every row is compared with, whatever its key: as long as a
    third of the rows has as many of the same key."""
    by_size = np.sort(sizes)
    following = np.cumsum(by_size[::-1])[::-1]  # rows of keys that have at least by_size rows
    for shift in range(1, 64):
        position = int(np.searchsorted(by_size, shift + 1))
        active = (
            following[position] - shift * (len(by_size) - position)
            if position < len(by_size)
            else 0
        )
        if active * 3 < rows:
            return shift - 1
    return 63


def _near_by_shift(
    ordered: NDArray[np.uint32], shifts: int, radius: int
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(i, shift): rows i and i + shift are within the radius. In pieces that fit a cache."""
    rows, piece = len(ordered), 1 << 15
    hits: list[list[NDArray[np.int64]]] = [[] for _ in range(shifts + 1)]
    for start in range(0, rows, piece):
        for shift in range(1, shifts + 1):
            of_second = ordered[start + shift : start + piece + shift]
            of_first = ordered[start : start + len(of_second)]
            near = np.flatnonzero(np.bitwise_count(of_first ^ of_second) <= radius)
            if len(near):
                hits[shift].append(near + start)
    for shift in range(1, shifts + 1):
        if hits[shift]:
            yield np.concatenate(hits[shift]), shift


def _expand(
    first: NDArray[np.int64], counts: NDArray[np.int64], shifts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each row with its `counts` following ones behind the first `shifts`."""
    i = np.repeat(first, counts)
    ends = np.cumsum(counts)
    j = np.arange(len(i)) + np.repeat(first + shifts + 1 - (ends - counts), counts)
    return i, j
