"""One scenario of `chaos_pools` or `chaos_runs`, run from the same files again and again."""

from __future__ import annotations

import importlib
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

    def __init__(self, server: CommandServer, name: str, inputs: Path, folder: Path) -> None:
        self.server, self.name, self.inputs = server, name, str(inputs)
        self.template, self.work = folder / "template", folder / "work"
        server.run(prepare, name, self.inputs, str(self.template))

    def watch(self, n: int, how: str) -> Ended:
        """Run the command; its n-th change of a file ends in `how`."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.template, self.work)
        return self.server.watch(self.work, n, how, run, self.name, self.inputs, str(self.work))

    def whole(self) -> tuple[list[str], dict[str, Any], list[str]]:
        """(calls of an undisturbed run, what is there afterwards, what it leaves behind)."""
        ended = self.watch(0, "kill")
        assert (ended.watched.outcome, ended.value) == ("exit 0", 0), ended.output
        end = self.server.run(look, self.name, str(self.work))
        assert not end["problems"], end["problems"]
        return ended.watched.calls, end["state"], end["leftovers"]

    def resume(self) -> dict[str, Any]:
        """Look at what is there, run the command again, look at the result."""
        result: dict[str, Any] = self.server.run(resume, self.name, self.inputs, str(self.work))
        return result


# --- in children ----------------------------------------------------------------------------------


def scenario_of(name: str) -> Any:
    """The scenario of a name."""
    pools, runs = (importlib.import_module(f"tests.support.chaos_{x}") for x in ("pools", "runs"))
    return {**pools.SCENARIOS, **runs.SCENARIOS}[name]


def prepare(name: str, inputs: str, folder: str) -> None:
    importlib.import_module("tests.support.chaos_pools").prepare(scenario_of(name), inputs, folder)


def run(name: str, inputs: str, folder: str) -> int:
    """The command of a scenario."""
    status: int = scenario_of(name).run(inputs, folder)
    return status


def look(name: str, folder: str) -> dict[str, Any]:
    """What is there when the command has ended."""
    scenario = scenario_of(name)
    return {
        "problems": scenario.problems(folder),
        "leftovers": leftovers(folder),
        "state": scenario.state(folder),
    }


def resume(name: str, inputs: str, folder: str) -> dict[str, Any]:
    """Look at what a killed command left, run it again, and look at the result."""
    scenario = scenario_of(name)
    visible = [] if scenario.damaged_before else scenario.visible(folder)
    status = scenario.run(inputs, folder)
    return {"visible": visible, "status": status, **look(name, folder)}


def leftovers(folder: str) -> list[str]:
    """Files and folders that are no part of a pool or a run."""
    names = []
    for path in sorted(Path(folder).rglob("*")):
        if "lease" in path.name:  # claims, and what a process that was killed asking for it left
            continue
        is_empty = path.is_dir() and not any(path.iterdir())
        if path.name.startswith(".") or ".partial" in path.name or is_empty:
            names.append(str(path.relative_to(folder)))
    return names


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
