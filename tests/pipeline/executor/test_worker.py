"""A stage names a function that a worker can import, and a worker's answers are plain text."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pytest

from pipeline.executor.tickets import (
    Stage,
    Ticket,
    Work,
    Worker,
    check_ready,
    error_line,
    ticket_json,
)


def factory(config: dict[str, Any]) -> Work:
    """Returns the payload and the config of a ticket."""

    def work(ticket: Ticket) -> dict[str, Any]:
        return {"payload": ticket.payload, "config": config}

    return work


class Failing:
    """A class is a factory too."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        raise OSError(f"no space left for {ticket.id}")


class Refusing(Failing):
    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        raise ValueError(f"{ticket.id} is cut off")


def worker_of(stage: Stage) -> Worker:
    worker = Worker(*Worker.arguments(stage))
    check_ready(stage, worker.ready())
    return worker


def test_an_error_is_one_line_with_the_line_of_our_code() -> None:
    worker = worker_of(Stage(name="s", work=Failing))
    kind, text = worker.run(ticket_json(Ticket(id="7", group="a")))
    assert kind == "raised"
    assert text.startswith("OSError: no space left for 7 (test_worker.py:")
    assert error_line(ValueError("the tar is cut off")) == "the tar is cut off"
    with pytest.raises(pa.ArrowInvalid) as invalid:
        pa.array(["x"]).cast(pa.int64())
    assert error_line(invalid.value).startswith("ArrowInvalid: ")


def test_a_mistake_is_logged_without_a_traceback_unless_one_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(Stage(name="s", work=Refusing))
    monkeypatch.delenv("CLIPMILL_TRACEBACK", raising=False)
    assert worker.run(ticket_json(Ticket(id="7", group="a"))) == ["raised", "7 is cut off"]
    assert not caplog.records
    monkeypatch.setenv("CLIPMILL_TRACEBACK", "1")
    worker.run(ticket_json(Ticket(id="7", group="a")))
    assert caplog.records[0].exc_info


def local_function() -> Any:
    def local(config: dict[str, Any]) -> Work:
        return factory(config)

    return local


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda _: factory({}), "<lambda>"),
        (local_function(), "local_function.<locals>.local"),
        (functools.partial(factory, {}), "partial"),
    ],
)
def test_a_function_that_no_worker_can_import_is_refused(work: Any, name: str) -> None:
    with pytest.raises(ValueError, match="which a worker cannot import; give a function") as error:
        Stage(name="fetch", work=work)
    assert str(error.value).startswith("stage fetch: work is ")
    assert name in str(error.value)


def test_a_function_of_the_script_that_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "__module__", "__main__")
    with pytest.raises(ValueError, match="factory of the script that runs, which a worker cannot"):
        Stage(name="fetch", work=factory)
