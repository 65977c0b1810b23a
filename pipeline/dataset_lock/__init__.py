"""A pool as one file that another lab builds it again from, and the rows that labs have in
common.
"""

from __future__ import annotations

from pipeline.dataset_lock.croissant import DataFile, croissant_metadata
from pipeline.dataset_lock.drift import drift_lines, write_drift
from pipeline.dataset_lock.lock_file import LockFile
from pipeline.dataset_lock.lock_source import (
    check_locked,
    check_not_locked,
    is_locked,
    lock_of,
    recipe_of_lock,
    write_lock_plan,
)
from pipeline.dataset_lock.lock_writer import lock_lines, write_lock
from pipeline.dataset_lock.same_rows import same_rows_lines, write_locked_views, write_same_rows

__all__ = [
    "DataFile",
    "LockFile",
    "check_locked",
    "check_not_locked",
    "croissant_metadata",
    "drift_lines",
    "is_locked",
    "lock_lines",
    "lock_of",
    "recipe_of_lock",
    "same_rows_lines",
    "write_drift",
    "write_lock",
    "write_lock_plan",
    "write_locked_views",
    "write_same_rows",
]
