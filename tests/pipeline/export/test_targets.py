"""What --to names, and what it must not name."""

from __future__ import annotations

import pytest

from pipeline.export import target_of


@pytest.mark.parametrize(
    ("to", "kind", "card"),
    [
        ("/a/b/x.parquet", "parquet", "/a/b/README.md"),
        ("/a/x.csv", "csv", "/a/README.md"),
        ("s3://bucket/x.npy", "npy", "s3://bucket/README.md"),
        ("/a/clip30/", "folder", "/a/clip30/README.md"),
        ("/a/v1.0", "folder", "/a/v1.0/README.md"),
        ("s3://b/f", "folder", "s3://b/f/README.md"),
    ],
)
def test_the_ending_decides(to: str, kind: str, card: str) -> None:
    target = target_of(to, "/pool")
    assert (target.kind, target.card) == (kind, card)


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
