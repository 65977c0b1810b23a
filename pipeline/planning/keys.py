"""The keys that decide where a row is planned: the hash of its host, and its order among others.

Pure, and by column: Python sees each host of a table once, and never a row.
"""

from __future__ import annotations

import re
import struct
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline.archives import ascii_host

ORDER_SEED = 20240229
# The host of most URLs, 4 times faster than urlsplit.
PLAIN_HOST = re.compile(r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|\Z)")
# The same in RE2's syntax, where $ is the end of the text.
PLAIN_HOST_RE2 = r"^https?://(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::[0-9]*)?(?:[/?#]|$)"
UID_LENGTH = 32  # hex digits
Hashes = npt.NDArray[np.uint64]

# Of XXH3 (64 bits) for inputs of 17 to 32 bytes; see the specification of xxHash.
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f")
PRIME64_1 = 0x9E3779B185EBCA87
AVALANCHE = 0x165667919E3779F9
MASK = (1 << 64) - 1
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def host_of(url: str) -> str:
    """The host of a URL as `ascii_host` writes it, without user or port; "" where it has none."""
    if plain := PLAIN_HOST.match(url):
        return plain[1]
    try:
        return ascii_host(urlsplit(url).hostname or "")
    except ValueError:  # not a host name: the fetcher refuses such a row before it connects
        return ""


def host_hash(host: str) -> int:
    """Hash of a host name. Its remainder by the number of groups is the host's group."""
    return int(xxhash.xxh3_64_intdigest(host.encode("utf-8", "surrogatepass")))


def host_hashes(urls: pa.Array, uids: pa.Array) -> Hashes:
    """(rows,) `host_hash` of each URL's host; of the uid where a URL has no host."""
    hosts = pc.struct_field(pc.extract_regex(urls, PLAIN_HOST_RE2), "host")
    unusual = np.flatnonzero(pc.is_null(hosts).to_numpy(zero_copy_only=False))
    encoded = hosts.dictionary_encode()
    by_host = [host_hash(host) for host in encoded.dictionary.to_pylist()]
    indices = pc.fill_null(encoded.indices, 0).to_numpy()
    hashes: Hashes = np.array([*by_host, 0], dtype=np.uint64)[indices]
    if len(unusual):
        _hash_unusual(hashes, unusual, urls, uids)
    return hashes


def _hash_unusual(
    hashes: Hashes, rows: npt.NDArray[np.intp], urls: pa.Array, uids: pa.Array
) -> None:
    """Set the hashes of rows whose URL needs a parser, or has no host."""
    encoded = urls.take(pa.array(rows)).dictionary_encode()
    hosts = [host_of(url) for url in encoded.dictionary.to_pylist()]
    by_url = np.array([host_hash(host) if host else 0 for host in hosts], dtype=np.uint64)
    has_host = np.array([bool(host) for host in hosts], dtype=bool)
    indices = encoded.indices.to_numpy()
    hashes[rows] = by_url[indices]
    without = rows[~has_host[indices]]
    if len(without):
        hashes[without] = uid_hashes(uids.take(pa.array(without)), 0)


def order_keys(uids: pa.Array) -> Hashes:
    """(rows,) xxh3(uid): the order of rows inside a group."""
    return uid_hashes(uids, ORDER_SEED)


def uid_hashes(uids: pa.Array, seed: int) -> Hashes:
    """(rows,) XXH3 (64 bits) of uids."""
    lengths = pc.binary_length(uids)
    if uids.null_count or not pc.all(pc.equal(lengths, UID_LENGTH), min_count=0).as_py():
        values = [xxhash.xxh3_64_intdigest(uid.encode(), seed=seed) for uid in uids.to_pylist()]
        return np.array(values, dtype=np.uint64)
    data = uids.cast(pa.binary()).cast(pa.binary(UID_LENGTH)).buffers()[1]
    words = np.frombuffer(data, dtype="<u8", count=len(uids) * UID_LENGTH // 8).reshape(-1, 4)
    return xxh3_of_32_bytes(words, seed)


def xxh3_of_32_bytes(words: Hashes, seed: int) -> Hashes:
    """(rows,) XXH3 (64 bits) of (rows, 4) little-endian words of 8 bytes."""
    secret = struct.unpack("<4Q", SECRET)
    result = np.full(len(words), UID_LENGTH * PRIME64_1 & MASK, dtype=np.uint64)
    for pair in (0, 2):
        low = words[:, pair] ^ np.uint64(secret[pair] + seed & MASK)
        high = words[:, pair + 1] ^ np.uint64(secret[pair + 1] - seed & MASK)
        result += _folded_product(low, high)
    result ^= result >> np.uint64(37)
    result *= np.uint64(AVALANCHE)
    result ^= result >> HALF
    return result


def _folded_product(a: Hashes, b: Hashes) -> Hashes:
    """Low half xor high half of the 128-bit products."""
    a_low, a_high, b_low, b_high = a & LOW, a >> HALF, b & LOW, b >> HALF
    low = a_low * b_low
    middle = a_high * b_low + (low >> HALF)
    other = a_low * b_high + (middle & LOW)
    high = a_high * b_high + (middle >> HALF) + (other >> HALF)
    product: Hashes = (a * b) ^ high
    return product
