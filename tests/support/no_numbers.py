"""A device without numbers: a step runs on it only if the host reads nothing and sends nothing that
it would wait for.

torch's meta device computes shapes alone. Whatever takes a number or a size from it (item, tolist,
cpu, nonzero, a boolean index, print, a Python comparison) is an error there, in torch's own code as
in ours. On a GPU each of these makes the host wait for the device.
"""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")


class Waits(AssertionError):
    """A copy to the device that the host waits for."""


class _Autocast(torch.autocast):
    """torch has no autocast for the device: it does what the CPU's does."""

    def __init__(self, device_type, *arguments, **options):
        device_type = "cpu" if device_type == DEVICE.type else device_type
        super().__init__(device_type, *arguments, **options)


class _Copies(TorchDispatchMode):
    """Copies from the host to the device must not be waited for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default:
            waits = not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking")
            self._check(args[1].device, args[0].device, waits)
        elif func is torch.ops.aten._to_copy.default:
            target = kwargs.get("device") or args[0].device
            self._check(args[0].device, torch.device(target), not kwargs.get("non_blocking"))
        return func(*args, **kwargs)

    def _check(self, source, target, waits):
        if waits and source.type == "cpu" and target.type == DEVICE.type:
            raise Waits("a copy from host memory to the device is not asynchronous")


class _Constants(TorchFunctionMode):
    """torch.tensor makes a tensor on the host, and its copy to a GPU is waited for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        on_device = torch.device(kwargs.get("device") or "cpu").type == DEVICE.type
        if on_device and func in (torch.tensor, torch.as_tensor):
            raise Waits(f"torch.{func.__name__} on the device")
        return func(*args, **kwargs)


@contextlib.contextmanager
def without_numbers():
    """Models and optimizers on DEVICE are computed as on a GPU."""
    optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim removes the name
    devices = optimizer._get_fused_kernels_supported_devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "autocast", _Autocast)
        patch.setattr(
            optimizer, "_get_fused_kernels_supported_devices", lambda: [*devices, DEVICE.type]
        )
        yield


@contextlib.contextmanager
def refuses_waiting():
    """A copy to DEVICE that the host waits for is `Waits` in the block."""
    with _Constants(), _Copies():
        yield
