"""Sizing: devices, what fits, layouts, requirements, speed; the command."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from clipmill.manifests import console, disk
from clipmill.manifests.schema import Blend
from clipmill.study.plan import Hardware, plan_ablation
from clipmill.train.config import configure
from clipmill.train.identity import deciding_settings
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.memory import StepMemory, training_flops
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.sizing import device_fit
from clipmill.train.sizing.advice import advise, parallel_name, requirement_lines, requirements
from clipmill.train.sizing.device_fit import (
    DEVICE_SHARE,
    GIB,
    Device,
    Speed,
    computed_flops,
    device_of,
    estimated_speed,
    fit,
    free_memory,
    measured_speed,
    own_sheets,
    published_speeds,
    refuse_unfit,
    resolve_micro_batch,
    sample_flops,
    sheet_of,
    utilisation,
)
from clipmill.train.trainer.loop import train
from tests.support import commands
from tests.support.ablations import TRAIN, three_arms


def test_a_published_speed_is_below_the_peak_of_its_device():
    for speed in published_speeds():
        flops = training_flops(MODELS[speed.model], whole=True).sample(77)
        peak = own_sheets()[speed.device].peak_flops("bf16")
        assert peak is not None
        assert 0.05 < speed.samples_per_s * flops / peak < 0.5, speed


@pytest.mark.parametrize("key", sorted(own_sheets()))
def test_every_device_has_figures_that_agree(key):
    sheet = own_sheets()[key]
    nominal = float(key.rsplit("-", 1)[1].removesuffix("gb"))
    assert 0.9 * nominal < sheet.memory_gib < nominal
    peaks = [
        sheet.tflops[name] for name in ("fp32", "tf32", "bf16", "fp16") if name in sheet.tflops
    ]
    assert peaks == sorted(peaks), "fewer bits are faster"
    assert sheet_of(sheet.name) is not None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GB200", "gb200-186gb"),
        ("NVIDIA L40S", "l40s-48gb"),
        ("NVIDIA L40", "l40-48gb"),
        ("NVIDIA L4", "l4-24gb"),
        ("NVIDIA A10G", "a10-24gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
    ],
)
def test_the_longest_match_of_the_name_counts(name, key):
    assert sheet_of(name) is own_sheets()[key]


def test_a_gpu_by_name_has_memory_and_a_peak():
    device = device_of("a100-80gb", utilisation=0.5)
    assert (device.kind, device.name) == ("cuda", "NVIDIA A100 80GB")
    assert device.memory == int(79.1 * GIB)
    assert device.budget == int(0.9 * device.memory)
    assert device.peak_flops("bf16") == 312e12
    assert device.peak_flops("fp32") == 19.5e12
    assert device.is_called("NVIDIA A100-SXM4-80GB")
    assert not device.is_called("NVIDIA A100-SXM4-40GB")


def test_a_processor_is_shared_by_ranks(monkeypatch):
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: 8 * GIB)
    monkeypatch.setattr(device_fit, "usable_cores", lambda: 4)
    device = device_of("cpu", ranks=2)
    assert (device.kind, device.memory, device.cores) == ("cpu", 4 * GIB, 2)
    assert device.peak_flops("fp32") == 2 * 80e9


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 3), ("200000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("", 3)],
)
def test_cores_are_those_of_the_process_and_of_its_cgroup(quota, cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(device_fit, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert device_fit.usable_cores() == cores


@pytest.mark.parametrize(
    ("name", "utilisation", "message"),
    [
        ("a100-80", None, "no device 'a100-80'; did you mean 'a100-80gb'"),
        ("a100-80gb", 1.5, r"utilisation is 1.5; it must lie in \(0, 1\]"),
    ],
)
def test_what_is_no_device_is_refused(name, utilisation, message):
    with pytest.raises(ValueError, match=message):
        device_of(name, utilisation)


def test_free_host_memory_is_what_the_cgroup_leaves(monkeypatch):
    limits = {"memory.max": 3 * GIB, "memory.current": 2 * GIB}
    monkeypatch.setattr(device_fit, "_available", lambda: 10 * GIB)
    monkeypatch.setattr(device_fit, "_cached", lambda: GIB // 2)
    monkeypatch.setattr(device_fit, "_read_number", lambda path: limits[Path(path).name])
    assert device_fit.free_host_memory() == 3 * GIB // 2
    monkeypatch.setattr(device_fit, "_read_number", lambda path: None)
    assert device_fit.free_host_memory() == 10 * GIB


def test_runs_side_by_side_share_a_device(monkeypatch):
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: 12 * GIB)
    cpu = torch.device("cpu")
    assert free_memory(cpu, ranks=2) == 6 * GIB
    monkeypatch.setenv(DEVICE_SHARE, "3")
    assert free_memory(cpu, ranks=2) == 2 * GIB


# --------------------------------------------------------------------------------------------------


A100 = device_of("a100-80gb")
MIB = 2**20


def one_mebibyte_a_sample(model, shape):
    parts = dict.fromkeys((part.name for part in dataclasses.fields(StepMemory)), 0)
    return StepMemory(**{**parts, "peak": shape.piece * MIB})


def host(memory):
    return Device(name="host", kind="cpu", memory=int(memory), utilisation=1.0)


def b32(**changes):
    return configure({"preset": "datacomp_small", **changes})


def test_a_batch_of_4096_takes_over_100_gib_and_is_refused_with_what_would_fit():
    with pytest.raises(ValueError, match="4,096 samples a rank at once") as refused:
        refuse_unfit(b32(), 1, A100)
    message = str(refused.value)
    needed = float(re.search(r"needs ([\d.]+) GiB", message)[1])
    assert 116 < needed < 160
    assert "it fits with micro_batch: auto" in message
    assert "ranks: 2" in message


def test_the_largest_friendly_micro_batch_fits_and_the_next_divisor_does_not():
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
def test_micro_batches_cut_evenly(samples, largest, friendly):
    assert device_fit.friendly_micro_batch(samples, largest) == friendly


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [({}, 1), ({"model": "ViT-bigG-14", "micro_batch": "auto"}, 2), ({"model": "ViT-e-14"}, 1)],
)
def test_every_remedy_fits(changes, ranks):
    config = b32(**changes)
    ways = device_fit.remedies(config, ranks, A100)
    assert ways[0].startswith("it fits with ")
    for way in ways:
        words = way.removeprefix("it fits with ").removeprefix("or with ")
        settings = dict(pair.split(": ") for pair in re.split(", | and ", words))
        world = int(settings.pop("ranks", ranks))
        assert fit(b32(**{**changes, "micro_batch": "auto", **settings}), world, A100).fits, way


def test_images_that_are_read_ahead_count_on_a_processor():
    config = configure({**TRAIN, "batch_size": 64})
    on_gpu = fit(config, 1, A100)
    on_host = fit(config, 1, host(GIB))
    assert on_gpu.needed == on_gpu.memory.peak
    assert on_host.needed == on_host.memory.peak + 6 * 64 * 3 * 32 * 32


# --- when a run starts ----------------------------------------------------------------------------


def alone():
    return Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def test_auto_is_resolved_by_what_is_free(monkeypatch):
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


def test_the_record_has_the_number_and_the_identity_has_none(tiny_pool, tmp_path, monkeypatch):
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


# --------------------------------------------------------------------------------------------------


def test_a_base_model_takes_41_gflop_a_sample():
    assert sample_flops(b32()) / 1e9 == pytest.approx(41.1, abs=0.1)
    assert sample_flops(b32(captions="packed")) < 0.75 * sample_flops(b32())


def test_what_is_computed_twice_counts_a_third_more():
    once = sample_flops(b32())
    assert computed_flops(b32(), pieces=False) == once
    assert computed_flops(b32(), pieces=True) == pytest.approx(once * 4 / 3)
    assert computed_flops(b32(recompute="full"), pieces=True) == pytest.approx(once * 5 / 3)
    assert computed_flops(b32(recompute="every_2"), pieces=False) == pytest.approx(once * 7 / 6)
    assert computed_flops(b32(recompute="selective"), pieces=False) == once


def test_ranks_add_up_and_the_source_is_told():
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
def test_without_a_stated_utilisation_published_runs_give_it(name, model, share, words):
    value, reason = utilisation(b32(model=model), device_of(name))
    assert value == pytest.approx(share, abs=0.002)
    assert words in reason


def test_measured_speed_is_of_runs_with_the_same_settings_and_ranks():
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


# --------------------------------------------------------------------------------------------------


def made(model, batch=1024, **changes):
    return configure({"model": model, "batch_size": batch, "warmup": 0, **changes})


def test_what_fits_as_it_is_stays_simple():
    advice = advise(made("ViT-B-32"), 8, device_of("a100-80gb"))
    assert (parallel_name(advice.config), advice.config.recompute, advice.config.micro_batch) == (
        "dp",
        "none",
        None,
    )
    assert advice.config.precision == "bf16"
    assert any("16.0 x that of fp32" in reason for reason in advice.reasons)


def test_a_model_that_no_single_device_holds_is_sharded():
    device = device_of("a100-40gb")
    advice = advise(made("ViT-bigG-14", 64), 8, device)
    assert advice.fit.fits
    assert parallel_name(advice.config).startswith("fsdp")
    alone = dataclasses.replace(advice.config, dp_shard=1, micro_batch="auto")
    assert not fit(alone, 8, device).fits
    assert "with dp a rank would need" in " ".join(advice.reasons)


def test_nothing_that_fits_computes_less():
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
def test_every_advice_is_a_run_that_can_be(model, ranks):
    batch = 8192 if ranks & (ranks - 1) == 0 else 8064
    advice = advise(made(model, batch), ranks, device_of("l4-24gb"))
    config = advice.config
    assert ranks % (config.tp * config.dp_shard) == 0
    assert config.batch_size % (ranks // config.tp) == 0
    if advice.fit.fits:
        again = fit(config, ranks, device_of("l4-24gb"))
        assert again == advice.fit


def test_stated_settings_stay():
    config = made("ViT-H-14", recompute="full", precision="fp32", micro_batch=7)
    stated = {"recompute", "precision", "micro_batch"}
    advice = advise(config, 2, device_of("h100-80gb"), stated)
    assert (advice.config.recompute, advice.config.precision) == ("full", "fp32")
    assert advice.fit.micro_batch == 7
    assert not [reason for reason in advice.reasons if reason.startswith("bf16")]


@pytest.mark.parametrize(("device", "precision"), [("v100-32gb", "fp16"), ("mi300x-192gb", "bf16")])
def test_the_precision_is_one_that_the_device_has(device, precision):
    assert advise(made("ViT-B-32"), 1, device_of(device)).config.precision == precision


def test_a_processor_takes_fp32_and_no_mesh():
    host = Device(name="cpu", kind="cpu", memory=2**33)
    advice = advise(made("test", 64), 4, host)
    assert (advice.config.precision, parallel_name(advice.config)) == ("fp32", "dp")


# --------------------------------------------------------------------------------------------------


def needs(**changes):
    config = configure({"model": "ViT-H-14", "batch_size": 4096, "warmup": 0, **changes})
    device = device_of("a100-80gb")
    advice = advise(config, 2, device, set(changes))
    speed = Speed(samples_per_s=100.0, source="a test")
    return requirements(advice, 2, device, speed, samples=360_000_000)


def test_recomputing_keeps_less_and_lets_more_samples_fit():
    rows = {each.recompute: each for each in needs().activations}
    kept = [rows[name].bytes_per_sample for name in ("none", "selective", "full")]
    largest = [rows[name].largest_micro_batch for name in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] / 2**20 == pytest.approx(420, abs=1)
    assert largest == sorted(largest)
    micro_batch = needs().advice.fit.micro_batch
    assert micro_batch is not None
    assert micro_batch <= largest[0]


def test_the_lines_have_every_figure_and_the_document_is_json():
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


# --------------------------------------------------------------------------------------------------


SHEETS = own_sheets()


def sized(capsys, *words, status=0):
    assert commands.size([*words, "--json"]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return document


def test_a_model_on_a_device_gets_its_memory_and_a_micro_batch(capsys):
    words = ["--model", "ViT-H-14", "--device", "a100-80gb"]
    assert commands.size([*words, "--json"]) == 0
    *lines, document = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "ViT-H-14, 4,096 samples a rank in micro-batches of 128, on NVIDIA A100 80GB"
    values = json.loads(document)
    fit = values["advice"]["fit"]
    assert fit["micro_batch"] == 128
    assert fit["memory"]["weights"] == 4 * 986_109_441
    assert fit["needed"] < 0.9 * 79.1 * 2**30
    assert any("published runs of ViT-H-14" in line for line in lines)


def test_a_stated_layout_and_batch_are_kept(capsys):
    words = ["--model", "ViT-L-14", "--device", "h100-80gb", "--ranks", "16", "--batch", "32768"]
    values = sized(capsys, *words, "--samples", "1000000", "--set", "tp=2", "dp_shard=4")
    assert values["parallel"] == "tp2+fsdp4"
    assert values["advice"]["config"]["batch_size"] == 32_768
    assert values["advice"]["fit"]["samples"] == 4096
    assert values["samples"] == 1_000_000
    free = sized(capsys, *words)
    assert free["parallel"] == "dp"


def test_what_does_not_fit_ends_with_status_3_and_what_would(capsys):
    words = ["--preset", "datacomp_small", "--device", "a100-80gb"]
    words += ["--set", "micro_batch=none", "recompute=none", "dp_shard=1", "tp=1"]
    assert commands.size(words) == 3
    assert "it fits with micro_batch: auto" in capsys.readouterr().out


def test_the_commands_of_the_page_run(capsys):
    page = Path(console.ROOT, "docs/operations.md").read_text()
    block = page.split("```bash\n")[1].split("```")[0]
    for command in block.splitlines():
        assert command.startswith("clipmill size ")
        assert commands.size(shlex.split(command)[2:]) == 0, command
        assert "samples/s" in capsys.readouterr().out


# --- one estimate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [79.1, 24.0, 4.0])
def test_sizing_the_plan_and_a_run_choose_the_same_micro_batch(memory, capsys, monkeypatch):
    sheet = dataclasses.replace(own_sheets()["a100-80gb"], memory_gib=memory)
    monkeypatch.setattr(device_fit, "own_sheets", lambda: {**SHEETS, "a100-80gb": sheet})
    train = {"preset": "datacomp_small", "micro_batch": "auto"}
    words = ["--preset", "datacomp_small", "--set", "recompute=none", "dp_shard=1", "tp=1"]
    values = sized(capsys, *words, "--device", "a100-80gb")["advice"]["fit"]
    plan = plan_ablation(three_arms(train=train), "/out", Hardware(name="a100-80gb"))
    assert disk.to_plain(plan.fit) == values
    # A run asks for what is free on its own device, a GPU by its kind.
    monkeypatch.setattr(device_fit, "free_memory", lambda device, ranks: int(memory * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    gpu = Ranks(rank=0, world=1, device=torch.device("cuda"), owns_group=False)
    assert resolve_micro_batch(configure(train), gpu).micro_batch == values["micro_batch"]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "ViT-H"], "there is no model 'ViT-H'"),
        (["--device", "a100"], "there is no device 'a100'"),
        (["--set", "lr"], "--set 'lr' is not KEY=VALUE"),
        (["--set", "device=cpu"], "device is a setting that --device decides"),
        (["--batch", "64", "--set", "batch_size=32"], "batch_size is set twice"),
        (["--set", "vision_heads=3"], "vision_heads"),
        (["--set", "model.vision_layers=-1"], "vision_layers"),
        (["--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--ranks", "0"], "--ranks is 0; it must be at least 1"),
        (["--ranks", "1000001"], "at most 1,000,000"),
        (["--ranks", "3", "--set", "dp_shard=2"], "does not divide 3 ranks"),
        (["--ranks", "3"], "3 ranks cannot share a batch of 4096 evenly"),
        (["--ranks", "8", "--set", "tp=8"], "tp 8 does not divide vision_heads 12"),
        (["--device", "v100-32gb", "--set", "precision=bf16"], "no products of; set it to one of"),
        (["--utilisation", "1.5"], "utilisation is 1.5"),
        (["--samples", "0"], "--samples is 0"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys):
    device = [] if "--device" in words else ["--device", "a100-80gb"]
    assert commands.size([*device, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_processor_without_room_says_so(monkeypatch, capsys):
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: GIB // 4)
    values = sized(capsys, "--device", "cpu", "--model", "ViT-B-32", "--batch", "64", status=3)
    assert values["remedies"]
    assert isinstance(device_fit.device_of("cpu"), Device)
