"""Which errors of a remote store pass by themselves, and how an operation is tried again."""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

RETRY_S = 60.0  # from the first failure; a store that is gone for 30 s costs no build
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
NETWORK_ERRORS = {
    getattr(errno, name)
    for name in (
        "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EIO", "ENETDOWN",
        "ENETUNREACH", "EPIPE", "EREMOTEIO", "ETIMEDOUT",
    )
    if hasattr(errno, name)
}  # fmt: skip
# Base classes of botocore's and aiohttp's errors without an HTTP status, by name: neither package
# is imported here.
NETWORK_CLASSES = {
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("botocore.parsers", "ResponseParserError"),
    ("aiohttp.client_exceptions", "ClientError"),
}
# S3 answers 409 with these where two conditional puts of an object meet; its manual says to retry.
RACES = {"ConditionalRequestConflict", "OperationAborted"}
NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
}
T = TypeVar("T")
logger = logging.getLogger(__name__)


def http_status(error: BaseException) -> int | None:
    """The HTTP status that a store's error came with; None where there was no answer."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "code"):  # aiohttp and gcsfs
            status = getattr(each, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def is_transient(error: BaseException) -> bool:
    """True for timeouts, lost connections and the statuses 408, 429 and 5xx of a remote store."""
    status = http_status(error)
    if status is not None and status >= 300:
        code = _error_code(error)
        return status in (408, 429) or status >= 500 or (status == 409 and code in RACES)
    for each in _chain(error):
        if isinstance(each, (FileNotFoundError, FileExistsError, PermissionError)):
            return False
        if isinstance(each, (ConnectionError, TimeoutError)):
            return True
        if isinstance(each, OSError) and each.errno in NETWORK_ERRORS:
            return True
        names = {(kind.__module__, kind.__name__) for kind in type(each).__mro__}
        if names & NETWORK_CLASSES:
            return True
    return False


def pauses() -> Iterator[float]:
    """Seconds to wait before the second try, the third and so on: twice as long each, with jitter,
    until RETRY_S have passed.
    """
    ends = time.monotonic() + RETRY_S
    pause = FIRST_PAUSE_S
    while time.monotonic() + pause <= ends:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def retried(operation: Callable[[], T], path: object, also: int | None = None) -> T:
    """The result of an operation on a remote store; transient errors are tried again.

    `path` is for the log line, and for an OSError that names no file. `also`: one more HTTP status
    that passes. The last error is raised where RETRY_S did not suffice.
    """
    waits: Iterator[float] | None = None
    while True:
        try:
            return operation()
        except Exception as error:
            if not is_transient(error) and (also is None or http_status(error) != also):
                _raise_named(error, path)
            waits = waits or pauses()
            pause = next(waits, -1.0)
            if pause < 0:
                _raise_named(error, path)
            logger.warning("%s: %s; trying again in %.1f s", path, _short(error), pause)
            time.sleep(pause)


def _raise_named(error: Exception, path: object) -> NoReturn:
    """Raise an OSError of a store with the path, as those of local files; another one as it is."""
    if not isinstance(error, OSError) or error.filename is not None:
        raise error
    for kind, number in NUMBERS.items():
        if isinstance(error, kind):
            raise kind(number, os.strerror(number), str(path)) from error
    if isinstance(error, (ConnectionError, TimeoutError)) or error.errno is None:
        raise error
    raise OSError(error.errno, _short(error), str(path)) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from, at most five."""
    each: BaseException | None = error
    for _ in range(5):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _error_code(error: BaseException) -> str | None:
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code"))
    return None


def _short(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:200] + "…"
