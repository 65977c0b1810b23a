"""A measurement in processes of its own, one for each rank; they may fail, and the others go on."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clipmill import ROOT
from clipmill.bench.timing import Measurement
from clipmill.manifests import console, disk
from clipmill.manifests.text import printable
from clipmill.train.parallel import process_group

LONGEST_REASON = 300
# Parts of the messages of a rank whose connection to another one is lost
LOST = ("gloo/transport", "Connection closed by peer", "ncclRemoteError", "NCCL communicator")
logger = logging.getLogger(__name__)


class MeasurementFailed(RuntimeError):
    """A measurement that ended without figures, with the reason."""


def measure_in_ranks(program: Sequence[str], plan: Any, ranks: int) -> Measurement:
    """Run `python -m PROGRAM FOLDER` as `ranks` processes of this machine; its figures.

    FOLDER/plan.json has the plan, a dataclass. The program calls `serve_rank`. MeasurementFailed
    where a rank fails. A stop signal ends the ranks, and then comes to this process again.
    """
    with tempfile.TemporaryDirectory(prefix="clipmill-bench-") as folder:
        disk.write_json(disk.join(folder, "plan.json"), plan)
        variables = {"PYTHONPATH": ROOT}
        status = process_group.launch_ranks(
            [sys.executable, "-m", *program, folder], ranks, variables
        )
        if status > 128:
            signal.raise_signal(status - 128)
        if status != 0:
            raise MeasurementFailed(_reason(folder, ranks, status))
        result: Measurement = disk.from_plain(
            Measurement, disk.read_json(disk.join(folder, "result.json"))
        )
        return result


def _reason(folder: str, ranks: int, status: int) -> str:
    """Why a measurement failed: the first reason that a rank has written.

    A rank that is killed writes none, and the others lose their connection to it: then that is the
    reason.
    """
    failures = [Path(folder, f"failed-{rank}.json") for rank in range(ranks)]
    failures = sorted(
        (path for path in failures if path.exists()), key=lambda path: path.stat().st_mtime_ns
    )
    reasons: list[str] = [disk.read_json(path)["reason"] for path in failures]
    own = [reason for reason in reasons if not any(word in reason for word in LOST)]
    if own:
        return own[0]
    if status < 0:
        name = console.signal_name(-status)
        hint = ", which the system sends where memory is used up" if name == "SIGKILL" else ""
        return f"a rank was ended by {name}{hint}"
    if len(reasons) < ranks and reasons:
        return (
            f"a rank has ended without a reason, perhaps by a signal or for lack of memory; "
            f"another one lost its connection to it: {reasons[0]}"
        )
    return reasons[0] if reasons else f"a rank ended with status {status}"


def serve_rank(folder: str, plan_kind: type, measure: Callable[[Any, str], Measurement]) -> int:
    """Measure as the rank that the environment names, and write the figures or the reason. The exit
    status. The process ends with its parent.
    """
    console.end_with_parent()
    rank = int(os.environ["RANK"])
    console.start_logging(logging.WARNING if rank == 0 else logging.ERROR)
    plan = disk.from_plain(plan_kind, disk.read_json(disk.join(folder, "plan.json")))
    try:
        result = measure(plan, disk.join(folder, "run"))
    except Exception as error:
        if not isinstance(error, (ValueError, MemoryError, RuntimeError, OSError)):
            logger.exception("rank %d raised", rank)
        path = disk.join(folder, f"failed-{rank}.json")
        disk.write_json(path, {"reason": reason_of(error)})
        return console.EXIT_INCOMPLETE
    if rank == 0:
        disk.write_json(disk.join(folder, "result.json"), result)
    return 0


def reason_of(error: BaseException) -> str:
    """An error as one line."""
    words = " ".join(str(error).split())
    if not isinstance(error, ValueError):
        words = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return printable(words[:LONGEST_REASON])
