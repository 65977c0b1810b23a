from __future__ import annotations

import signal
import sys

import pytest

from train.parallel import process_group


def test_ranks_are_started_with_what_they_need_to_find_each_other(tmp_path):
    code = (
        "import os, sys\n"
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'GLOO_SOCKET_IFNAME']\n"
        "assert os.path.isdir(os.path.dirname(os.environ['CLIPMILL_STORE']))\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for "
        "n in names))\n"
    )
    assert process_group.launch_ranks([sys.executable, "-c", code], 3) == 0
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [
        "0 0 3 lo",
        "1 1 3 lo",
        "2 2 3 lo",
    ]


def test_a_rank_that_fails_ends_the_others(monkeypatch):
    monkeypatch.setattr(process_group, "GRACE_S", 0.2)
    code = "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    assert process_group.launch_ranks([sys.executable, "-c", code], 2) == 7


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_reaches_every_rank(number):
    """SIGHUP of a closed terminal comes twice, and the second kills no rank."""
    again = f"os.kill(os.getppid(), {int(number)})" if number == signal.SIGHUP else "pass"
    code = (
        "import os, signal, sys, time\n"
        f"def stop(*_): {again}; time.sleep(0.3); sys.exit(75)\n"
        f"signal.signal({int(number)}, stop)\n"
        "if os.environ['RANK'] == '0':\n"
        f"    time.sleep(1); os.kill(os.getppid(), {int(number)})\n"
        "time.sleep(60)"
    )
    assert process_group.launch_ranks([sys.executable, "-c", code], 2) == 75


def test_a_launcher_under_nohup_ignores_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
        assert process_group.launch_ranks([sys.executable, "-c", code], 1) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
