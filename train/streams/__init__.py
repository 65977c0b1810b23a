"""Tars of other programs, read as streams: for sources that cannot seek."""

from __future__ import annotations

from train.streams.byte_streams import COMMAND
from train.streams.counts import StreamDraws, sum_counts
from train.streams.loader import StreamLoader

__all__ = ["COMMAND", "StreamDraws", "StreamLoader", "sum_counts"]
