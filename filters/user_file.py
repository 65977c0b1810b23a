"""A user's own filter: a class in a Python file that a recipe names as PATH.py:CLASS.

The text of the file is part of the id of its columns. It travels to the workers, so that every
worker runs the text that the id is of, whether it can see the path or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from clipmill.filters.base import NEEDS, Batch, Filter, FilterBase, PoolFilter
from clipmill.manifests import disk

# --------------------------------------------------------------------------------------------------
# Calls of a user's code: whatever it does ends in one line that names the file and the line.
#
# An exception and sys.exit become UserCodeError. What is printed goes to stderr, because stdout
# has the JSON line of a command. A child that the code forked ends there: it would commit files
# too.


# Methods of a filter that the engine calls.
METHODS = (
    "__post_init__", "identity", "check", "setup", "columns", "alternatives", "resolved",
    "prepare", "score",
    "summarise", "merge", "combine", "route", "judge", "links", "judge_groups",
)  # fmt: skip
REFUSING = ("__post_init__", "check")  # by ValueError, which says what is wrong with the options


class UserCodeError(ValueError):
    """A user's code raised or ended the process. Its text is one line."""


def call_user(path: str, what: str, function: Callable[[], object]) -> Any:
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


PATH_AND_CLASS = re.compile(r"(?s)(.+\.py):([^:/]*)")
FORM = "{NAME: {path/to/my_filters.py:MyFilter: {}}}"
_texts: dict[str, str] = {}  # path -> the text that came with a ticket's stage


def is_path(kind: str) -> bool:
    """True for a kind of the form PATH.py:CLASS."""
    return PATH_AND_CLASS.fullmatch(kind) is not None


def provide_text(path: str, text: str) -> None:
    """Use this text for the file, in a worker: its own file may be another one, or missing."""
    _texts[path] = text


def text_of(kind: str) -> tuple[str, str]:
    """(path, text) of the file of a kind. ValueError where it cannot be read."""
    match = PATH_AND_CLASS.fullmatch(kind)
    assert match is not None, kind
    path = match[1]
    if path in _texts:
        return path, _texts[path]
    try:
        return path, disk.read_bytes(path).decode()
    except FileNotFoundError:
        raise ValueError(
            f"filter {kind}: there is no file {path}; the path is relative to the recipe"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"filter {kind}: {path} cannot be read: {error}") from None


def load_class(kind: str) -> type[FilterBase]:
    """The class that a kind PATH.py:CLASS names.

    ValueError for a file that cannot be read or raises, and for a class that is no filter.
    """
    path, text = text_of(kind)
    class_name = kind[len(path) + 1 :]
    module = _module(kind, path, text)
    names = [name for name, value in vars(module).items() if _is_filter(value, module)]
    filter_class: object = vars(module).get(class_name)
    if class_name not in names:
        available = f"it has {', '.join(names)}" if names else "it has none"
        raise ValueError(
            f"filter {kind}: {path} has no filter class {class_name!r}"
            f"{disk.did_you_mean(class_name, names)}; {available}. A filter class is a dataclass "
            "that subclasses Filter or PoolFilter of filters.base"
        )
    if not dataclasses.is_dataclass(filter_class):
        raise ValueError(f"filter {kind}: write @dataclass(kw_only=True) above class {class_name}")
    return _with_name(kind, class_name, vars(module)[class_name])


def _with_name(kind: str, class_name: str, filter_class: type[FilterBase]) -> type[FilterBase]:
    """The class, which has columns and what it computes them by, with the name that its columns go
    by."""
    adds = getattr(filter_class, "adds", None)
    if not isinstance(adds, dict) or not adds or not _are_types(adds):
        raise ValueError(
            f"filter {kind}: class {class_name} needs adds, the columns with their Arrow types, "
            'such as adds = {"sharpness": pa.float32()}'
        )
    if missing := inspect.isabstract(filter_class) and sorted(filter_class.__abstractmethods__):
        raise ValueError(f"filter {kind}: class {class_name} lacks the method {missing[0]}")
    given = getattr(filter_class, "needs", ())
    needs: set[Any] = {given} if isinstance(given, str) else set(given)
    if unknown := sorted(map(str, needs - NEEDS)):
        raise ValueError(
            f"filter {kind}: {class_name}.needs has {unknown[0]!r}"
            f"{disk.did_you_mean(unknown[0], NEEDS)}; it may have {', '.join(sorted(NEEDS))}"
        )
    if issubclass(filter_class, Filter):
        filter_class.needs = frozenset(needs)
    if "name" not in vars(filter_class):
        filter_class.name = class_name.lower()
    return filter_class


def _are_types(adds: dict[object, object]) -> bool:
    texts = all(isinstance(name, str) for name in adds)
    return texts and all(isinstance(kind, pa.DataType) for kind in adds.values())


def _is_filter(value: object, module: ModuleType) -> bool:
    is_class = isinstance(value, type) and issubclass(value, (Filter, PoolFilter))
    return is_class and value.__module__ == module.__name__


def _module(kind: str, path: str, text: str) -> ModuleType:
    """The file as a module, executed once for each text."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    name = f"clipmill_filter_{sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses and pickle look a class up by its module
    try:
        call_user(path, "it", lambda: exec(compile(text, path, "exec"), vars(module)))
    except ValueError as error:
        del sys.modules[name]
        raise ValueError(f"filter {kind}: {path} cannot be executed: {error}") from error
    for value in list(vars(module).values()):
        if _is_filter(value, module):
            value.source_sha256 = sha256
            guarded_methods(value, path)
    return module
