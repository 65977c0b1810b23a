"""Tickets to commits, in this process or on Ray."""

from __future__ import annotations

from pipeline.executor import stage
from pipeline.executor.stage import Engine, Stage, Ticket, Work, connect, disconnect, execute

__all__ = ["Engine", "Stage", "Ticket", "Work", "connect", "disconnect", "execute", "stage"]
