"""Columns and rules to a view."""

from __future__ import annotations

from pipeline.views import choose, view_files
from pipeline.views.choose import NOT_STORED

__all__ = ["NOT_STORED", "choose", "view_files"]
