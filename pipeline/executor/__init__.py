"""Tickets to commits, in this process or on Ray."""

from __future__ import annotations

from pipeline.executor.outcomes import Report
from pipeline.executor.schedule import Ticket, Tickets
from pipeline.executor.stage import Engine, execute
from pipeline.executor.worker import Stage, Work

__all__ = ["Engine", "Report", "Stage", "Ticket", "Tickets", "Work", "execute"]
