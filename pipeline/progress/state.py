"""The state of a running command at one moment, as it is shown, stored and read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from manifests import disk

STATE_VERSION = 1
CommandPhase = Literal["running", "finished", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host on which rows lost time."""

    host: str
    rows: int  # that were slow, or failed for a transient reason
    seconds: float  # that they lost, see host_losses.py
    reason: str  # of the last one; "slow" where it was stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """One stage of a command: its tickets of this run, and what they did."""

    name: str
    number: int  # in its command: two stages may have one name
    total: int  # tickets of this run; those that earlier runs ended are not among them
    done: int = 0
    failed: int = 0
    running: int = 0
    oldest: str | None = None  # id of the ticket that runs longest
    oldest_s: float = 0.0
    seconds: float = 0.0  # since the stage began
    quiet_s: float = 0.0  # since a ticket ended
    ended: bool = False
    rows: int = 0  # that have an outcome, those of running tickets too where workers tell
    stored: int = 0
    bytes: int = 0
    reasons: dict[str, int] | None = None  # rows that are not stored, by reason
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    left_s: float | None = None  # estimate of the time left; None where nothing is known
    hosts: tuple[HostState, ...] = ()  # the worst ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """progress.json: the stages of a command that writes into a pool, in order of their start."""

    version: int
    command: str
    host: str
    pid: int
    started: float  # seconds since 1970
    updated: float
    phase: CommandPhase
    message: str = ""  # why it failed
    stages: tuple[StageState, ...] = ()

    @property
    def current(self) -> StageState | None:
        """The stage that is running, else the last one."""
        stages = [stage for stage in self.stages if not stage.ended] or self.stages
        return stages[-1] if stages else None


def state_from_plain(document: Any) -> CommandState:
    """The inverse of `disk.to_plain`. ValueError for anything else."""
    if not isinstance(document, dict) or document.get("version") != STATE_VERSION:
        raise ValueError(f"it is not the progress of a command in version {STATE_VERSION}")
    state: CommandState = disk.from_plain(CommandState, document)
    disk.check_types(CommandState, document, "progress.json")
    return state
