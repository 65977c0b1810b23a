"""Hashes by column are those of row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import disk
from pipeline.planning.planner import (
    host_hash,
    host_hashes,
    host_of,
    order_keys,
)

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


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_text_is_hashed_as_one_by_one(texts: list[str]) -> None:
    valid = [text.encode("utf-8", "ignore").decode() for text in texts]
    urls, uids = [f"http://{text}" for text in valid], uids_of(valid)
    expected = []
    for url, uid in zip(urls, uids.to_pylist(), strict=True):
        expected.append(host_hash(host_of(url) or uid))
    assert host_hashes(pa.array(urls, pa.string()), uids).tolist() == expected
