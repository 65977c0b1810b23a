"""A small web on loopback, for the demo and the tests."""

from __future__ import annotations

from pipeline.miniweb import small_web

__all__ = ["small_web"]
