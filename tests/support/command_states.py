"""States of commands, for tests of what shows them."""

from __future__ import annotations

from typing import Any

from clipmill.pipeline.progress.state import CommandState, HostState, StageState


def stage_state(**changes: Any) -> StageState:
    """A stage fetch in the middle of its work."""
    values: dict[str, Any] = {
        "name": "fetch",
        "number": 1,
        "total": 200,
        "done": 50,
        "failed": 1,
        "running": 6,
        "oldest": "ab12",
        "oldest_s": 400.0,
        "seconds": 600.0,
        "rows": 500_000,
        "stored": 400_000,
        "bytes": 12_000_000_000,
        "reasons": {f"reason_{i}": 10_000 - i for i in range(12)},
        "rows_per_s": 833.0,
        "bytes_per_s": 20e6,
        "left_s": 1750.0,
        "hosts": (
            HostState(host="slow.example", rows=120, seconds=2400.0, reason="deadline"),
            HostState(host="\x1b[31mred.example", rows=1, seconds=3.0, reason="dns"),
        ),
    }
    return StageState(**{**values, **changes})


def command_state(*stages: StageState, **changes: Any) -> CommandState:
    """A build whose stage plan has ended and whose stage fetch is running."""
    plan = stage_state(name="plan: sort", number=0, total=3, done=3, failed=0, ended=True)
    values: dict[str, Any] = {
        "command": "clipmill build recipe.yaml --out out/pool",
        "host": "node1",
        "pid": 12,
        "started": 1_000.0,
        "phase": "running",
        "stages": stages or (plan, stage_state()),
    }
    return CommandState(**{**values, **changes})
