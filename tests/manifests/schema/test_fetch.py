"""The block `fetch`: limits, and which settings are manners."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from manifests.schema import MANNERS, STORED_IMAGE_SETTINGS, Fetch


def test_a_setting_is_a_manner_or_decides_bytes_and_not_both() -> None:
    fields = {field.name for field in dataclasses.fields(Fetch)}
    assert set(MANNERS) <= fields
    assert set(STORED_IMAGE_SETTINGS) <= fields
    assert not set(MANNERS) & set(STORED_IMAGE_SETTINGS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows_per_shard": 10_001}, "rows_per_shard is 10001; it must lie in 1..10000"),
        ({"image_size": 0}, "image_size is 0; it must lie in 1..16383"),
        ({"deadline_s": 0.0}, "deadline_s is 0.0; it must lie in 0.001..86400.0"),
        ({"retries": -1}, "retries is -1; it must lie in 0..100"),
        ({"encode_quality": 0}, r"of jpg it must lie in 1..100"),
        ({"encode_format": "png", "encode_quality": 10}, r"of png it must lie in 0..9"),
        ({"image_size": 99_999_999_999_999}, "it must lie in 1..16383"),
        ({"deadline_s": float("inf")}, "deadline_s is inf; it must lie in 0.001..86400.0"),
        ({"patience_s": float("nan")}, "patience_s is nan; it must lie in 0.001..8640000.0"),
        ({"allow_ports": ()}, r"allow_ports is \[\]; it must name at least one port"),
        ({"allow_ports": (80, 65_536)}, "allow_ports.1 is 65536; it must lie in 1..65535"),
        ({"user_agent": "x/1\r\nCookie: a"}, "it must be printable ASCII in one line"),
        ({"user_agent": "café/1"}, "it must be printable ASCII in one line"),
        ({"verify_hash": ("column", "crc32")}, "verify_hash names 'crc32'"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fetch(**values)
