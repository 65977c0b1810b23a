"""The kept rows of a view for other programs."""

from __future__ import annotations

from pipeline.export.exports import Export, export_line, export_view
from pipeline.export.uid_arrays import read_uid_array, uid_records, uid_spill

__all__ = [
    "Export",
    "export_line",
    "export_view",
    "read_uid_array",
    "uid_records",
    "uid_spill",
]
