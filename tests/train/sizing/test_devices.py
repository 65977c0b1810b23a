"""Devices: data sheets, published speeds, and what is free on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from train.model.architecture import MODELS
from train.model.memory import training_flops
from train.sizing import device_fit
from train.sizing.device_fit import (
    DEVICE_SHARE,
    GIB,
    device_of,
    free_memory,
    own_sheets,
    published_speeds,
    sheet_of,
)


def test_a_published_speed_is_below_the_peak_of_its_device() -> None:
    for speed in published_speeds():
        flops = training_flops(MODELS[speed.model], whole=True).sample(77)
        peak = own_sheets()[speed.device].peak_flops("bf16")
        assert peak is not None
        assert 0.05 < speed.samples_per_s * flops / peak < 0.5, speed


@pytest.mark.parametrize("key", sorted(own_sheets()))
def test_every_device_has_figures_that_agree(key: str) -> None:
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
def test_the_longest_match_of_the_name_counts(name: str, key: str) -> None:
    assert sheet_of(name) is own_sheets()[key]


def test_a_gpu_by_name_has_memory_and_a_peak() -> None:
    device = device_of("a100-80gb", utilisation=0.5)
    assert (device.kind, device.name) == ("cuda", "NVIDIA A100 80GB")
    assert device.memory == int(79.1 * GIB)
    assert device.budget == int(0.9 * device.memory)
    assert device.peak_flops("bf16") == 312e12
    assert device.peak_flops("fp32") == 19.5e12
    assert device.is_called("NVIDIA A100-SXM4-80GB")
    assert not device.is_called("NVIDIA A100-SXM4-40GB")


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="precision is bf16, which NVIDIA V100 32GB has no"):
        device_of("v100-32gb").peak_flops("bf16")


def test_a_processor_is_shared_by_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: 8 * GIB)
    monkeypatch.setattr(device_fit, "usable_cores", lambda: 4)
    device = device_of("cpu", ranks=2)
    assert (device.kind, device.memory, device.cores) == ("cpu", 4 * GIB, 2)
    assert device.peak_flops("fp32") == 2 * 80e9


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 3), ("200000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("", 3)],
)
def test_cores_are_those_of_the_process_and_of_its_cgroup(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_what_is_no_device_is_refused(name: str, utilisation: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_of(name, utilisation)


def test_free_host_memory_is_what_the_cgroup_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"memory.max": 3 * GIB, "memory.current": 2 * GIB}
    monkeypatch.setattr(device_fit, "_available", lambda: 10 * GIB)
    monkeypatch.setattr(device_fit, "_cached", lambda: GIB // 2)
    monkeypatch.setattr(device_fit, "_read_number", lambda path: limits[Path(path).name])
    assert device_fit.free_host_memory() == 3 * GIB // 2
    monkeypatch.setattr(device_fit, "_read_number", lambda path: None)
    assert device_fit.free_host_memory() == 10 * GIB


def test_runs_side_by_side_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_fit, "free_host_memory", lambda: 12 * GIB)
    cpu = torch.device("cpu")
    assert free_memory(cpu, ranks=2) == 6 * GIB
    monkeypatch.setenv(DEVICE_SHARE, "3")
    assert free_memory(cpu, ranks=2) == 2 * GIB
