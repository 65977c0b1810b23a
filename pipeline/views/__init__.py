"""Columns and rules to a view."""

from __future__ import annotations

from pipeline.views.choose import columns_of
from pipeline.views.view_files import check_views, choose_views, funnel_lines, random_like

__all__ = ["check_views", "choose_views", "columns_of", "funnel_lines", "random_like"]
