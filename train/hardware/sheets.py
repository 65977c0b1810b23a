"""Data sheets of devices: memory, peak by precision, bandwidth and power, with the source of each.

The figures are data: `devices.json` beside this file, or a file of the same form from a user.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests import disk

OWN_SHEETS = Path(__file__).parent / "devices.json"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# The type of the matrix products of a precision of training; autocast keeps other operations fp32.
PRODUCTS = {"bf16_o2": "bf16"}
LARGEST = 1e9  # of any figure: a typing error is above it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """One kind of GPU. ValueError for figures that no device has."""

    name: str  # as people write it
    matches: tuple[str, ...]  # words of the name that torch reports; the longest match counts
    memory_gib: float  # that programs can allocate
    tflops: dict[str, float]  # dense peak of matrix products with 32-bit sums, by precision
    bandwidth_gb_s: float  # of the device's memory
    watts: float  # at most
    sources: dict[str, str]  # of each figure above

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("name is empty; write the vendor's name of the device")
        figures = {
            "memory_gib": self.memory_gib,
            "bandwidth_gb_s": self.bandwidth_gb_s,
            "watts": self.watts,
            **{f"tflops.{key}": value for key, value in self.tflops.items()},
        }
        for key, value in figures.items():
            if not 0 < value <= LARGEST or math.isnan(value):
                raise ValueError(f"{key} is {value}; it must lie in (0, {LARGEST:,.0f}]")
        for key in self.tflops:
            if key not in PRECISIONS:
                close = disk.did_you_mean(key, PRECISIONS)
                raise ValueError(f"tflops has no {key!r}{close} (of {', '.join(PRECISIONS)})")
        if "fp32" not in self.tflops:
            raise ValueError("tflops has no value for 'fp32'")
        for key in ("memory_gib", "tflops", "bandwidth_gb_s", "watts"):
            if not self.sources.get(key, "").strip():
                raise ValueError(f"sources has no text for {key!r}: say where the figure is from")

    def peak_flops(self, precision: str) -> float | None:
        """Operations a second at most; None where the device has no products of this precision."""
        value = self.tflops.get(PRODUCTS.get(precision, precision))
        return None if value is None else 1e12 * value


def read_sheets(path: str | Path) -> dict[str, DeviceSheet]:
    """The devices of a file by their keys. ValueError, with the file's name, for a wrong one."""
    document = disk.read_json(path)
    is_mapping = isinstance(document, Mapping)
    if not is_mapping or set(document) != {"devices"} or not document["devices"]:
        raise ValueError(f'{path} is no list of devices: it must be {{"devices": {{NAME: …}}}}')
    disk.check_types(dict[str, Any], document["devices"], f"{path}: devices")
    return {key: _sheet(value, f"{path}: {key}") for key, value in document["devices"].items()}


def _sheet(value: Any, source: str) -> DeviceSheet:
    disk.check_types(DeviceSheet, value, source)
    try:
        sheet: DeviceSheet = disk.from_plain(DeviceSheet, value)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return sheet


@functools.cache
def own_sheets() -> dict[str, DeviceSheet]:
    """The devices that clipmill knows, by their keys, such as a100-80gb."""
    return read_sheets(OWN_SHEETS)


def sheet_of(name: str) -> DeviceSheet | None:
    """The sheet of a device by the name that torch reports; None for an unknown one."""
    best: tuple[int, DeviceSheet] | None = None
    for sheet in own_sheets().values():
        for word in sheet.matches:
            if word in name and (best is None or len(word) > best[0]):
                best = len(word), sheet
    return None if best is None else best[1]


def peak_flops(device: str, precision: str = "bf16") -> float | None:
    """Peak operations a second of a device by the name that torch reports; None if unknown."""
    sheet = sheet_of(device)
    return None if sheet is None else sheet.peak_flops(precision)
