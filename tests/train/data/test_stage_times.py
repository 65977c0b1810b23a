from __future__ import annotations

import threading
import time

from train.data.damage import StageTimes


def test_work_and_waiting_are_told_apart_over_threads() -> None:
    times = StageTimes()

    def work(seconds: float) -> float:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return seconds

    threads = [threading.Thread(target=times.timed("work", work), args=(0.02,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.timed("wait", time.sleep)(0.05)
    assert 0.04 <= times.cpu_s["work"] < 0.08
    assert times.wall_s["wait"] >= 0.05
    assert times.cpu_s["wait"] < 0.04
    times.clear()
    assert not times.cpu_s
