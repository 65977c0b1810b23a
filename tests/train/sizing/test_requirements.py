from __future__ import annotations

import json

import pytest

from manifests import disk
from train.config import configure
from train.sizing.advice import Requirements, advise, requirement_lines, requirements
from train.sizing.device_fit import Speed, device_of


def needs(**changes: object) -> Requirements:
    config = configure({"model": "ViT-H-14", "batch_size": 4096, "warmup": 0, **changes})
    device = device_of("a100-80gb")
    advice = advise(config, 2, device, set(changes))
    speed = Speed(samples_per_s=100.0, source="a test")
    return requirements(advice, 2, device, speed, samples=360_000_000)


def test_time_follows_from_the_speed() -> None:
    made = needs()
    assert made.hours == pytest.approx(1000)
    assert made.device_hours == pytest.approx(2000)
    assert made.parameters == 986_109_441
    assert made.flops_unpruned / 1e9 == pytest.approx(1144.7, abs=0.1)


def test_recomputing_keeps_less_and_lets_more_samples_fit() -> None:
    rows = {each.recompute: each for each in needs().activations}
    kept = [rows[name].bytes_per_sample for name in ("none", "selective", "full")]
    largest = [rows[name].largest_micro_batch for name in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] / 2**20 == pytest.approx(420, abs=1)
    assert largest == sorted(largest)
    micro_batch = needs().advice.fit.micro_batch
    assert micro_batch is not None
    assert micro_batch <= largest[0]


def test_the_lines_have_every_figure_and_the_document_is_json() -> None:
    made = needs()
    text = "\n".join(requirement_lines(made))
    for words in (
        "on 2 x NVIDIA A100 80GB",
        "986,109,441 parameters",
        "1,144.7 where the last blocks compute all tokens",
        "layout dp, precision bf16, recompute none, batch 4,096",
        "speed: 100 samples/s (a test)",
        "41.7 days for 360,000,000 samples: 2,000.0 device-hours",
        "recompute full",
    ):
        assert words in text
    assert json.loads(json.dumps(disk.to_plain(made)))["parallel"] == "dp"
