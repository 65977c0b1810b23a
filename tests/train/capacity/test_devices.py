from __future__ import annotations

from pathlib import Path

import pytest
import torch

from train.capacity import DEVICE_SHARE, GIB, device_of, devices, free_memory


def test_a_gpu_by_name_has_memory_and_a_share_of_its_peak() -> None:
    device = device_of("a100-80gb", utilisation=0.5)
    assert (device.kind, device.name) == ("cuda", "NVIDIA A100")
    assert device.memory == int(79.1 * GIB)
    assert device.budget == int(0.9 * device.memory)
    assert device.flops_per_s("bf16") == 156e12
    assert device.flops_per_s("fp32") == 0.5 * 19.5e12


@pytest.mark.parametrize("name", sorted(devices.GPUS))
def test_every_named_gpu_has_a_peak(name: str) -> None:
    assert device_of(name).flops_per_s("bf16") > 1e13


def test_a_processor_is_shared_by_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_host_memory", lambda: 8 * GIB)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    device = device_of("cpu", ranks=2)
    assert (device.kind, device.memory, device.cores) == ("cpu", 4 * GIB, 2)
    assert device.flops_per_s("fp32") == pytest.approx(2 * 56e9)


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
    monkeypatch.setattr(devices, "_available", lambda: 10 * GIB)
    monkeypatch.setattr(devices, "_cached", lambda: GIB // 2)
    monkeypatch.setattr(devices, "_read_number", lambda path: limits[Path(path).name])
    assert devices.free_host_memory() == 3 * GIB // 2
    monkeypatch.setattr(devices, "_read_number", lambda path: None)
    assert devices.free_host_memory() == 10 * GIB


def test_runs_side_by_side_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_host_memory", lambda: 12 * GIB)
    cpu = torch.device("cpu")
    assert free_memory(cpu, ranks=2) == 6 * GIB
    monkeypatch.setenv(DEVICE_SHARE, "3")
    assert free_memory(cpu, ranks=2) == 2 * GIB


def test_this_machine_has_free_memory() -> None:
    assert GIB // 8 < devices.free_host_memory() < 1024 * GIB
