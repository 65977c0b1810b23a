"""Reads that may fail for a moment: repeated with back-off, then reported as a failure of the
run."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt: 31 s in all
REMEDY = "check the connection to the store and start the same command again, it resumes"
TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.EBUSY,  # s3fs: SlowDown, ServiceUnavailable
    errno.EIO,  # s3fs: InternalError; a network file system that lost its server
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
}
# Classes of aiohttp, botocore and urllib3 that are no OSError. They are recognised by name, since
# the trainer imports none of these libraries.
TRANSIENT_CLASSES = {
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectTimeoutError",
    "HTTPClientError",
    "IncompleteReadError",
    "NewConnectionError",
    "ProtocolError",
}


class ReadFailed(RuntimeError):
    """A store did not answer although the read was repeated. The run can be started again."""


def is_transient(error: BaseException) -> bool:
    """Whether the same read may succeed later: a time-out, a lost connection, a busy server."""
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
        return True
    return any(kind.__name__ in TRANSIENT_CLASSES for kind in type(error).__mro__)


def read_with_retries(read: Callable[[], T], name: str, remedy: str = REMEDY) -> T:
    """`read()`, repeated after transient errors; `name` is what is read, for messages.

    ReadFailed when the last attempt fails too. Other errors are raised at once.
    """
    for wait in (*WAITS_S, None):
        try:
            return read()
        except Exception as error:
            if not is_transient(error):
                raise
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            if wait is None:
                raise ReadFailed(
                    f"{name} could not be read in {len(WAITS_S) + 1} attempts ({reason}); {remedy}"
                ) from error
            logger.warning("%s: %s; next attempt in %g s", name, reason, wait)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")
