from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.trainer import timing as module
from benchmarks.trainer.timing import Measurement, RankCounts, summary
from manifests import disk
from train.parallel import process_group
from train.parallel.process_group import Ranks

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
