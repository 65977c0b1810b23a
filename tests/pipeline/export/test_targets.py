"""What --to names, and what it must not name."""

from __future__ import annotations

import pytest

from pipeline.export import target_of


@pytest.mark.parametrize(
    ("to", "kind", "card", "croissant"),
    [
        ("/a/b/x.parquet", "parquet", "/a/b/README.md", "/a/b/x.parquet.croissant.json"),
        ("/a/x.csv", "csv", "/a/README.md", "/a/x.csv.croissant.json"),
        ("s3://bucket/x.npy", "npy", "s3://bucket/README.md", "s3://bucket/x.npy.croissant.json"),
        ("/a/clip30/", "folder", "/a/clip30/README.md", "/a/clip30/croissant.json"),
        ("/a/v1.0", "folder", "/a/v1.0/README.md", "/a/v1.0/croissant.json"),
        ("s3://b/f", "folder", "s3://b/f/README.md", "s3://b/f/croissant.json"),
    ],
)
def test_the_ending_decides(to: str, kind: str, card: str, croissant: str) -> None:
    target = target_of(to, "/pool")
    assert (target.kind, target.card, target.croissant) == (kind, card, croissant)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("/a/x.jsonl", "an export is a .parquet, .csv or .npy file, or a folder"),
        ("/a/x.tar", "an export is a"),
        ("/pool/shards/x.parquet", "lies in the pool /pool"),
        ("/pool", "lies in the pool"),
        ("/a/x.csv/", "is a folder; which is it"),
    ],
)
def test_what_is_no_target(to: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        target_of(to, "/pool/")
