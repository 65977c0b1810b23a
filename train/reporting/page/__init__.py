"""A report as one HTML page: charts, tables and sections."""

from __future__ import annotations

from train.reporting.page.document import render

__all__ = ["render"]
