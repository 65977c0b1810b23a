from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from manifests import disk
from manifests.schema import Blend
from tests.support.ablations import TRAIN
from train.config import TrainConfig, configure
from train.identity import deciding_settings
from train.model.architecture import ModelConfig
from train.model.memory import StepMemory, StepShape
from train.parallel.process_group import Ranks
from train.sizing import device_fit
from train.sizing.device_fit import (
    GIB,
    Device,
    device_of,
    fit,
    refuse_unfit,
    resolve_micro_batch,
    step_shape,
)
from train.trainer.loop import train

A100 = device_of("a100-80gb")
MIB = 2**20


def one_mebibyte_a_sample(model: ModelConfig, shape: StepShape) -> StepMemory:
    parts = dict.fromkeys((part.name for part in dataclasses.fields(StepMemory)), 0)
    return StepMemory(**{**parts, "peak": shape.piece * MIB})


def host(memory: float) -> Device:
    return Device(name="host", kind="cpu", memory=int(memory), utilisation=1.0)


def b32(**changes: object) -> TrainConfig:
    return configure({"preset": "datacomp_small", **changes})


def test_a_batch_of_4096_takes_over_100_gib_and_is_refused_with_what_would_fit() -> None:
    with pytest.raises(ValueError, match="4,096 samples a rank at once") as refused:
        refuse_unfit(b32(), 1, A100)
    message = str(refused.value)
    needed = float(re.search(r"needs ([\d.]+) GiB", message)[1])  # type: ignore[index]
    assert 116 < needed < 160
    assert "it fits with micro_batch: auto" in message
    assert "ranks: 2" in message


def test_the_largest_friendly_micro_batch_fits_and_the_next_divisor_does_not() -> None:
    result = fit(b32(micro_batch="auto"), 1, A100)
    assert result.fits
    assert result.micro_batch == 2048
    assert not fit(b32(micro_batch=4096), 1, A100).fits
    assert fit(b32(micro_batch="auto"), 8, A100).micro_batch is None


@pytest.mark.parametrize(
    ("samples", "largest", "friendly"),
    [
        (4096, 2100, 2048),
        (4096, 4095, 2048),
        (1000, 499, 250),
        (1009, 500, 496),
        (10, 3, 2),
        (7, 3, 3),
    ],
)
def test_micro_batches_cut_evenly(samples: int, largest: int, friendly: int) -> None:
    assert device_fit.friendly_micro_batch(samples, largest) == friendly


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 1),
        ({"model": "ViT-bigG-14", "micro_batch": "auto"}, 2),
        ({"model": "ViT-e-14"}, 1),
    ],
)
def test_every_remedy_fits(changes: dict[str, object], ranks: int) -> None:
    config = b32(**changes)
    ways = device_fit.remedies(config, ranks, A100)
    assert ways[0].startswith("it fits with ")
    for way in ways:
        words = way.removeprefix("it fits with ").removeprefix("or with ")
        settings = dict(pair.split(": ") for pair in re.split(", | and ", words))
        world = int(settings.pop("ranks", ranks))
        assert fit(b32(**{**changes, "micro_batch": "auto", **settings}), world, A100).fits, way


def test_a_layout_that_the_ranks_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide 3 ranks"):
        step_shape(b32(dp_shard=2), 3, "cuda")


def test_images_that_are_read_ahead_count_on_a_processor() -> None:
    config = configure({**TRAIN, "batch_size": 64})
    on_gpu = fit(config, 1, A100)
    on_host = fit(config, 1, host(GIB))
    assert on_gpu.needed == on_gpu.memory.peak
    assert on_host.needed == on_host.memory.peak + 6 * 64 * 3 * 32 * 32


# --- when a run starts ----------------------------------------------------------------------------


def alone() -> Ranks:
    return Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def test_auto_is_resolved_by_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure({"preset": "micro", "micro_batch": "auto"})
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: 8 * GIB)
    assert resolve_micro_batch(config, alone()).micro_batch is None
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: 199 * MIB)
    micro_batch = resolve_micro_batch(config, alone()).micro_batch
    assert isinstance(micro_batch, int)
    assert 128 % micro_batch == 0
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: 20 * MIB)
    with pytest.raises(ValueError, match=r"in micro-batches of 1 needs .* cpu \(what is free"):
        resolve_micro_batch(config, alone())
    fixed = dataclasses.replace(config, micro_batch=7)
    assert resolve_micro_batch(fixed, alone()) is fixed


def test_the_record_has_the_number_and_the_identity_has_none(
    tiny_pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = Blend(name="b", pools={"web": tiny_pool}, views={"web/all": 1.0})
    config = configure({**TRAIN, "micro_batch": "auto"})
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: 10 * MIB)
    monkeypatch.setattr(device_fit, "step_memory", one_mebibyte_a_sample)
    record = train(blend, config, str(tmp_path / "run"))
    assert record.config["micro_batch"] == 8
    assert "micro_batch" not in record.identity["config"]
    whole = train(blend, configure(TRAIN), str(tmp_path / "whole"))
    assert whole.identity == record.identity
    assert deciding_settings(config) == deciding_settings(configure(TRAIN))
    again = train(blend, config, str(tmp_path / "run"))
    assert disk.to_plain(again) == disk.to_plain(record), "it is finished"
