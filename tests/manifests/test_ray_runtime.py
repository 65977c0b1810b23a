"""Joining a cluster or starting a Ray in this process. The cluster itself is tested with stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clipmill.manifests import ray_runtime

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("address", "embedded_elsewhere", "one_machine"),
    [
        (None, None, False),
        (None, "127.0.0.1:6000", False),  # left over: that Ray is not joined
        ("127.0.0.1:6000", None, False),
        ("10.0.0.1:6379", "127.0.0.1:6000", False),
        ("127.0.0.1:6000", "127.0.0.1:6000", True),
    ],
)
def test_a_ray_that_another_command_embeds_is_one_machine(
    address: str | None,
    embedded_elsewhere: str | None,
    one_machine: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"RAY_ADDRESS": address, ray_runtime.ONE_MACHINE: embedded_elsewhere}
    for name, value in values.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert ray_runtime.is_one_machine() == one_machine
    monkeypatch.setattr(ray_runtime, "_embedded_folder", "/tmp/mill-test")
    assert ray_runtime.is_one_machine()


NODE = "node_" + "3f" * 28


@pytest.mark.parametrize(
    ("status", "autoscaler"),
    [
        (None, True),  # the monitor has not written yet, or it is another one
        ({"time": 1.0}, True),
        ({"autoscaler_report": {"active_nodes": {NODE: 1, "node_" + "0a" * 28: 1}}}, False),
        ({"autoscaler_report": {"active_nodes": {}, "idle_nodes": {NODE: 1}}}, False),
        ({"autoscaler_report": {"active_nodes": {"head": 1, "fetcher": 3}}}, True),
        ({"autoscaler_report": {"active_nodes": {"node_head": 1}, "idle_nodes": None}}, True),
    ],
)
def test_a_head_without_an_autoscaler_says_so(
    status: dict[str, Any] | None, autoscaler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = pytest.importorskip("ray.experimental.internal_kv")
    text = None if status is None else json.dumps(status).encode()
    values = {ray_runtime.MONITOR_STATUS: text}
    monkeypatch.setattr(kv, "_internal_kv_get", values.__getitem__)
    assert ray_runtime.has_autoscaler() is autoscaler


def run_alone(python: str, code: str, environment: dict[str, str]) -> None:
    """Run a program that prints `done` at its end."""
    done = subprocess.run(
        [python, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.ray
@pytest.mark.parametrize(
    ("imported", "prefix"),
    [("", ""), ("import ray", ""), ("", "with a blank")],  # imported before the variables are set
)
def test_the_embedded_ray_listens_on_loopback_and_leaves_no_folder(
    imported: str, prefix: str, tmp_path: Path
) -> None:
    python = Path(sys.executable)
    if prefix:
        (tmp_path / prefix).symlink_to(sys.prefix)
        python = tmp_path / prefix / python.relative_to(sys.prefix)
    code = (
        f"{imported}\n"
        + """
import os
from clipmill.manifests import ray_runtime
ray_runtime.connect(cpus=1)
import ray
assert ray_runtime.is_embedded()
assert ray.cluster_resources()["CPU"] == 1
assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
policy = ray.remote(lambda: os.environ["OMP_WAIT_POLICY"])
assert ray.get(policy.remote()) == "passive"
folder = ray_runtime._embedded_folder
ray_runtime.connect()
assert ray_runtime._embedded_folder == folder
ray_runtime.disconnect()
assert not os.path.exists(folder)
print("done")
"""
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "OMP_WAIT"))}
    run_alone(str(python), code, environment)


SLOW_AGENTS = """
import sys, time
if "agent.py" in " ".join(sys.orig_argv):
    time.sleep(18)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_agents_of_a_busy_machine_may_be_slower_than_a_raylet_waits_for_ports(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENTS)
    code = """
from clipmill.manifests import ray_runtime
ray_runtime.connect(cpus=1)
import ray
assert ray.get(ray.remote(lambda: 1).remote()) == 1
node = ray._private.worker._global_node
ports = [node.metrics_agent_port, node.metrics_export_port]
ports += [node.dashboard_agent_listen_port, node.runtime_env_agent_port]
assert len(set(ports)) == 4 and set(ports) <= set(ray_runtime.GIVEN_PORTS), ports
ray_runtime.disconnect()
print("done")
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    run_alone(sys.executable, code, environment)


@pytest.mark.parametrize(
    ("of_job", "names"),
    [
        (None, {"PYTHONPATH", "OMP_WAIT_POLICY"}),
        ({"runtime_env": {"env_vars": {"OMP_WAIT_POLICY": "active"}}}, {"PYTHONPATH"}),
        ({"runtime_env": {"env_vars": {"PYTHONPATH": "x", "A": "b"}}}, {"OMP_WAIT_POLICY"}),
    ],
)
def test_a_variable_of_the_job_is_not_set_again(
    of_job: Any, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ray_runtime.JOB_CONFIG, raising=False)
    if of_job is not None:
        monkeypatch.setenv(ray_runtime.JOB_CONFIG, json.dumps(of_job))
    assert set(ray_runtime._worker_variables()) == names


def test_a_cluster_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    joined: list[dict[str, object]] = []

    def refuse(**settings: object) -> None:
        joined.append(settings)
        raise ConnectionError("no cluster at 127.0.0.1:1")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConnectionError, match="no cluster"):
        ray_runtime.connect()
    assert "address" not in joined[0]
    assert not ray_runtime.is_embedded()


class SlowRay:
    """Takes the place of ray: the first tries to start end as on a busy machine, when they have
    started a process. Their objects are kept, as Ray keeps them.
    """

    _private = SimpleNamespace(
        ray_constants=SimpleNamespace(),
        parameter=SimpleNamespace(RayParams=dict),
        services=SimpleNamespace(start_ray_process=None),
    )

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.folders: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.was_shut_down = False

    def is_initialized(self) -> bool:
        return False

    def init(self, **settings: Any) -> None:
        self.folders.append(settings["_temp_dir"])
        if len(self.folders) <= self.failures:
            command = [sys.executable, "-c", "import time; time.sleep(600)", self.folders[-1]]
            self.processes.append(subprocess.Popen(command))
            raise Exception("The current node timed out\nduring startup.")

    def shutdown(self) -> None:
        self.was_shut_down = True


@pytest.mark.parametrize("failures", [ray_runtime.START_TRIES - 1, ray_runtime.START_TRIES])
def test_a_ray_that_does_not_start_on_a_busy_machine_is_started_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = SlowRay(failures)
    monkeypatch.setitem(sys.modules, "ray", ray)
    starts = failures < ray_runtime.START_TRIES
    if starts:
        ray_runtime.connect()
    else:
        with pytest.raises(
            ValueError, match=r"not start in 3 tries.*\(The current node timed out "
        ):
            ray_runtime.connect()
    assert ray_runtime.is_embedded() == starts
    assert [process.returncode for process in ray.processes] == [-signal.SIGKILL] * failures
    assert [Path(folder).exists() for folder in ray.folders] == [False, False, starts]
    ray_runtime.disconnect()
    assert ray.was_shut_down
    assert not Path(ray.folders[-1]).exists()
