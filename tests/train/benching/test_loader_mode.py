from __future__ import annotations

import argparse

import pytest

from manifests.schema import Blend
from train.benching import MODES, loader_mode


def arguments(**changes: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    loader_mode.add_options(parser)
    args = parser.parse_args([])
    values = {"model": "test", "batch_size": 8, "set": [], "threads": 0, "iterations": 2}
    for key, value in {**values, **changes}.items():
        setattr(args, key, value)
    return args


def test_the_settings_have_room_for_every_batch() -> None:
    config = loader_mode.settings(arguments(batch_size=96))
    assert config.steps == 2 + 2 + loader_mode.AHEAD
    assert config.batch_size % config.lanes == 0
    with pytest.raises(ValueError, match="batch_size is 0"):
        loader_mode.settings(arguments(batch_size=0))
    with pytest.raises(ValueError, match="warmup is 0"):
        loader_mode.settings(arguments(warmup=0))


def test_damaged_samples_are_reported(tiny_pool: str) -> None:
    blend = Blend(name="b", pools={"p": tiny_pool}, views={"p/all": 1.0})
    result = loader_mode.measure(blend, arguments())
    assert result["damaged"] == 0
    assert not any("damaged" in line for line in loader_mode.lines(result))
    assert loader_mode.lines({**result, "damaged": 3})[-1] == "3 damaged samples were replaced"
    assert {"loader": loader_mode} == MODES
