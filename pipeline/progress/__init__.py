"""What a running command does: counted, shown, stored for those who watch it, and measured."""

from __future__ import annotations

from pipeline.progress.host_losses import HostLosses
from pipeline.progress.lines import stage_line
from pipeline.progress.measure import (
    Measure,
    Measurer,
    measure_commit,
    measure_links,
    measure_scored,
)
from pipeline.progress.progress_file import read_state
from pipeline.progress.screens import Screen, screen_for
from pipeline.progress.stage_counter import StageCounter, TicketRows, WorkerReport
from pipeline.progress.state import CommandState
from pipeline.progress.view import counted_stage, shown_progress

__all__ = [
    "CommandState",
    "HostLosses",
    "Measure",
    "Measurer",
    "Screen",
    "StageCounter",
    "TicketRows",
    "WorkerReport",
    "counted_stage",
    "measure_commit",
    "measure_links",
    "measure_scored",
    "read_state",
    "screen_for",
    "shown_progress",
    "stage_line",
]
