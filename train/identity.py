"""What makes two runs the same run: their identities as plain values, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two identities, each as `key: saved -> now`."""
    found = []
    for key in sorted({*saved, *now}):
        before, after = saved.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before} -> {after}")
    return found
