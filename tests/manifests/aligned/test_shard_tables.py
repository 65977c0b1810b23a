"""What documents say of every shard, inside them or in a file beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manifests.aligned import (
    count_shards,
    has_table,
    score_shards,
    score_shards_dict,
    scored_shards,
    view_shards,
    write_score_shards,
    write_view_shards,
)
from manifests.layout import FLAT_SHARDS, PoolLayout
from manifests.records import ScoreSetDocument, ShardTable, ViewDocument

NUMBERS = np.array([0, 3000, 99_999, 100_000])
SHA = ["ab" * 32, "cd" * 32, "00" * 32, "ff" * 32]


def view(shards: dict[str, int] | None, table: ShardTable | None) -> ViewDocument:
    return ViewDocument(
        name="v", rules=(), thresholds={}, funnel=(), kept=10, fingerprint="f", scores={},
        shards=shards, table=table,
    )  # fmt: skip


def scores(shards: dict[str, str] | None, table: ShardTable | None) -> ScoreSetDocument:
    return ScoreSetDocument(
        name="s", id="1", version=1, options={}, identity="", columns=(), fingerprint="f", rows=1,
        stored=1, scored=1, seconds=0.0, shards=shards, table=table,
    )  # fmt: skip


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    pool, names = str(tmp_path), ["00000", "03000", "99999", "100000"]
    table = write_view_shards(pool, "v", NUMBERS, np.full(4, 9), np.array([1, 2, 3, 4]))
    small = view(dict(zip(reversed(names), [4, 3, 2, 1], strict=True)), None)
    for document in (view(None, table), small):
        shards, kept = view_shards(pool, document)
        assert (shards.tolist(), kept.tolist()) == (NUMBERS.tolist(), [1, 2, 3, 4])
        assert count_shards(document) == 4
    table = write_score_shards(pool, "s@1", NUMBERS, SHA, np.full(4, 9), np.full(4, 8))
    for scored in (scores(None, table), scores(dict(zip(names, SHA, strict=True)), None)):
        assert scored_shards(pool, scored).tolist() == NUMBERS.tolist()
        assert [value.hex() for value in score_shards(pool, scored)[1].to_pylist()] == SHA
        assert score_shards_dict(pool, scored) == dict(zip(names, SHA, strict=True))


def test_a_document_has_the_keys_of_its_form() -> None:
    table = ShardTable(shards=4, sha256="ab")
    assert "table" not in view({"00000": 1}, None).document()
    assert "shards" not in view(None, table).document()
    for both in ((None, None), ({}, table)):
        with pytest.raises(ValueError, match="needs one of 'shards' and 'table'"):
            view(*both)
    assert [has_table(n) for n in (0, FLAT_SHARDS, FLAT_SHARDS + 1)] == [False, False, True]


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    pool = str(tmp_path)
    table = write_view_shards(pool, "v", NUMBERS, np.full(4, 9), np.array([1, 2, 3, 4]))
    path = Path(PoolLayout(pool).view_shards("v"))
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"shards\.parquet is damaged: its sha256"):
        view_shards(pool, view(None, table))
    path.unlink()
    with pytest.raises(ValueError, match=r"shards\.parquet is missing"):
        view_shards(pool, view(None, table))
