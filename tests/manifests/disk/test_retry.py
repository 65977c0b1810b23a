"""Which errors pass by themselves, and how often an operation is tried again."""

from __future__ import annotations

import errno
from typing import Any

import aiohttp
import pytest

from clipmill.manifests import disk
from clipmill.manifests.disk import files


def answered(status: int, code: str = "") -> OSError:
    """An error as s3fs raises it: an OSError from a response."""
    cause = RuntimeError(code)
    cause.response = {  # type: ignore[attr-defined]
        "Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status},
    }  # fmt: skip
    error = OSError(errno.EINVAL, code)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        answered(500), answered(503, "SlowDown"), answered(429), answered(408),
        answered(409, "ConditionalRequestConflict"), TimeoutError(), ConnectionResetError(),
        OSError(errno.EIO, "x"), OSError(errno.EBUSY, "x"), OSError(errno.ESTALE, "x"),
        OSError(errno.EAGAIN, "x"), aiohttp.ServerDisconnectedError(),
    ],
)  # fmt: skip
def test_errors_that_pass(error: Exception) -> None:
    assert disk.is_transient(error)


def test_what_was_given_up_is_not_tried_again_under_another_error() -> None:
    given_up, error = OSError(errno.EHOSTDOWN, "x"), ValueError("x")
    given_up.__cause__, error.__cause__ = TimeoutError(), given_up
    assert not disk.is_transient(given_up)
    assert not disk.is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        answered(400), answered(403, "AccessDenied"), answered(404), answered(412), answered(409),
        FileNotFoundError(), FileExistsError(), PermissionError(errno.EACCES, "x"),
        OSError(errno.ENOSPC, "x"), ValueError("x"), KeyError("x"),
    ],
)  # fmt: skip
def test_errors_that_stay(error: Exception) -> None:
    assert not disk.is_transient(error)


@pytest.mark.parametrize(
    ("errors", "also"),
    [([answered(503), TimeoutError(), ConnectionResetError()], None), ([answered(412)], 412)],
)
def test_an_operation_is_tried_again_with_longer_pauses(
    errors: list[Exception], also: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(files.time, "sleep", slept.append)
    left = list(errors)

    def operation() -> str:
        if left:
            raise left.pop()
        return "done"

    assert disk.retried(operation, "s3://b/x", also=also) == "done"
    assert len(slept) == len(errors)
    for pause, longest in zip(slept, (0.2, 0.4, 0.8), strict=False):
        assert longest / 2 <= pause <= longest
    left.append(answered(404))
    with pytest.raises(OSError, match="Errno"):
        disk.retried(operation, "s3://b/x", also=412)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError("The key"), r"No such file or directory: 's3://b/x'"),
        (PermissionError("no"), r"Permission denied: 's3://b/x'"),
        (answered(410, "Gone"), r"OSError: .*Gone: 's3://b/x'"),
        (answered(400, "BadDigest"), r"OSError: .*BadDigest; set AWS_.*: 's3://b/x'"),
        (ValueError("y"), r"^y$"),
        (FileNotFoundError(2, "none", "other"), r"none: 'other'"),
    ],
)
def test_an_error_of_a_store_names_the_object(error: Exception, message: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=message):
        disk.retried(fail, "s3://b/x")


def test_the_last_error_is_raised_after_a_minute_and_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls = [0.0], []
    monkeypatch.setattr(files.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])

    def failing(error: Exception) -> Any:
        calls.append(error)
        raise error

    with pytest.raises(TimeoutError):
        disk.retried(lambda: failing(TimeoutError()), "s3://b/x")
    assert 30 < now[0] <= files.RETRY_S
    assert len(calls) > 8
    calls.clear()
    with pytest.raises(PermissionError):
        disk.retried(lambda: failing(PermissionError()), "s3://b/x")
    assert len(calls) == 1
