"""Hashes of texts and of images: perceptual ones, exact search of near ones, the blocked ones."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.arrays import Hashes, Integers, Mask


def text_hashes(texts: Iterable[str], seed: int = 0) -> Hashes:
    """(texts,) the xxh3_64 of each: what draws rows, and puts them in an order."""
    import xxhash  # the trainer starts without it

    return np.fromiter((xxhash.xxh3_64_intdigest(text.encode(), seed) for text in texts), np.uint64)


# --------------------------------------------------------------------------------------------------
# Exact search of near hashes: all pairs of rows whose Hamming distance is at most a radius.
#
# The method is multi-index hashing. The bits are dealt to blocks of 32. If two hashes differ in
# at most `radius` bits, they differ in one block in at most radius // blocks bits (Norouzi,
# Punjani and Fleet, 2012). The bits of a block are dealt to parts; the few differing bits leave
# some parts equal, so that rows are sorted by every choice of so many parts, and only rows with
# equal parts are compared: the block first, then the whole hash. Nothing is missed, whatever the
# hashes are; the choice of the number of parts decides only the time.
#
# That is fast where bits are drawn. Many hashes around one template have most bits in common, and
# with them most keys: such a ball is compared row by row instead, inside and with the rows that
# are at most `radius` beyond it (the triangle inequality), and taken out of the search.


Indices = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
Pairs = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], Integers]
# (i, j) -> (pairs,) of bool
Wanted = Callable[[NDArray[np.integer[Any]], NDArray[np.integer[Any]]], Mask]

BLOCK = 32  # bits that one sort key and one first comparison have
MAX_PARTS = 12  # more parts of a block than this never were the fastest choice
PIECE = 1 << 20  # pairs that are compared at a time: about 40 MB
SHORT_KEY = 16  # bits of the keys that are sorted by radix, which is faster than any other sort
# Costs in nanoseconds, measured on one core: they choose the number of parts, not the result.
RADIX_NS, SORT_NS, COMPARE_NS, VERIFY_NS, PASS_NS = 30.0, 90.0, 4.0, 30.0, 200_000.0
DENSE_NS = 0.5  # for a pair and a word of 64 bits, of `dense_pairs`

# Rows with 16 equal bits may be a ball if they are so many, and so many times the mean.
CROWD, CROWD_FACTOR = 64, 4
KEY = sum(1 << bit for bit in range(0, BLOCK, 2))
SAMPLE = 1 << 10  # rows that give the centre of a ball; pairs that give the cost of a search
TILE, CHUNK = 8, 1 << 13  # rows that are compared at a time, within a cache
SLOW_PAIRS = 5 * 10**9  # of one ball: from here on, more than ten seconds
logger = logging.getLogger(__name__)


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


def distances(first: Hashes, second: Hashes) -> Integers:
    """Bits that differ, row by row."""
    count: Integers = np.bitwise_count(first ^ second).sum(axis=-1, dtype=np.int64)
    return count


def near_pairs_between(first: Hashes, second: Hashes, radius: int) -> Pairs:
    """(i, j, distance) of all pairs first[i], second[j] within `radius`, in order."""
    is_first = np.arange(len(first) + len(second)) < len(first)
    keys = [np.zeros(0, np.int64)]
    both = np.concatenate([first, second])
    for i, j in near_pieces(both, radius, lambda i, j: is_first[i] != is_first[j]):
        of_first, of_second = np.minimum(i, j).astype(np.int64), np.maximum(i, j) - len(first)
        keys.append(np.unique(of_first * len(second) + of_second))
    i, j = np.divmod(np.unique(np.concatenate(keys)), max(1, len(second)))
    return i, j, distances(first[i], second[j])


def near_pieces(hashes: Hashes, radius: int, wanted: Wanted | None = None) -> Iterator[Indices]:
    """All pairs (i, j) within `radius`, some at a time. A pair may come several times, and in
    either order; i is never j.

    wanted: (i, j) -> which of these pairs are asked for. It is called for each pass anew, so that
    it can leave out what earlier pairs have made needless.
    """
    is_left = np.ones(len(hashes), np.bool_)
    for ball, fringe in balls(hashes, radius, is_left):
        both = np.concatenate([ball, fringe])
        tile = max(1, PIECE // len(both))
        for start in range(0, len(ball), tile):
            i, j = dense_pairs(hashes[ball[start : start + tile]], hashes[both[start:]], radius)
            is_first = i < j  # of the two orders in which a tile has a pair of its rows
            i, j = both[start + i[is_first]], both[start + j[is_first]]
            if wanted is not None:
                chosen = wanted(i, j)
                i, j = i[chosen], j[chosen]
            yield i, j
    if is_left.all():
        yield from keyed_pieces(hashes, radius, wanted)
        return
    rows = np.flatnonzero(is_left)
    wanted_left = None if wanted is None else lambda i, j: wanted(rows[i], rows[j])
    for i, j in keyed_pieces(hashes[rows], radius, wanted_left):
        yield rows[i], rows[j]


def keyed_pieces(hashes: Hashes, radius: int, wanted: Wanted | None = None) -> Iterator[Indices]:
    """`near_pieces` by multi-index hashing alone."""
    rows = len(hashes)
    if rows < 2:
        return
    assert rows < 2**32
    blocks = blocks_of(hashes)
    for each in _plan(rows, len(blocks), radius):
        for i, j in _pairs_of_pass(blocks[each.block], each):
            if wanted is not None:
                chosen = wanted(i, j)
                i, j = i[chosen], j[chosen]
            near = distances(hashes[i], hashes[j]) <= radius
            if near.any():
                yield i[near], j[near]


# --- balls ----------------------------------------------------------------------------------------


def balls(hashes: Hashes, radius: int, is_left: Mask) -> Iterator[tuple[Integers, Integers]]:
    """(ball, fringe) of crowds around one centre: rows that are taken out of `is_left`, those near
    the centre first, and the rows left that may be near one of them.

    A crowd is taken out where all pairs of its ball cost less than the search for them. ValueError
    for a radius below 0.
    """
    if radius < 0:
        raise ValueError(f"radius is {radius}; it must be at least 0")
    if not radius or len(hashes) <= CROWD:
        return
    for block in blocks_of(hashes):
        rows = np.flatnonzero(is_left)
        index, keys = sorted_by(block[rows], KEY)
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        sizes = np.diff(starts, append=len(keys))
        for bucket in np.flatnonzero(sizes > CROWD + CROWD_FACTOR * len(rows) / 2**16).tolist():
            members = rows[np.sort(index[starts[bucket] : starts[bucket] + sizes[bucket]])]
            members = members[is_left[members]]
            if len(members) <= CROWD or len(members) ** 2 < np.count_nonzero(is_left):
                continue  # one look at all rows costs more than these pairs
            if crowd := _ball(hashes, np.flatnonzero(is_left), members, radius):
                is_left[crowd[0]] = False
                yield crowd


def _ball(
    hashes: Hashes, left: Integers, members: Integers, radius: int
) -> tuple[Integers, Integers] | None:
    """The ball around the centre of some rows, with half of them at least, of which a row needs
    the fewest comparisons. None where its pairs cost more than their search.
    """
    sample = hashes[members[:: -(-len(members) // SAMPLE)]]
    bits = np.unpackbits(sample.view(np.uint8).reshape(len(sample), -1), axis=1)
    centre = np.packbits(bits.mean(axis=0) > 0.5).view(np.uint64)
    distance = distances(hashes[left], centre[None])
    within = np.cumsum(np.bincount(distance, minlength=bits.shape[1] + 1))
    beyond = within[np.minimum(np.arange(len(within)) + radius, len(within) - 1)]
    comparisons = np.where(within >= len(members) / 2, beyond - within / 2, np.inf)
    size = int(comparisons.argmin())
    ball, both = int(within[size]), int(beyond[size])
    pairs = ball * (both - ball / 2)
    order = left[np.argsort(distance, kind="stable")[:both]]
    if pairs * DENSE_NS * hashes.shape[1] > _search_cost(hashes[np.sort(order[:ball])], radius):
        return None
    if pairs > SLOW_PAIRS:
        message = "%d hashes within %d bits of one template: comparing them takes up to %d s of CPU"
        logger.info(message, ball, size, pairs * DENSE_NS * hashes.shape[1] / 1e9)
    return order[:ball], order[ball:]


def _search_cost(hashes: Hashes, radius: int) -> float:
    """Nanoseconds of the passes over these rows, by the keys that pairs of them share."""
    rows = len(hashes)
    chosen = np.arange(min(rows, SAMPLE)) * (rows // min(rows, SAMPLE))
    first, cost = blocks_of(hashes[chosen]), 0.0
    for each in _plan(rows, len(first), radius):
        words = first[each.block]
        differ = (words ^ np.roll(words, len(words) // 3)) & np.uint32(each.mask)
        pairs = rows**2 / 2 * np.count_nonzero(differ == 0) / len(words)
        cost += PASS_NS + rows * RADIX_NS + pairs * COMPARE_NS
    return cost


def dense_pairs(first: Hashes, second: Hashes, radius: int) -> Indices:
    """(i, j) of all pairs first[i], second[j] within the radius."""
    columns = np.ascontiguousarray(second.T)
    pieces = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    kind = np.uint8 if radius < 256 else np.uint16
    for start in range(0, len(second), CHUNK):
        part = columns[:, start : start + CHUNK]
        shape = min(TILE, len(first)), part.shape[1]
        differ, bits, count = (np.empty(shape, each) for each in (np.uint64, np.uint8, kind))
        for top in range(0, len(first), TILE):
            rows = first[top : top + TILE]
            used = len(rows)
            count[:] = 0
            for word in range(len(columns)):
                np.bitwise_xor(rows[:, word, None], part[word], out=differ[:used])
                np.bitwise_count(differ[:used], out=bits[:used])
                count[:used] += bits[:used]
            i, j = np.divmod(np.flatnonzero(count[:used] <= radius), shape[1])
            if len(i):
                pieces.append((i + top, j + start))
    i, j = (np.concatenate(each) for each in zip(*pieces, strict=True))
    if 64 * len(columns) < 256:
        return i, j
    near = distances(first[i], second[j]) <= radius  # 256 differing bits are counted as 0
    return i[near], j[near]


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


def _dense_shifts(sizes: Integers, rows: int) -> int:
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
) -> Iterator[tuple[Integers, int]]:
    """(i, shift): rows i and i + shift are within the radius. In pieces that fit a cache."""
    rows, piece = len(ordered), 1 << 15
    hits: list[list[Integers]] = [[] for _ in range(shifts + 1)]
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


def _expand(first: Integers, counts: Integers, shifts: int) -> tuple[Integers, Integers]:
    """Each row with its `counts` following ones behind the first `shifts`."""
    i = np.repeat(first, counts)
    ends = np.cumsum(counts)
    j = np.arange(len(i)) + np.repeat(first + shifts + 1 - (ends - counts), counts)
    return i, j


# --------------------------------------------------------------------------------------------------
# A list of content that must never be stored: hashes of bytes, and perceptual hashes of images.
#
# One hash a line: 64 hex digits are the sha256 of the received bytes, 16 hex digits a perceptual
# hash of `manifests/hashes.py`. Blank lines and lines that begin with # are skipped.


SHA256 = re.compile(r"[0-9a-f]{64}")
PHASH = re.compile(r"[0-9a-f]{16}")
IDENTITY_DIGITS = 16

Digests = np.ndarray[Any, np.dtype[np.bytes_]]


class KnownBad:
    """The list in memory, 32 bytes a sha256 and 8 bytes a perceptual hash."""

    def __init__(self, digests: Iterable[str], hashes: Iterable[str], distance: int) -> None:
        """digests, hashes: hex digits. `distance`: bits that a perceptual hash may differ by."""
        unique = sorted({bytes.fromhex(digest) for digest in digests})
        self.digests: Digests = np.array(unique, "S32")
        numbers = sorted({int(each, 16) for each in hashes})
        self.hashes: Hashes = np.array(numbers, np.uint64)
        self.distance = distance

    @classmethod
    def read(cls, path: str, distance: int) -> KnownBad:
        """The list of a file. ValueError for a line that is neither of the two hashes."""
        digests, hashes = _read_lines(path)
        return cls(digests, hashes, distance)

    @property
    def identity(self) -> str:
        """Hash of the list itself: neither its path nor the order of its lines counts."""
        content = hashlib.sha256(self.digests.tobytes())
        content.update(b"phash" + self.hashes.tobytes())
        return content.hexdigest()[:IDENTITY_DIGITS]

    def has_bytes(self, body: bytes) -> bool:
        """Whether the sha256 of these bytes is listed."""
        digest = np.array([hashlib.sha256(body).digest()], "S32")
        position = int(np.searchsorted(self.digests, digest)[0])
        return position < len(self.digests) and bool(self.digests[position] == digest[0])

    def has_image(self, hashes: Iterable[int]) -> bool:
        """Whether one of the perceptual hashes of an image is near a listed one."""
        for each in hashes:
            bits = np.bitwise_count(self.hashes ^ np.uint64(each % 2**64))
            if len(bits) and int(bits.min()) <= self.distance:
                return True
        return False


def _read_lines(path: str) -> tuple[list[str], list[str]]:
    try:
        text = disk.read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"fetch.known_bad names {path}, which does not exist") from None
    except disk.NotRegular as error:
        raise ValueError(f"fetch.known_bad: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"fetch.known_bad names {path}, which is not a text file") from None
    digests, hashes = [], []
    for number, line in enumerate(text.splitlines(), 1):
        value = line.strip().lower()
        if SHA256.fullmatch(value):
            digests.append(value)
        elif PHASH.fullmatch(value):
            hashes.append(value)
        elif value and not value.startswith("#"):
            raise ValueError(
                f"{path} line {number} is {line.strip()[:80]!r}; write a sha256 (64 hex digits) or "
                "a perceptual hash (16 hex digits)"
            )
    return digests, hashes


# --------------------------------------------------------------------------------------------------
# Perceptual hashes of an image: resized or recompressed copies have a near hash.
#
# `phash` has 64 bits. The filter `picture` stores it as a column, and an evaluation compares its
# images with that column. `pdq` has 256 bits and a quality; the filter `pdq` stores them.


SIDE = 32  # pixels: the luma is resized to SIDE × SIDE
LOW_TERMS = 8  # per axis: the hash has one bit for each of the 8 × 8 lowest cosine terms

# Constants of PDQ as Facebook published it in 2019 ("The TMK+PDQF video-hashing algorithm and the
# PDQ image-hashing algorithm").
PDQ_SIDE = 64  # pixels per axis after the box filters
PDQ_TERMS = 16  # cosine terms per axis, without the constant one
PDQ_BYTES = PDQ_TERMS**2 // 8
PDQ_GRADIENT_UNIT = 90  # steps of one percent of the range that are one unit of quality
PDQ_QUALITY = 50  # published: a hash of a lower quality is not to be compared
PDQ_RADIUS = 31  # published: hashes within 31 of 256 bits are of copies

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]

# Rows are the eight lowest cosines over 32 samples (DCT-II without scaling).
_COSINES = np.cos(np.pi * (2 * np.arange(SIDE) + 1) * np.arange(LOW_TERMS)[:, None] / (2 * SIDE))
# Rows are the cosines 1 to 16 over 64 samples. Scaling does not change which exceed their median.
_PDQ_COSINES = np.cos(
    np.pi * (2 * np.arange(PDQ_SIDE) + 1) * np.arange(1, PDQ_TERMS + 1)[:, None] / (2 * PDQ_SIDE)
).astype(np.float32)


def phash(image: Image.Image) -> int:
    """64-bit hash: which of the 8 × 8 lowest cosine terms of the 32 × 32 luma exceed their median.

    Row by row, the first bit highest. Returned as a signed number, because int64 is the 64-bit
    column type that Parquet and SQL share.
    """
    resized = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    luma = np.asarray(resized, np.float64)
    low: FloatArray = _COSINES @ luma @ _COSINES.T
    bits = (low > np.median(low)).ravel()
    return int(np.packbits(bits).view(">i8")[0])


def pdq(image: Image.Image) -> tuple[bytes, int]:
    """(hash of 32 bytes, quality of 0 to 100) by the published description of PDQ.

    The luma is smoothed by two box filters per axis and sampled at 64 × 64; a bit says whether one
    of the cosine terms 1 to 16 per axis exceeds their median. The hexadecimal form of the bytes is
    PDQ's own. The quality is the sum of the steps between neighbouring samples; of a plain image
    the bits are noise and the quality is low.
    """
    luma_HW = np.asarray(image.convert("L"), np.float32)
    height, width = luma_HW.shape
    # Few weights are not 0: a sparse product takes a tenth of the time, and no threads of BLAS.
    small: FloatArray = (_smooth(width) @ (_smooth(height) @ luma_HW).T).T
    terms: FloatArray = _PDQ_COSINES @ small @ _PDQ_COSINES.T
    bits = (
        terms > np.partition(terms, terms.size // 2 - 1, axis=None)[terms.size // 2 - 1]
    ).ravel()
    return np.packbits(bits[::-1]).tobytes(), _pdq_quality(small)


def _pdq_quality(small: FloatArray) -> int:
    steps = 0
    for axis in (0, 1):
        percent = np.trunc(np.diff(small, axis=axis) * np.float32(100 / 255))
        steps += int(np.abs(percent).sum())
    return min(100, steps // PDQ_GRADIENT_UNIT)


@functools.lru_cache(maxsize=512)
def _smooth(length: int) -> Any:
    """(64, length) sparse weights of two box filters after one another, sampled at 64 positions.

    The window is 1/128 of the length, rounded up; at a border it has only the samples inside.
    """
    from scipy.sparse import csr_array

    window = -(-length // (2 * PDQ_SIDE))
    right = (window + 2) // 2 - 1
    left = window - 1 - right
    samples = np.arange(length)
    first, end = np.maximum(samples - left, 0), np.minimum(samples + right + 1, length)
    # Differences along the axis: +w where a window begins, -w behind its end.
    steps = np.zeros((PDQ_SIDE, length + 1))
    for row, centre in enumerate(((np.arange(PDQ_SIDE) + 0.5) * length / PDQ_SIDE).astype(int)):
        inner = slice(first[centre], end[centre])
        weights = 1 / (end[inner] - first[inner]) / (end[centre] - first[centre])
        np.add.at(steps[row], first[inner], weights)
        np.add.at(steps[row], end[inner], -weights)
    weights_of_all: FloatArray = np.cumsum(steps[:, :length], axis=1).astype(np.float32)
    weights_of_all[np.abs(weights_of_all) < 1e-9] = 0  # rounding of the sums
    return csr_array(weights_of_all)
