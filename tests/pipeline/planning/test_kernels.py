"""Keys, groups, shards and files of a plan: pure functions."""

from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests import disk
from clipmill.pipeline.archives.urls import host_of
from clipmill.pipeline.planning.plan_files import PLAN_VERSION, host_groups, shard_id
from clipmill.pipeline.planning.planner import (
    KEY_BITS,
    SHARDS_PER_FILE,
    cell_bounds,
    file_parts,
    host_hash,
    host_hashes,
    order_keys,
    shard_sizes,
)


@pytest.mark.parametrize(
    ("rows", "per_shard", "groups"),
    [(0, 10, 1), (9, 10, 1), (25, 10, 2), (10_000, 10, 1000), (10**9, 10_000, 1024)],
)
def test_host_groups_follow_from_the_number_of_pairs(
    rows: int, per_shard: int, groups: int
) -> None:
    assert host_groups(rows, per_shard) == groups


def test_an_id_covers_rows_retries_and_settings() -> None:
    uids, keys = pa.array(["a", "b"]), pa.array(["000000001", "000000007"])
    texts = ["a\nb", "a\nb\n000000001\n000000007"]
    expected = []
    for text in texts:
        content = hashlib.sha256(f"{PLAN_VERSION}\nsettings\n{text}".encode())
        expected.append(content.hexdigest()[:16])
    assert [shard_id(uids, None, "settings"), shard_id(uids, keys, "settings")] == expected
    assert shard_id(uids, None, "other") != expected[0]
    assert shard_id(pa.array(["x", "a", "b"]).slice(1), None, "settings") == expected[0]


URLS = [
    ("http://example.org", "example.org"),
    ("https://a-b.example.org:8443?x=http://other.test/", "a-b.example.org"),
    ("http://Example.ORG/a.jpg", "example.org"),
    ("https://user:secret@example.org:8443/a", "example.org"),
    ("http://example.org./a", "example.org"),
    ("http://bücher.example/a", "xn--bcher-kva.example"),
    ("http://[2001:db8::1]/a", "2001:db8::1"),
    ("http://[broken/a", ""),
    ("/a/local/file.jpg", ""),
    (f"http://{'ü' * 80}.example/", ""),
    ("http://example.org\n", ""),
    ("http://example.org/\nhttp://other.test/", "example.org"),
    ("", ""),
]


@pytest.mark.parametrize(("url", "host"), URLS)
def test_the_host_of_a_url_however_it_is_written(url: str, host: str) -> None:
    if url != "http://example.org\n":  # urlsplit removes the line break
        assert host_of(url) == host


def uids_of(urls: list[str]) -> pa.Array:
    return pa.array([disk.uid_of(url, "") for url in urls], pa.string())


def test_hosts_of_a_column_are_hashed_as_one_by_one() -> None:
    urls = [url for url, _ in URLS] * 3
    urls[5] = "http://" + "a" * 100_000 + ".test/"
    uids = uids_of(urls)
    expected = []
    for url, uid in zip(urls, uids.to_pylist(), strict=True):
        expected.append(host_hash(host_of(url) or uid))
    assert host_hashes(pa.array(urls), uids).tolist() == expected
    assert host_hashes(pa.array(urls).slice(4), uids.slice(4)).tolist() == expected[4:]
    empty = pa.array([], pa.string())
    assert host_hashes(empty, empty).tolist() == order_keys(empty).tolist() == []


@settings(max_examples=60)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_text_is_hashed_as_one_by_one(texts: list[str]) -> None:
    valid = [text.encode("utf-8", "ignore").decode() for text in texts]
    urls, uids = [f"http://{text}" for text in valid], uids_of(valid)
    expected = []
    for url, uid in zip(urls, uids.to_pylist(), strict=True):
        expected.append(host_hash(host_of(url) or uid))
    assert host_hashes(pa.array(urls, pa.string()), uids).tolist() == expected


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_files_hold_every_shard_once_and_the_cells_that_have_its_rows(
    group_rows: list[int], per_shard: int, per_file: int, random: object
) -> None:
    counts = np.array(group_rows)
    bounds = cell_bounds(counts, per_file)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == len(group_rows) << KEY_BITS
    groups = np.array([bound >> KEY_BITS for bound in bounds[:-1]])
    cell_rows = np.zeros(len(groups), np.int64)
    for group, rows in enumerate(group_rows):
        own = np.flatnonzero(groups == group)
        for row in range(rows):
            cell_rows[own[row * 7 % len(own)]] += 1
    _, sizes = shard_sizes(counts, per_shard)
    parts = file_parts(np.arange(len(sizes)), sizes, cell_rows, per_file)
    shards = [shard for part in parts for shard in range(part.first_shard, part.end_shard)]
    assert shards == list(range(len(sizes)))
    starts = np.concatenate([[0], np.cumsum(cell_rows)])
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    for part in parts:
        rows = int(row_starts[part.end_shard] - row_starts[part.first_shard])
        assert rows <= per_file or part.end_shard == part.first_shard + 1
        assert starts[part.first_cell] + part.skip == row_starts[part.first_shard]
        assert part.skip + rows <= starts[part.end_cell] - starts[part.first_cell]
        assert 0 <= part.skip < max(1, cell_rows[part.first_cell])


def test_a_file_has_a_bounded_number_of_shards() -> None:
    ones = np.ones(1000, np.int64)
    parts = file_parts(ones, ones, np.array([1000]), 10**6)
    assert [part.end_shard - part.first_shard for part in parts] == [256, 256, 256, 232]
    assert SHARDS_PER_FILE == 256


def test_what_the_files_of_a_large_plan_hold_is_not_copied() -> None:
    shards = np.full(100_000, 100, np.int64)
    tracemalloc.start()
    try:
        parts = file_parts(shards, shards, np.full(1000, 10_000), 10_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(parts) == 1000
    assert held < 500_000  # bytes; with lists of all shards 1.6 MB more


@pytest.mark.parametrize("slices", [2, 3, 1000])
def test_slices_divide_the_keys_evenly(slices: int) -> None:
    bounds = cell_bounds(np.array([16, 17, slices * 16, 0]), 16 * 16)[2:-1]
    assert bounds[0] == 2 << KEY_BITS
    assert bounds[-1] == 3 << KEY_BITS
    widths = np.diff(np.array(bounds, dtype=object))
    assert len(widths) == (slices if slices > 16 else 1)
    assert max(widths) - min(widths) <= 1
