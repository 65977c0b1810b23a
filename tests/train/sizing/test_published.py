from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.model.architecture import MODELS
from train.model.memory import training_flops
from train.sizing.device_fit import own_sheets, published_speeds, read_speeds


def test_a_published_speed_is_below_the_peak_of_its_device() -> None:
    for speed in published_speeds():
        flops = training_flops(MODELS[speed.model], whole=True).sample(77)
        peak = own_sheets()[speed.device].peak_flops("bf16")
        assert peak is not None
        assert 0.05 < speed.samples_per_s * flops / peak < 0.5, speed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_s": -1}, "32 ranks with -1 samples/s are no run"),
        ({"ranks": "8"}, r"speeds\[0\].ranks is '8'"),
    ],
)
def test_a_wrong_speed_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    speed = {"model": "m", "device": "d", "ranks": 32, "samples_per_s": 1, "source": "s"}
    path = tmp_path / "speeds.json"
    path.write_text(json.dumps({"speeds": [{**speed, **changes}]}))
    with pytest.raises(ValueError, match=message):
        read_speeds(path)
