from __future__ import annotations

from train.model.architecture import MODELS
from train.model.memory import training_flops
from train.sizing.device_fit import own_sheets, published_speeds


def test_a_published_speed_is_below_the_peak_of_its_device() -> None:
    for speed in published_speeds():
        flops = training_flops(MODELS[speed.model], whole=True).sample(77)
        peak = own_sheets()[speed.device].peak_flops("bf16")
        assert peak is not None
        assert 0.05 < speed.samples_per_s * flops / peak < 0.5, speed
