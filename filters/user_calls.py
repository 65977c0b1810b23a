"""Calls of a user's code: whatever it does ends in one line that names the file and the line.

An exception and sys.exit become UserCodeError. What is printed goes to stderr, because stdout has
the JSON line of a command. A child that the code forked ends there: it would commit files too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from filters.base import Batch, Filter, FilterBase

# Methods of a filter that the engine calls.
METHODS = (
    "__post_init__", "identity", "check", "setup", "columns", "alternatives", "resolved",
    "prepare", "score",
    "summarise", "merge", "combine", "route", "judge", "links", "judge_groups",
)  # fmt: skip
REFUSING = ("__post_init__", "check")  # by ValueError, which says what is wrong with the options


class UserCodeError(ValueError):
    """A user's code raised or ended the process. Its text is one line."""


def call_user(path: str, what: str, function: Callable[[], Any]) -> Any:
    """What a function of a user's file returns.

    what: the name of the function, for UserCodeError.
    """
    process = os.getpid()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return function()
    except UserCodeError:  # of another method, which this one called
        raise
    except SystemExit as end:
        line = f"{what} called sys.exit({end.code!r})"
        raise UserCodeError(line + _position(end, path)) from end
    except Exception as error:
        raise UserCodeError(f"{what} raised {error_line(error)}{_position(error, path)}") from error
    finally:
        if os.getpid() != process:
            os._exit(1)


def error_line(error: BaseException) -> str:
    """An error with its type, in one line."""
    if isinstance(error, UserCodeError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())


def _position(error: BaseException, path: str) -> str:
    """The last line of the user's file that the traceback names."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == path:
            return f" ({Path(path).name}, line {frame.lineno})"
    return ""


def guarded_methods(filter_class: type[FilterBase], path: str) -> None:
    """Let all methods that the class itself has go through `call_user`. Its `score` gets copies of
    the images, which other filters of the pass read too."""
    for name in METHODS:
        method = vars(filter_class).get(name)
        if callable(method):
            guarded = _guarded(method, f"{filter_class.__name__}.{name}", path)
            setattr(filter_class, name, guarded)


def _guarded(method: Callable[..., Any], what: str, path: str) -> Callable[..., Any]:
    may_refuse = method.__name__ in REFUSING

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if method.__name__ == "score" and type(self).prepare is Filter.prepare:
            # A filter that prepares images may know them by their identity.
            arguments = (_with_copies(arguments[0]), *arguments[1:])
        try:
            return call_user(path, what, lambda: method(self, *arguments, **options))
        except UserCodeError as error:
            if may_refuse and type(error.__cause__) is ValueError:
                raise error.__cause__ from None  # it explains the user's options
            raise

    return call


def _with_copies(batch: Batch) -> Batch:
    if batch.images is None:
        return batch
    return replace(batch, images=[image.copy() for image in batch.images])
