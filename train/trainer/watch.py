"""Who waits for whom in a run: a line after a minute, an end after the setting `hang_seconds`.

Each rank has a thread that looks every second at what the training thread is about and whether
reads end. The training thread sets one attribute. A rank that waits for a while says so in the
store of torch.distributed; rank 0, which logs for all, reads that where a step takes long, and
names the rank that the others wait for. A rank that waits for files ends by itself. In a step a
rank waits for others: it fails with the end of the other one, or by the timeout of the collectives,
`LATER_S` after the limit.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from clipmill.manifests import console, waits
from clipmill.train.parallel.process_group import Ranks

START, BATCH, STEP, SAVE, END = "the start", "the batch", "step", "the checkpoint", "the end"
# For a batch, after a stop signal: the system often kills a process 30 s after it
STOP_S = 20.0
LATER_S = 60.0  # by which collectives wait longer than a rank that waits for files
RESUMES = "checkpoints stay, and the same command goes on from the last one"
logger = logging.getLogger(__name__)


class Watch:
    """What the training thread of this rank is about, and for how long."""

    def __init__(self, ranks: Ranks, limit_s: float) -> None:
        self._ranks, self._phase = ranks, (START, 0)
        self.stop_signal: Callable[[], int | None] = lambda: None  # that has arrived
        self._life = waits.Life()
        self._lasts = waits.Stillness(limit_s)  # the phase
        self._still = waits.Stillness(limit_s)  # nothing is read or written in it
        self._said_s = 0.0  # in this phase to the other ranks

    def begin(self, what: str, step: int = 0) -> None:
        """The training thread begins something; `step` counts from 0."""
        self._phase = (what, step)

    def __enter__(self) -> None:
        """The steps begin."""

    def __exit__(self, *_: object) -> None:
        """They have ended or failed: readers and savers are waited for."""
        self.begin(END)

    def look(self) -> None:
        """Called every second, from another thread."""
        phase = what, _ = self._phase
        life = 0 if what == BATCH else self._life.look()  # other threads use the CPU there
        self._lasts.look(phase)
        self._still.look((phase, self.stop_signal(), waits.begun_and_ended(), life))
        self._end_if_over(what)
        if self._lasts.seconds < self._said_s:
            self._said_s = 0.0
        first = self._lasts.first_s / 2
        if self._ranks.rank > 0 and self._lasts.seconds >= max(first, 2 * self._said_s):
            self._said_s = self._lasts.seconds
            self._say()
        if self._ranks.rank == 0 and self._lasts.is_line_due():
            self._log()

    def _reads(self) -> bool:
        """Whether this rank waits for files. In a step, files of later ones are read, too."""
        what, _ = self._phase
        return what == BATCH or (what != STEP and waits.longest() is not None)

    def _end_if_over(self, what: str) -> None:
        if what == STEP or (self._ranks.world > 1 and not self._reads()):
            return  # others are waited for
        seconds, signal = self._still.seconds, self.stop_signal()
        if signal is not None and what == BATCH and seconds >= STOP_S:
            after = f"{console.signal_name(signal)} ends the run before that step"
            waits.end_now(128 + signal, f"{self._text(seconds)}; {after}: {RESUMES}")
        if self._still.is_over:
            after = f"nothing was read or written for {seconds:.0f} s (hang_seconds)"
            waits.end_now(console.EXIT_INCOMPLETE, f"{self._text(seconds)}; {after}: {RESUMES}")

    def _text(self, seconds: float) -> str:
        return f"rank {self._ranks.rank} has waited {seconds:.0f} s for {self._waits_for()}"

    def _phase_text(self) -> str:
        what, step = self._phase
        if what == STEP:
            return f"step {step + 1}"
        return f"{what} of step {step + 1}" if what in (BATCH, SAVE) else f"{what} of the run"

    def _waits_for(self) -> str:
        """`the batch of step 1204: image 7 in web.tar (view_rows.py:462 in _read)`."""
        return f"{self._phase_text()}: {waits.longest() or waits.where()}"

    def _log(self) -> None:
        """The line of rank 0, which speaks for all."""
        (_, step), seconds = self._phase, self._lasts.seconds
        if self._reads():
            logger.warning("%s", self._text(seconds))
            return
        reading, silent = self._others(step)
        text = f"rank 0 has waited {seconds:.0f} s in {self._phase_text()}"
        if reading:
            rank, waits_for = next(iter(reading.items()))
            more = f"; {len(reading) - 1} more ranks wait for files" if len(reading) > 1 else ""
            logger.warning("%s for rank %d, which waits for %s%s", text, rank, waits_for, more)
        elif silent:
            logger.warning("%s; nothing was heard of rank %d since it began", text, silent[0])
        else:
            takes = f"{self._phase_text()} takes long"
            logger.info("%s: %.0f s up to now (%s)", takes, seconds, waits.where())

    # --- the other ranks --------------------------------------------------------------------------

    def _say(self) -> None:
        """Tell rank 0 what this rank is about."""
        word = {"step": self._phase[1], "reading": self._reads(), "text": self._waits_for()}
        with contextlib.suppress(Exception):  # the process that has the store is gone
            _store().set(f"clipmill/waits/{self._ranks.rank}", json.dumps(word))

    def _others(self, step: int) -> tuple[dict[int, str], list[int]]:
        """{rank: what it waits for} of those that wait for files, and the ranks that have said
        nothing of this step.
        """
        reading: dict[int, str] = {}
        silent: list[int] = []
        for rank in range(1, self._ranks.world):
            word: dict[str, Any] = {}
            key = f"clipmill/waits/{rank}"
            with contextlib.suppress(Exception):
                word = json.loads(_store().get(key)) if _store().check([key]) else {}
            if word.get("step") != step:
                silent.append(rank)
            elif word["reading"]:
                reading[rank] = word["text"]
        return reading, silent


def _store() -> Any:
    """The store through which the ranks found each other."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
