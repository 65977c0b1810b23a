from __future__ import annotations

import json

import pytest

from benchmarks.training import step_memory

RESULT = json.loads(step_memory.RESULT.read_text())


def test_the_formula_is_within_a_tenth_of_every_measured_step() -> None:
    settings = {key for row in RESULT["cases"] for key in row["changes"]}
    assert {"precision", "recompute", "micro_batch", "captions"} <= settings
    assert len({row["model"] for row in RESULT["cases"]}) >= 6
    computed = step_memory.formulas(RESULT)
    for row, memory in zip(RESULT["cases"], computed, strict=True):
        assert memory.peak == pytest.approx(row["measured_bytes"], rel=0.1), row


def test_a_case_is_measured() -> None:
    row = step_memory.measure("test", 4, 16, {"micro_batch": 2})
    memory = step_memory.formula("test", 4, 16, {"micro_batch": 2})
    assert row["changes"] == {"micro_batch": 2}
    assert memory.weights + memory.optimizer < row["measured_bytes"] < 2 * memory.peak
