from __future__ import annotations

import pytest

from manifests import disk
from train.config import TrainConfig, configure
from train.sizing.device_fit import (
    computed_flops,
    device_of,
    estimated_speed,
    fit,
    measured_speed,
    sample_flops,
    utilisation,
)


def b32(**changes: object) -> TrainConfig:
    return configure({"preset": "datacomp_small", **changes})


def test_a_base_model_takes_41_gflop_a_sample() -> None:
    assert sample_flops(b32()) / 1e9 == pytest.approx(41.1, abs=0.1)
    assert sample_flops(b32(captions="packed")) < 0.75 * sample_flops(b32())


def test_what_is_computed_twice_counts_a_third_more() -> None:
    once = sample_flops(b32())
    assert computed_flops(b32(), pieces=False) == once
    assert computed_flops(b32(), pieces=True) == pytest.approx(once * 4 / 3)
    assert computed_flops(b32(recompute="full"), pieces=True) == pytest.approx(once * 5 / 3)
    assert computed_flops(b32(recompute="every_2"), pieces=False) == pytest.approx(once * 7 / 6)
    assert computed_flops(b32(recompute="selective"), pieces=False) == once


def test_ranks_add_up_and_the_source_is_told() -> None:
    device = device_of("a100-80gb", utilisation=0.5)
    config = b32(micro_batch="auto")
    speed = estimated_speed(config, 8, device, fit(config, 8, device))
    assert speed.samples_per_s == pytest.approx(8 * 156e12 / sample_flops(config))
    assert speed.source == "50% of the peak of NVIDIA A100 80GB"
    assert speed.hours(int(3600 * speed.samples_per_s)) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "model", "share", "words"),
    [
        ("h100-80gb", "ViT-H-14", 0.249, "published runs of ViT-H-14: NeMo performance page 23.08"),
        ("h100-80gb", "ViT-L-14", 0.249, "published runs of ViT-H-14: NeMo"),
        ("a100-80gb", "ViT-g-14", 0.384, "ViT-g-14, 38% to 39%: NeMo performance page 23.08, NeMo"),
        ("a100-80gb", "test", 0.150, "published runs of ViT-B-32: NeMo"),
        ("l4-24gb", "ViT-L-14", 0.170, "published runs of ViT-L-14 on a100-40gb: open_clip"),
    ],
)
def test_without_a_stated_utilisation_published_runs_give_it(
    name: str, model: str, share: float, words: str
) -> None:
    value, reason = utilisation(b32(model=model), device_of(name))
    assert value == pytest.approx(share, abs=0.002)
    assert words in reason


def test_measured_speed_is_of_runs_with_the_same_settings_and_ranks() -> None:
    config = b32()
    same = {"config": disk.to_plain(config), "world": 2, "samples_per_s": 100.0}
    other = {**same, "config": {**same["config"], "precision": "fp32"}, "samples_per_s": 5.0}
    faster = {**same, "samples_per_s": 300.0}
    speed = measured_speed(config, 2, [same, other, faster])
    assert speed is not None
    assert speed.samples_per_s == 200.0
    assert speed.source == "measured in 2 finished runs"
    assert measured_speed(config, 1, [same]) is None
    assert measured_speed(config, 2, [{"config": {}, "world": 2, "samples_per_s": 1.0}]) is None
