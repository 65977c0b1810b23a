from __future__ import annotations

from typing import Any

import pytest

from benchmarks.trainer.comparison import (
    compare_reports,
    comparison_document,
    comparison_lines,
)
from benchmarks.trainer.report_form import Cell, Machine, Report
from tests.benchmarks.trainer.test_scaling import cell


def report(device: str, *cells: Cell, **changes: Any) -> Report:
    machine = Machine(
        device=device,
        kind="cuda",
        gpus=8,
        gpu_memory_bytes=80 * 2**30,
        processor="x",
        cores=16,
        memory_bytes=None,
        system="Linux x86_64",
        versions={"torch": "2.0"},
    )
    values: dict[str, Any] = {"mode": "train", "date": "2026-01-31", "command": "c"}
    values |= {"commit": "0123456789abcdef", "machine": machine, "options": {}, "ended": True}
    return Report(**{**values, "cells": cells, **changes})


def published(model: str, whole: int, batch: int, rate: float, dtype: str = "bf16") -> Cell:
    """A cell of a published table: 32 GPUs, global batches a second."""
    figures = {"global_batches_per_s": rate, "samples_per_s": rate * whole}
    return cell(
        32, None, model=model, global_batch=whole, batch=batch, dtype=dtype, state="measured",
        reason=None, figures=figures, rates=(rate * whole,), scaling="strong",
    )  # fmt: skip


def test_the_published_table_of_two_devices() -> None:
    """NVIDIA's A100 against H100: 2.12 and 5.26 global batches/s of B/32 are 2.5x."""
    a100 = report(
        "A100",
        published("ViT-B-32", 16000, 500, 2.12),
        published("ViT-H-14", 3584, 112, 0.88),
        published("ViT-g-14", 2560, 80, 0.86),
    )
    h100 = report(
        "H100",
        published("ViT-g-14", 2560, 80, 2.25),
        published("ViT-B-32", 16000, 500, 5.26),
        published("ViT-H-14", 3584, 112, 1.92),
    )
    result = compare_reports(["a.json", "h.json"], [a100, h100])
    rows = {key[0]: ratios[0] for key, _, ratios in result.rows("global_batches_per_s")}
    assert rows == {
        "ViT-B-32": pytest.approx(2.5, abs=0.05),
        "ViT-H-14": pytest.approx(2.2, abs=0.05),
        "ViT-g-14": pytest.approx(2.6, abs=0.05),
    }
    lines = comparison_lines(result)
    assert lines[0] == "A: a.json"
    assert "8 x A100, 16 cores, bf16, torch 2.0, commit 0123456789ab" in lines[1]
    (row,) = [line for line in lines if line.startswith("ViT-B-32") and "2.120" in line]
    assert row.split()[-6:] == ["32", "500", "16000", "2.120", "5.260", "2.48x"]
    document = comparison_document(result)
    assert document["columns"][1]["device"] == "H100"
    assert document["figures"]["samples_per_s"][0]["means"] == [2.12 * 16000, 5.26 * 16000]
