"""What is known of devices: data sheets, and speeds of training that others published."""

from __future__ import annotations

from train.hardware.published import PublishedSpeed, published_speeds
from train.hardware.sheets import DeviceSheet, own_sheets, peak_flops, read_sheets, sheet_of

__all__ = [
    "DeviceSheet",
    "PublishedSpeed",
    "own_sheets",
    "peak_flops",
    "published_speeds",
    "read_sheets",
    "sheet_of",
]
