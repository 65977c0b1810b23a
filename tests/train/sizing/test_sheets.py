from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from train.sizing.device_fit import (
    OWN_SHEETS,
    PRECISIONS,
    own_sheets,
    peak_flops,
    read_sheets,
    sheet_of,
)

GOOD = json.loads(OWN_SHEETS.read_text())["devices"]["a100-80gb"]


def written(tmp_path: Path, **changes: Any) -> Path:
    entry = copy.deepcopy(GOOD)
    for key, value in changes.items():
        if value is None:
            del entry[key]
        else:
            entry[key] = value
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"devices": {"mine": entry}}))
    return path


@pytest.mark.parametrize("key", sorted(own_sheets()))
def test_every_device_has_figures_that_agree(key: str) -> None:
    sheet = own_sheets()[key]
    nominal = float(key.rsplit("-", 1)[1].removesuffix("gb"))
    assert 0.9 * nominal < sheet.memory_gib < nominal
    peaks = [sheet.tflops[name] for name in PRECISIONS if name in sheet.tflops]
    assert peaks == sorted(peaks), "fewer bits are faster"
    assert sheet_of(sheet.name) is not None
    assert 0.02 < sheet.tflops["fp16"] / sheet.bandwidth_gb_s < 0.6


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


def test_a_peak_by_name_and_precision() -> None:
    assert peak_flops("NVIDIA H200") == 989.4e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "tf32") == 494.7e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
    assert peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12
    assert peak_flops("x86_64 processor, 2 threads") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"watts": -400}, "mine: watts is -400; it must lie in"),
        ({"memory_gib": 0}, "memory_gib is 0; it must lie in"),
        ({"memory_gib": float("nan")}, "memory_gib is nan"),
        ({"watts": "400"}, "mine.watts is '400'"),
        ({"memory": 80}, "has no 'memory'"),
        ({"bandwidth_gb_s": None}, "has no value for 'bandwidth_gb_s'"),
        ({"tflops": {"fp32": 19.5, "bf61": 312}}, "tflops has no 'bf61'; did you mean 'bf16'"),
        ({"tflops": {"bf16": 312}}, "tflops has no value for 'fp32'"),
        ({"tflops": {"fp32": 1e300}}, "tflops.fp32 is 1e\\+300"),
        ({"sources": {}}, "sources has no text for 'memory_gib'"),
        ({"name": " "}, "name is empty"),
    ],
)
def test_a_wrong_sheet_is_refused_by_file_and_key(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as refused:
        read_sheets(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [b"\xff{", b"{", b"[]", b"{}", b'{"devices": []}', b'{"a": 1}'])
def test_a_file_that_is_no_list_of_devices_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"own\.json"):
        read_sheets(path)


def test_a_users_own_device_is_read(tmp_path: Path) -> None:
    sheets = read_sheets(written(tmp_path, memory_gib=60))
    assert sheets["mine"].memory_gib == 60
    assert sheets["mine"].peak_flops("bf16") == 312e12
