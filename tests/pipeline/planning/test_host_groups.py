"""How many groups there are, and the id of a shard."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from pipeline.planning.plan_files import PLAN_VERSION, host_groups, shard_id


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


def test_shards_without_rows_per_shard_are_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        host_groups(9, 0)
