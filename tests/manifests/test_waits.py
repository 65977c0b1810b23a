"""Waits that do not end: names of what threads do, signs of life, when a line or an end is due."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from clipmill.manifests import waits
from clipmill.manifests.waits import Life, Stillness


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_at(stillness: Stillness, clock: Clock, looks: list[tuple[float, object]]) -> list[float]:
    """When a line was due; `looks`: (seconds, sign)."""
    due = []
    for now, sign in looks:
        clock.now = now
        stillness.look(sign)
        if stillness.is_line_due():
            due.append(now)
    return due


def test_a_line_is_due_after_a_minute_and_then_after_twice_as_long() -> None:
    clock = Clock()
    still = Stillness(1800.0, clock=clock)
    looks: list[tuple[float, object]] = [(float(s), "same") for s in range(1801)]
    assert lines_at(still, clock, looks) == [60.0, 120.0, 240.0, 480.0, 960.0]
    assert still.is_over
    assert lines_at(still, clock, [(1801.0, "new"), (1802.0, "new")]) == []
    assert not still.is_over
    later: list[tuple[float, object]] = [(float(s), "new") for s in range(1803, 1900)]
    assert lines_at(still, clock, later) == [1861.0]


def test_a_short_limit_has_its_first_line_before_its_end() -> None:
    clock = Clock()
    looks: list[tuple[float, object]] = [(float(s), 0) for s in range(9)]
    assert lines_at(Stillness(8.0, clock=clock), clock, looks) == [2.0, 4.0, 8.0]


def test_a_process_that_was_stopped_and_a_machine_that_slept_have_not_waited() -> None:
    clock = Clock()
    still = Stillness(1800.0, clock=clock)
    assert lines_at(still, clock, [(1.0, 0), (2.0, 0), (7200.0, 0), (7201.0, 0)]) == []
    assert still.seconds == pytest.approx(1 + waits.MOST_S + 1)


def test_what_threads_do_is_named_the_longest_first() -> None:
    release, inside = threading.Event(), threading.Event()

    def wait() -> None:
        with waits.doing("outer"), waits.doing("image 7 in web.tar"):
            inside.set()
            release.wait()

    begun, ended = waits.begun_and_ended()
    thread = threading.Thread(target=wait, daemon=True)
    with waits.doing("the batch"):
        thread.start()
        inside.wait()
        here, there = str(waits.longest()).split("; ")
        assert here.startswith("the batch (")
        assert re.fullmatch(r"image 7 in web.tar \(test_waits.py:\d+ in wait\)", there)
        release.set()
        thread.join()
    assert waits.longest() is None
    assert waits.begun_and_ended() == (begun + 3, ended + 3)
    with pytest.raises(KeyError), waits.doing("x"):
        raise KeyError
    assert waits.longest() is None


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    """Each look is the end of a window."""
    monkeypatch.setattr(waits, "WINDOW_S", 0.0)
    monkeypatch.setattr(waits, "CPU_S", 0.25)
    life = Life()
    life.look()
    assert [life.look() for _ in range(5)] == [life.look()] * 5, "the looks cost too much"
    return life


def test_cpu_and_bytes_are_signs_of_life(life: Life, tmp_path) -> None:  # type: ignore[no-untyped-def]
    before = life.look()
    began = time.process_time()
    while time.process_time() - began < 0.3:
        pass
    assert life.look() == before + 1
    (tmp_path / "file").write_bytes(bytes(2 * waits.MOVED_BYTES))
    assert life.look() == before + 2
    assert life.look() == before + 2


def test_bytes_of_a_connection_are_a_sign_of_life(life: Life) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            life.look()
            before = life.look()
            sender = threading.Thread(target=client.sendall, args=[bytes(2 * waits.MOVED_BYTES)])
            sender.start()
            received = 0
            while received < 2 * waits.MOVED_BYTES:
                received += len(accepted.recv(2**16))
            sender.join()
            assert life.look() == before + 1


def test_the_work_of_a_child_is_a_sign_of_life(life: Life) -> None:
    code = "import time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        before = life.look()
        child.stdout.readline()
        assert life.look() == before + 1
        assert life.look() == before + 1
        child.kill()


def test_a_look_that_raises_ends_the_watch_and_not_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "LOOK_S", 0.01)
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise RuntimeError("no /proc")

    with waits.watched(look):
        assert looked.wait(900)
        ends = time.monotonic() + 900
        while "not watched any more" not in caplog.text and time.monotonic() < ends:
            time.sleep(0.01)
    assert caplog.text.count("waits are not watched any more; the work goes on") == 1


def test_a_process_ends_whatever_its_threads_wait_for() -> None:
    code = """
import threading
from clipmill.manifests import waits
threading.Thread(target=threading.Event().wait).start()
waits.end_now(3, "rank 0 has waited")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (3, "\nerror: rank 0 has waited\n")
