"""A partition for each value: equal values are in the same one, on every machine."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

# Multipliers of splitmix64's finaliser.
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(rows,) 64-bit integers with all bits mixed (splitmix64): different ones stay different."""
    bits = values.copy()
    bits ^= bits >> np.uint64(30)
    bits *= MIX_1
    bits ^= bits >> np.uint64(27)
    bits *= MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


def partition_of(values: pa.Array | pa.ChunkedArray, partitions: int) -> NDArray[np.int64]:
    """(rows,) 0 to partitions - 1, of integers or texts. NULLs are in partition 0.

    Texts are hashed once per different value.
    """
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(column, pa.ChunkedArray):  # of more than 2 GB
        column = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
    is_null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_integer(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = mixed(numbers.astype(np.int64).view(np.uint64))
    else:
        encoded = column.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        by_word = [xxhash.xxh3_64_intdigest(_as_bytes(word)) for word in words]
        indices = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        hashes = np.array([*by_word, 0], np.uint64)[indices]
    partition = (hashes % np.uint64(partitions)).astype(np.int64)
    partition[is_null] = 0
    return partition


def _as_bytes(word: object) -> bytes:
    if isinstance(word, bytes):
        return word
    return str(word).encode("utf-8", "surrogatepass")
