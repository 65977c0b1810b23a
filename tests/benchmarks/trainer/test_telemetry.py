from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.trainer.timing import Telemetry


class FakeNvml(ModuleType):
    """A GPU at 80 % and 250 W; `energy` is None for one that does not count it."""

    class NVMLError(Exception):
        pass

    def __init__(self, energy: bool) -> None:
        super().__init__("pynvml")
        self.energy, self.began = energy, time.perf_counter()

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        assert uuid == b"GPU-12"
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=80)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.energy:
            raise self.NVMLError
        return int(1e6 * 300 * (time.perf_counter() - self.began) / 1000)


def figures(monkeypatch: pytest.MonkeyPatch, nvml: object) -> dict[str, float | None]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid="12")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    with Telemetry(torch.device("cuda", 0)) as telemetry:
        time.sleep(0.2)
    return telemetry.figures()


def test_energy_is_counted_by_the_gpu_or_added_up_from_its_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = figures(monkeypatch, FakeNvml(energy=True))
    assert counted["device_utilisation"] == pytest.approx(0.8)
    assert counted["watts"] == pytest.approx(300, rel=0.1)
    added = figures(monkeypatch, FakeNvml(energy=False))
    assert added["watts"] == pytest.approx(250)
    assert added["joules"] is not None
    assert added["joules"] >= 250 * 0.2
