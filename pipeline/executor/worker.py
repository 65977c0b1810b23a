"""A stage and its worker: a function that is loaded once and turns tickets into results.

Only plain JSON values and the name of the function cross to a worker. Exceptions do not: an answer
is a kind and a text.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.executor.schedule import Ticket
from pipeline.progress import Measurer

ROOT = Path(__file__).resolve().parents[2]
OUR_PACKAGES = ("manifests", "filters", "pipeline")
Work = Callable[[Ticket], dict[str, Any]]
WorkFactory = Callable[[dict[str, Any]], Work]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is done to a ticket.

    `work` is a factory, a function or class at the top level of a module: work(config) is called
    once per worker (models are loaded there) and returns the function that turns a ticket into a
    dict. If that has a `close()`, it is called when the stage ends. `cpus` and `gpus` are what a
    worker asks of Ray. `concurrency` is how many tickets a worker runs at once, each in a thread of
    its own: above 1, the function must be thread-safe. `measure` says what a ticket did from what
    the function returned. With `tells` the function has a method `progress()`, which gives the
    JSON of a `WorkerReport` while tickets run; it is called from another thread.
    """

    name: str
    work: WorkFactory
    config: dict[str, Any] = field(default_factory=dict)
    gpus: float = 0
    cpus: float = 1
    concurrency: int = 1
    measure: Measurer | None = None
    tells: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(
                f"concurrency is {self.concurrency}; a worker must be able to run a ticket"
            )
        work_reference(self.name, self.work)


def work_reference(stage_name: str, work: WorkFactory) -> bytes:
    """The factory pickled by its name. ValueError for one that a worker cannot import."""
    name = getattr(work, "__qualname__", repr(work))
    if getattr(work, "__module__", None) == "__main__":
        raise ValueError(
            f"stage {stage_name}: work is {name} of the script that runs, "
            "which a worker cannot import; import it from a module"
        )
    try:
        if not hasattr(work, "__qualname__"):
            raise pickle.PicklingError("no function and no class")
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ValueError(
            f"stage {stage_name}: work is {name}, which a worker cannot import; "
            "give a function or a class from the top level of a module"
        ) from None


def ticket_json(ticket: Ticket) -> str:
    """A ticket as it crosses to a worker."""
    fields = {"id": ticket.id, "group": ticket.group, "payload": ticket.payload}
    return json.dumps(fields)


class Worker:
    """Holds what the factory loaded. An answer is [kind, JSON or text]."""

    def __init__(self, stage_name: str, work: bytes, config: str) -> None:
        """`work` is a `work_reference`, `config` is JSON."""
        self.stage_name = stage_name
        self._factory_reference = work
        self._config = config
        self._work: Work | None = None

    @staticmethod
    def arguments(stage: Stage) -> tuple[str, bytes, str]:
        """What a worker of a stage is made with."""
        return stage.name, work_reference(stage.name, stage.work), json.dumps(stage.config)

    def ready(self) -> list[str]:
        """Call the factory. ["ready", ""], or ["refused" | "broken", its error]."""
        try:
            factory = pickle.loads(self._factory_reference)
            self._work = factory(json.loads(self._config))
        except ValueError as error:
            return ["refused", str(error)]
        except Exception as error:
            logger.exception("stage %s: the factory raised", self.stage_name)
            return ["broken", error_line(error)]
        return ["ready", ""]

    def run(self, ticket: str) -> list[str]:
        """Work on one ticket (JSON). ["done", result as JSON] or ["raised", its error]."""
        assert self._work is not None
        try:
            return ["done", json.dumps(self._work(Ticket(**json.loads(ticket))))]
        except Exception as error:
            if not _explains_itself(error) or os.environ.get("CLIPMILL_TRACEBACK"):
                logger.exception("stage %s: a ticket raised", self.stage_name)
            return ["raised", error_line(error)]

    def progress(self) -> str:
        """What the work tells of its running tickets, see `Stage.tells`."""
        assert self._work is not None
        return str(self._work.progress())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close what the factory loaded."""
        if self._work is not None and hasattr(self._work, "close"):
            self._work.close()


def error_line(error: Exception) -> str:
    """The error in one line, with the last file of ours in its traceback.

    The traceback itself is in the worker's log.
    """
    if _explains_itself(error):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT)]
    last = own_frames[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


def _explains_itself(error: Exception) -> bool:
    """True for a ValueError of ours. ArrowInvalid is one too, of another library."""
    package = type(error).__module__.partition(".")[0]
    is_ours = type(error) is ValueError or package in OUR_PACKAGES
    return isinstance(error, ValueError) and is_ours


def check_ready(stage: Stage, answer: list[str]) -> None:
    """Raise what a factory raised: ValueError for a person's mistake, else RuntimeError."""
    kind, text = answer
    if kind == "refused":
        raise ValueError(text)
    if kind == "broken":
        raise RuntimeError(f"stage {stage.name}: {stage.work.__qualname__} raised {text}")
