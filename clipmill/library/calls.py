"""What a call of the library leaves as it was: signals, variables, random numbers, threads, Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from clipmill.manifests import console, ray_runtime


@contextmanager
def guest() -> Iterator[None]:
    """A call of the library in a caller's process. Log lines go to stderr where the caller shows
    none; what the call changes of the process is as before when it ends. A wrong path or a full
    disk is ValueError, and a run that was stopped and saved KeyboardInterrupt. Inside of a command
    it does nothing.
    """
    with console.as_guest() as is_guest, ExitStack() as stack:
        if is_guest:
            stack.enter_context(_as_before())
            stack.enter_context(_log_lines())
        try:
            yield
        except OSError as error:
            if not is_guest or error.errno not in console.PATH_ERRORS | console.DISK_ERRORS:
                raise
            raise ValueError(f"{error.filename or 'a file'}: {error.strerror}") from error
        except SystemExit as end:
            if not is_guest or end.code != console.EXIT_SAVED:
                raise
            raise KeyboardInterrupt("the run is saved; the same call resumes it") from None


@contextmanager
def _log_lines() -> Iterator[None]:
    """Shows what is done, as a command does, unless the caller has set logging up."""
    logger = logging.getLogger("clipmill")
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(console.LineFormatter())
    logger.addHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _as_before() -> Iterator[None]:
    variables, numbers = dict(os.environ), (random.getstate(), np.random.get_state())
    is_main = threading.current_thread() is threading.main_thread()
    signals = {each: signal.getsignal(each) for each in console.STOP_SIGNALS}
    had_ray, of_torch = ray_runtime.is_connected(), _state_of_torch()
    start_method = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if not had_ray:
            ray_runtime.leave()
        for each, handler in signals.items() if is_main else ():
            signal.signal(each, handler)
        if dict(os.environ) != variables:
            os.environ.clear()
            os.environ.update(variables)
        if start_method is None:  # a library has asked for it, which settles it
            multiprocessing.set_start_method(None, force=True)
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])
        _restore_torch(of_torch)


def _state_of_torch() -> dict[str, Any] | None:
    """Threads and random states; None where torch is not imported, whose state is then its own."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "threads": torch.get_num_threads(),
        "random": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
    }


def _restore_torch(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    import torch

    torch.set_num_threads(state["threads"])
    torch.set_rng_state(state["random"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state_all(state["cuda"])
