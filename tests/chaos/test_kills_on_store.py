"""Builds of a pool on an object store, killed at every request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import chaos_pools, s3_server
from tests.support.forked_commands import CommandServer
from tests.support.s3_server import FaultyProxy
from tests.support.trials import some

pytest.importorskip("localbucket")
pytest.importorskip("s3fs")
pytestmark = pytest.mark.slow
IN_SAMPLE = 1  # requests


def test_a_build_that_is_killed_at_any_request_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, pid_file = tmp_path / "inputs", tmp_path / "pid"
    chaos_pools.write_inputs(inputs)
    with s3_server.s3_server(tmp_path) as url:
        proxy = FaultyProxy(url)
        for name, value in s3_server.s3_variables(proxy.url).items():
            monkeypatch.setenv(name, value)
        proxy.pid_file = pid_file
        with CommandServer() as server:

            def build(pool: str) -> str:
                ended = server.try_to(chaos_pools.build_on_store, str(inputs), pool, str(pid_file))
                if ended.watched.outcome == "exit 0":
                    assert ended.value == 0, ended.output
                return ended.watched.outcome

            assert build("s3://pools/first") == "exit 0"  # the bucket is probed once
            proxy.fail_at(0, "503")
            assert build("s3://pools/whole") == "exit 0"
            total = len(proxy.requests)
            expected = server.run(chaos_pools.look_at_store, "s3://pools/whole")
            assert expected["problems"] == []
            every = [(n, how) for n in range(1, total + 1) for how in s3_server.KILLS]
            killed = 0
            for n, how in some(every, "store", IN_SAMPLE):
                pool = f"s3://pools/{how}-{n}"
                proxy.fail_at(n, how)
                outcome = build(pool)
                request, killed = proxy.failed, killed + (outcome == "exit -9")
                proxy.fail_at(0, "503")
                assert outcome in ("exit -9", "exit 0"), (n, how, outcome)
                assert build(pool) == "exit 0", (n, how, request)
                assert server.run(chaos_pools.look_at_store, pool) == expected, (n, how, request)
        proxy.close()
    points = len(some(every, "store", IN_SAMPLE))
    print(json.dumps({"requests": total, "points": points, "killed": killed}))
    assert killed >= 0.9 * points
