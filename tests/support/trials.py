"""One scenario of `chaos_pools` or `chaos_runs`, run from the same files again and again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

from tests.support.forked_commands import CommandServer, Ended

EVERY = int(os.environ.get("CLIPMILL_CHAOS") or 0)  # 1: every point; 4: every fourth; 0: a sample
EVERYWHERE = bool(EVERY)
SEED = 20261122
Point = tuple[int, str]  # number of a call, how it ends


class Trial:
    """A copy of the prepared files for each run of the command, always at the same path."""

    def __init__(
        self, server: CommandServer, module: Any, name: str, inputs: Path, folder: Path
    ) -> None:
        self.server, self.module, self.name, self.inputs = server, module, name, str(inputs)
        self.template, self.work = folder / "template", folder / "work"
        server.run(module.prepare, name, self.inputs, str(self.template))

    def watch(self, n: int, how: str) -> Ended:
        """Run the command; its n-th change of a file ends in `how`."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.template, self.work)
        return self.server.watch(
            self.work, n, how, self.module.run, self.name, self.inputs, str(self.work)
        )

    def whole(self) -> tuple[list[str], dict[str, Any], list[str]]:
        """(calls of an undisturbed run, what is there afterwards, what it leaves behind)."""
        ended = self.watch(0, "kill")
        assert (ended.watched.outcome, ended.value) == ("exit 0", 0), ended.output
        state = self.server.run(self.module.state, str(self.work))
        problems = self.server.run(self.module.problems_at_end, str(self.work))
        assert not problems, problems
        return ended.watched.calls, state, self.server.run(self.module.leftovers, str(self.work))

    def resume(self) -> dict[str, Any]:
        """Look at what is there, run the command again, look at the result."""
        result: dict[str, Any] = self.server.run(
            self.module.resume, self.name, self.inputs, str(self.work)
        )
        return result


def problems_of(
    after: dict[str, Any], expected: dict[str, Any], at_end: list[str]
) -> dict[str, Any]:
    """What is not as after an undisturbed run; {} where nothing is."""
    names = sorted(after["state"].keys() | expected.keys())
    problems = {
        "visible": after["visible"],
        "status": after["status"],
        "problems": after["problems"],
        "leftovers": [path for path in after["leftovers"] if path not in at_end],
        "different": [name for name in names if after["state"].get(name) != expected.get(name)],
    }
    return {key: value for key, value in problems.items() if value}


def some(points: list[Point], name: str, count: int) -> list[Point]:
    """All points with CLIPMILL_CHAOS=1, every n-th with n, else the same few each time."""
    if EVERY:
        return points[::EVERY]
    return random.Random(f"{SEED}-{name}").sample(points, min(count, len(points)))
