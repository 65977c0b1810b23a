from __future__ import annotations

import pytest

from train.sizing.device_fit import (
    own_sheets,
    sheet_of,
)


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
