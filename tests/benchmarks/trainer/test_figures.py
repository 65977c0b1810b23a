"""The figures of `clipmill bench`: reports as files, the tables of one and of two, a repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clipmill.bench import timing as module
from clipmill.bench.comparison import (
    compare_reports,
    comparison_document,
    comparison_lines,
)
from clipmill.bench.report_form import (
    Cell,
    Layout,
    Machine,
    Report,
    parse_layout,
    read_report,
)
from clipmill.bench.tables import scaling_lines, scaling_series
from clipmill.bench.timing import Measurement, RankCounts, summary
from clipmill.manifests import disk
from clipmill.train.parallel import process_group
from clipmill.train.parallel.process_group import Ranks


def cell(ranks: int, rate: float | None, **changes: Any) -> Cell:
    values: dict[str, Any] = {"model": "test", "dtype": "fp32", "ranks": ranks, "batch": 4}
    values |= {"global_batch": 4 * ranks, "data": "synthetic", "scaling": "weak"}
    values |= {"figures": {"samples_per_s": rate, "mfu": 0.5, "watts": 300.0}}
    values["figures"]["device_utilisation"] = 0.9
    if rate is None:
        values |= {"state": "failed", "reason": "no memory", "figures": {}}
    return Cell(**{**values, **changes})


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "is no report of clipmill bench"),
        (lambda text: '{"steps": 3}', "is no report of clipmill bench"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "reads version 1"),
        (lambda text: text.replace('"ranks": 2', '"ranks": "two"'), "it must be a whole number"),
        (lambda text: text.replace('"measured"', '"perhaps"'), "state is 'perhaps'"),
        (lambda text: text.replace("2.0", "NaN"), "figure samples_per_s is nan"),
        (lambda text: text.replace('"model": "test",', ""), "no value for 'model'"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "report.json"
    path.write_text(
        change(json.dumps(disk.to_plain(report("a processor", cell(2, 2.0))), sort_keys=True))
    )
    with pytest.raises(ValueError, match=r"report\.json") as error:
        read_report(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layout_is_read_as_it_is_written() -> None:
    assert parse_layout("tp2+fsdp4") == Layout(name="tp2+fsdp4", dp_shard=4, tp=2)
    assert parse_layout("dp").shards(8) == 1
    assert parse_layout("fsdp").shards(8) == 8
    assert parse_layout("fsdp").tp == 1
    for text in ("tp", "tp1", "fsdp2+fsdp4", ""):
        with pytest.raises(ValueError, match="it must be dp, fsdp, fsdpN"):
            parse_layout(text)
    with pytest.raises(ValueError, match="dp stands alone"):
        parse_layout("dp+tp2")


def test_speedup_and_the_perfect_line_are_of_the_fewest_ranks() -> None:
    """The A100 table of a published CLIP g/14: 559 samples/s on 1 node, 8,633 on 16."""
    rates = {1: 559.0, 2: 1115.0, 4: 2190.0, 8: 4407.0, 16: 8633.0}
    cells = [cell(ranks, rate) for ranks, rate in rates.items()]
    (series,) = scaling_series([*reversed(cells), cell(32, None)])
    assert [c.ranks for c in series.cells] == [1, 2, 4, 8, 16]
    assert series.perfect(cells[4]) == 559 * 16
    assert series.speedup(cells[4]) == pytest.approx(15.44, abs=0.01)
    lines = scaling_lines(cells)
    assert lines[1] == "weak scaling, test, fp32, dp, synthetic, 4 samples a rank"
    assert lines[-1].split() == ["16", "4", "64", "8,633", "8,944", "15.44x", "96.5%"]


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


POWER = {"device_utilisation": 0.5, "watts": 300.0, "joules": 600.0}


def counts(**changes: Any) -> RankCounts:
    values: dict[str, Any] = {"operations": 4e12, "tokens": 400, "waited": 0.5, "cpu_s": 1.0}
    return RankCounts(**{**values, "walls": [1.0, 1.0], "telemetry": POWER, **changes})


def summed(
    others: list[RankCounts], monkeypatch: pytest.MonkeyPatch, tp: int = 1, trains: bool = True
) -> Measurement:
    """The figures of four steps of 8 samples on these ranks, the first of which is this one."""
    monkeypatch.setattr(module, "peak_memory", lambda device: 7)
    monkeypatch.setattr(module, "peak_flops", lambda name, precision: 8e12)
    plain = [disk.to_plain(own) for own in others]
    monkeypatch.setattr(process_group, "all_gather_json", lambda value, ranks: plain)
    ranks = Ranks(rank=0, world=len(others), device=torch.device("cpu"), owns_group=False, tp=tp)
    return summary(others[0], [0.5] * 4, ranks, global_batch=8, precision="bf16", trains=trains)


def test_a_repeat_takes_as_long_as_its_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = counts(walls=[1.0, 3.0], waited=2.0, cpu_s=3.0, telemetry={**POWER, "watts": 100.0})
    measured = summed([counts(), slow], monkeypatch)
    figures = measured.figures
    assert measured.rates == (16.0, pytest.approx(16 / 3))
    assert figures["samples_per_s"] == 32 / 4
    assert figures["samples_per_s_per_gpu"] == 4
    assert figures["samples_per_cpu_s"] == 8
    assert figures["text_tokens_per_s"] == 200
    assert figures["model_tflops"] == 2
    assert figures["mfu"] == 1 / 8
    assert figures["wait_share"] == 0.5
    assert figures["watts"] == 400
    assert figures["samples_per_joule"] == 32 / 1200
    assert figures["step_ms_p50"] == 500
    assert figures["runs_per_hour_micro"] == pytest.approx(3600 * 8 / 12_800)


def test_ranks_of_a_tensor_parallel_group_read_the_same_captions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = summed([counts(), counts()], monkeypatch, tp=2, trains=False).figures
    assert figures["text_tokens_per_s"] == 200
    assert "runs_per_hour_micro" not in figures
