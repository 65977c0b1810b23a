"""s-CLIPLoss against its definition in float64, and its batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.filters.clip.filters import ClipLoss, fixed_lists, pair_losses, stored_embeddings
from tests.support.pool_filters import run_inline

ROWS, WIDTH = 60, 16


def pool(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(0)
    image_BE = random.standard_normal((rows, WIDTH))
    text_BE = image_BE + random.standard_normal((rows, WIDTH))
    kind = pa.list_(pa.float16(), WIDTH)
    columns: dict[str, Any] = {"uid": [f"{i * 7919 % 65521:032x}" for i in range(rows)]}
    for name, rows_BE in (("e_image", image_BE), ("e_text", text_BE)):
        unit_BE = rows_BE / np.linalg.norm(rows_BE, axis=1, keepdims=True)
        columns[name] = fixed_lists(unit_BE.astype(np.float32), kind)
    return pa.table(columns)


def embeddings(rows: pa.Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images, texts = (stored_embeddings(rows, "e", tower)[0] for tower in ("image", "text"))
    return images.astype(np.float64), texts.astype(np.float64)


def by_definition(image_BE: Any, text_BE: Any, temperature: float) -> np.ndarray[Any, Any]:
    powers_BB = np.exp((image_BE @ text_BE.T - 1) / temperature)
    normaliser_B = np.log(powers_BB.sum(1)) + np.log(powers_BB.sum(0)) + 2 / temperature
    return np.asarray((image_BE * text_BE).sum(1) - temperature / 2 * normaliser_B)


def computed(filter_: ClipLoss, rows: pa.Table, partitions: int, shards: int = 1) -> dict[str, Any]:
    """uid -> value, as the engine computes it."""
    size = -(-rows.num_rows // shards)
    parts = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
    values = run_inline(filter_, parts, partitions)
    return {uid: row["clip_loss"] for uid, row in values.items()}


def test_one_batch_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmill.filters.clip.filters.STRIPE", 7 * ROWS)  # stripes of 7 rows
    image_BE, text_BE = embeddings(pool())
    for temperature in (0.01, 0.5):
        exact = by_definition(image_BE, text_BE, temperature)
        given = pair_losses(np.float32(image_BE), np.float32(text_BE), temperature)
        np.testing.assert_allclose(given, exact, atol=1e-5)
        assert given.max() <= 1e-6


def test_a_pool_is_the_mean_over_its_random_batches() -> None:
    filter_ = ClipLoss(on="e", batch=5, rounds=3)
    rows = pool()
    image_BE, text_BE = embeddings(rows)
    uids = rows["uid"].to_pylist()
    state = filter_.combine(filter_.summarise(rows))
    assert state["blocks"].to_pylist() == [3]  # of 20 rows
    _, blocks = filter_.route(rows, state, 1000)
    expected = np.zeros(ROWS)
    for block in range(3):
        members = sorted(np.flatnonzero(blocks == block), key=lambda row: uids[row])
        batches = filter_.batches([uids[row] for row in members])
        sizes = [len(numbers) for numbers in batches]
        assert len(batches) % 3 == 0
        assert sum(sizes) == 3 * len(members)
        assert max(sizes) - min(sizes) <= 1
        assert 3 <= min(sizes) <= max(sizes) <= 7
        for numbers in batches:
            chosen = np.array(members)[numbers]
            expected[chosen] += by_definition(image_BE[chosen], text_BE[chosen], 0.01) / 3
    values = computed(filter_, rows, 1)
    np.testing.assert_allclose([values[uid] for uid in uids], expected, atol=1e-5)


def test_the_values_are_the_same_for_any_partitions_shards_and_order() -> None:
    filter_ = ClipLoss(on="e", batch=5, rounds=3)
    rows = pool()
    once = computed(filter_, rows, 1)
    assert computed(filter_, rows, 7, shards=4) == once
    order = np.random.default_rng(1).permutation(ROWS)
    assert computed(filter_, rows.take(order), 2, shards=3) == once
    assert computed(ClipLoss(on="e", batch=5, rounds=3, seed=1), rows, 1) != once


def test_a_small_pool_is_one_batch_and_rows_without_embeddings_take_no_part() -> None:
    rows = pool(8)
    mask = np.arange(8) == 3
    lacking = fixed_lists(np.zeros((8, WIDTH), np.float32), rows["e_text"].type, mask)
    filter_ = ClipLoss(on="e")
    assert len(filter_.batches(rows["uid"].to_pylist())) == 1
    assert len(computed(filter_, rows, 1)) == 8
    assert rows["uid"][3].as_py() not in computed(filter_, rows.set_column(2, "e_text", lacking), 2)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="e has no column e_text"):
        ClipLoss(on="e").summarise(pool().drop_columns("e_text"))
