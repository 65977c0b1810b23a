"""A time-out is repeated with growing waits, then it is a failure of the run; other errors are
not."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from train.data import view_rows
from train.data.view_rows import ReadFailed, is_transient, read_with_retries


class ClientConnectionError(Exception):
    """As aiohttp names it: no OSError."""


class ServerDisconnectedError(ClientConnectionError):
    """Below a class that is recognised by its name."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited."""
    waited: list[float] = []
    monkeypatch.setattr(view_rows.time, "sleep", waited.append)
    return waited


def failing(times: int, error: BaseException) -> Callable[[], str]:
    """A read that fails so many times before it succeeds."""
    attempts = iter(range(times))

    def read() -> str:
        if next(attempts, None) is not None:
            raise error
        return "data"

    return read


TRANSIENT = [
    TimeoutError("The read operation timed out"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    OSError(errno.EBUSY, "SlowDown"),
    ServerDisconnectedError("Server disconnected"),
]
PERMANENT = [
    FileNotFoundError(errno.ENOENT, "No such file"),
    PermissionError(errno.EACCES, "Access Denied"),
    ValueError("damaged"),
    KeyError("name"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("times", [1, 5])
def test_a_transient_error_is_repeated_with_growing_waits(
    waits: list[float], error: Exception, times: int
) -> None:
    assert is_transient(error)
    assert read_with_retries(failing(times, error), "00000.tar") == "data"
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0][:times]


def test_a_store_that_stays_silent_is_a_failed_read(waits: list[float]) -> None:
    with pytest.raises(
        ReadFailed, match=r"00000\.tar could not be read in 6 attempts \(TimeoutError: silent\)"
    ) as raised:
        read_with_retries(failing(6, TimeoutError("silent")), "00000.tar")
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert not isinstance(raised.value, (ValueError, OSError))
    assert sum(waits) == 31


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: type(error).__name__)
def test_other_errors_are_raised_at_once(waits: list[float], error: Exception) -> None:
    assert not is_transient(error)
    with pytest.raises(type(error)):
        read_with_retries(failing(1, error), "00000.tar")
    assert waits == []
