"""Random numbers as pure functions of integers: SplitMix64 over keys derived from positions.

NumPy's generators are not used, because their streams may change between versions. A change of any
function here changes the order of training: bump ORDER_VERSION in `train/mixture/order.py` and its
golden test.

Source of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np

from clipmill.manifests.arrays import FloatArray, Hashes, Integers

MASK = 2**64 - 1
# 2^64 divided by the golden ratio: the increment of SplitMix64.
GOLDEN = 0x9E3779B97F4A7C15


def _finish(z: Hashes) -> Hashes:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """One 64-bit number from integers; other integers, or another order, give an unrelated one."""
    state = 0
    for part in parts:
        z = ((state ^ (part & MASK)) + GOLDEN) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        state = z ^ (z >> 31)
    return state


def _stream(key: int, index: Integers) -> Hashes:
    """Numbers `index` of the SplitMix64 stream that starts at `key`."""
    return _finish(np.uint64(key) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def permutation(key: int, length: int) -> Integers:
    """A permutation of 0 … length − 1 that depends on `key` alone."""
    return np.argsort(_stream(key, np.arange(length)), kind="stable")


def uniforms(key: int, rows: Integers, count: int) -> FloatArray:
    """(len(rows), count) numbers in [0, 1): each a function of `key`, its row and its column."""
    index = rows[:, None] * count + np.arange(count)
    return (_stream(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53
