"""Libraries that the trainer must start without."""

from __future__ import annotations

BLOCKED = [
    "pydantic",
    "ray",
    "duckdb",
    "open_clip",
    "webdataset",
    "simplejpeg",
    "xxhash",
    "scipy",
    "yaml",
]
