"""The kept rows of a view for other programs."""

from __future__ import annotations

from pipeline.export.exports import Export, export_line, export_view

__all__ = [
    "Export",
    "export_line",
    "export_view",
]
