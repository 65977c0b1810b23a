from __future__ import annotations

import dataclasses

import pytest

from train.config import TrainConfig, configure
from train.sizing.advice import advise, parallel_name
from train.sizing.device_fit import Device, computed_flops, device_of, fit, sample_flops


def made(model: str, batch: int = 1024, **changes: object) -> TrainConfig:
    return configure({"model": model, "batch_size": batch, "warmup": 0, **changes})


def test_what_fits_as_it_is_stays_simple() -> None:
    advice = advise(made("ViT-B-32"), 8, device_of("a100-80gb"))
    assert (parallel_name(advice.config), advice.config.recompute, advice.config.micro_batch) == (
        "dp",
        "none",
        None,
    )
    assert advice.config.precision == "bf16"
    assert any("16.0 x that of fp32" in reason for reason in advice.reasons)


def test_a_model_that_no_single_device_holds_is_sharded() -> None:
    device = device_of("a100-40gb")
    advice = advise(made("ViT-bigG-14", 64), 8, device)
    assert advice.fit.fits
    assert parallel_name(advice.config).startswith("fsdp")
    alone = dataclasses.replace(advice.config, dp_shard=1, micro_batch="auto")
    assert not fit(alone, 8, device).fits
    assert "with dp a rank would need" in " ".join(advice.reasons)


def test_nothing_that_fits_computes_less() -> None:
    device, config = device_of("a100-80gb"), made("ViT-L-14", 16_384)
    advice = advise(config, 8, device)
    pieces = advice.fit.micro_batch is not None
    chosen = computed_flops(advice.config, pieces=pieces)
    assert chosen > sample_flops(advice.config), "the case needs something computed twice"
    for recompute in ("none", "selective", "full"):
        for dp_shard in (1, 2, 4, 8):
            other = dataclasses.replace(
                advice.config, recompute=recompute, dp_shard=dp_shard, micro_batch="auto"
            )
            result = fit(other, 8, device)
            if result.fits:
                pieces = result.micro_batch is not None
                assert chosen <= computed_flops(other, pieces=pieces) * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 96, 1024])
@pytest.mark.parametrize("model", ["test", "ViT-L-14", "ViT-e-14"])
def test_every_advice_is_a_run_that_can_be(model: str, ranks: int) -> None:
    batch = 8192 if ranks & (ranks - 1) == 0 else 8064
    advice = advise(made(model, batch), ranks, device_of("l4-24gb"))
    config = advice.config
    assert ranks % (config.tp * config.dp_shard) == 0
    assert config.batch_size % (ranks // config.tp) == 0
    if advice.fit.fits:
        again = fit(config, ranks, device_of("l4-24gb"))
        assert again == advice.fit


def test_stated_settings_stay() -> None:
    config = made("ViT-H-14", recompute="full", precision="fp32", micro_batch=7)
    stated = {"recompute", "precision", "micro_batch"}
    advice = advise(config, 2, device_of("h100-80gb"), stated)
    assert (advice.config.recompute, advice.config.precision) == ("full", "fp32")
    assert advice.fit.micro_batch == 7
    assert not [reason for reason in advice.reasons if reason.startswith("bf16")]


@pytest.mark.parametrize(("device", "precision"), [("v100-32gb", "fp16"), ("mi300x-192gb", "bf16")])
def test_the_precision_is_one_that_the_device_has(device: str, precision: str) -> None:
    assert advise(made("ViT-B-32"), 1, device_of(device)).config.precision == precision


def test_a_processor_takes_fp32_and_no_mesh() -> None:
    host = Device(name="cpu", kind="cpu", memory=2**33)
    advice = advise(made("test", 64), 4, host)
    assert (advice.config.precision, parallel_name(advice.config)) == ("fp32", "dp")


def test_a_layout_in_a_word() -> None:
    assert parallel_name(made("test", tp=2)) == "tp2"
    assert parallel_name(made("test", dp_shard=4, tp=2)) == "tp2+fsdp4"
    with pytest.raises(ValueError, match="does not divide"):
        advise(made("test", tp=2), 3, device_of("l4-24gb"), {"tp", "dp_shard"})
