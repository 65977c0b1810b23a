"""Ray clusters of a head and some nodes, an S3 server beside them, and jobs that are sent there."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.machines import Machine
from tests.support.s3_server import BUCKET, PROGRAMS, s3_variables

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_S = 120.0
OBJECT_STORE_BYTES = 80 * 2**20


def ray_environment() -> dict[str, str]:
    """The environment of every process of a cluster: a token, and nothing of this process's Ray."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "CLIPMILL_", "AWS_"))},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Cluster:
    """A running head, its nodes, and the environment that may send jobs."""

    head: Machine
    environment: dict[str, str]
    port: int
    dashboard_port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where jobs are sent, from the head."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def submit(
        self, *words: str, token: bool = True, seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit` of these words, on the head."""
        environment = dict(self.environment)
        if not token:
            environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        command = [str(BIN / "ray"), "job", "submit", "--address", self.address, *words]
        return self.head.run(command, environment, cwd=str(ROOT), seconds=seconds)

    def add_node(self, machine: Machine, cpus: int = 1) -> None:
        """Start a raylet that joins the head."""
        words = ["start", f"--address={self.head.address}:{self.port}", "--block"]
        words += [f"--num-cpus={cpus}", f"--node-ip-address={machine.address}"]
        self.processes[machine.name] = start_ray(machine, words, self.environment)

    def log(self, machine: Machine) -> str:
        """What the Ray of a machine printed."""
        return machine.run(["cat", f"{machine.folder}/ray.log"], self.environment).stdout

    def wait_for_nodes(self, count: int, seconds: float = START_S) -> None:
        """Wait until so many nodes are alive."""
        code = (
            "import ray, sys, time; ray.init(logging_level='error', log_to_driver=False)\n"
            f"until = time.time() + {seconds}\n"
            "def alive(): return sum(n['Alive'] for n in ray.nodes())\n"
            f"while alive() != {count} and time.time() < until: time.sleep(0.3)\n"
            f"sys.exit(alive() != {count})"
        )
        address = {"RAY_ADDRESS": f"{self.head.address}:{self.port}"}
        python = str(BIN / "python")
        done = self.head.run([python, "-c", code], {**self.environment, **address})
        assert done.returncode == 0, done.stdout + done.stderr + self.log(self.head)

    def close(self) -> None:
        """End all processes of Ray on machines without namespaces; the others end as a whole."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(5)  # it closes no earlier while an agent of a job is alive
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def start_ray(
    machine: Machine, words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """`ray start` in the foreground of a process, with small stores and its own folder."""
    words = [str(BIN / "ray"), *words, f"--temp-dir={machine.folder}/ray"]
    words += ["--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    words.append(f"--dashboard-agent-listen-port={free_port()}")
    line = 'exec "$@" > "$0" 2>&1'
    return machine.start(["sh", "-c", line, f"{machine.folder}/ray.log", *words], environment)


@contextlib.contextmanager
def running_cluster(
    head: Machine,
    nodes: Sequence[Machine] = (),
    *,
    head_cpus: int = 0,
    node_cpus: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A head that takes jobs, and a raylet on each node. `variables`: of all processes of Ray."""
    environment = {**ray_environment(), **(variables or {})}
    cluster = Cluster(head, environment, free_port(), free_port())
    words = ["start", "--head", "--block", f"--port={cluster.port}", f"--num-cpus={head_cpus}"]
    words += [f"--node-ip-address={head.address}", "--include-dashboard=true"]
    words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={cluster.dashboard_port}"]
    cluster.processes[head.name] = start_ray(head, words, environment)
    try:
        _wait_for_jobs(cluster)
        for machine in nodes:
            cluster.add_node(machine, node_cpus)
        if nodes:
            cluster.wait_for_nodes(1 + len(nodes))
        yield cluster
    finally:
        cluster.close()


def _wait_for_jobs(cluster: Cluster) -> None:
    """Wait until the head takes jobs: the dashboard answers, then an agent is there."""
    until = time.monotonic() + START_S
    while (done := cluster.submit("--no-wait", "--", "true")).returncode:
        assert cluster.processes[cluster.head.name].poll() is None, cluster.log(cluster.head)
        assert time.monotonic() < until, done.stderr + cluster.log(cluster.head)
        time.sleep(1)


@dataclass
class Store:
    """An S3 server on a machine, with an empty bucket."""

    process: subprocess.Popen[Any]
    variables: dict[str, str]

    def pause(self, seconds: float) -> None:
        """Stop the server for so long: connections open, and nothing answers."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(self.process.pid, signal.SIGCONT)


def start_store(machine: Machine, program: str = "localbucket") -> Store:
    """Start an S3 server on a machine; it ends with the machine."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    line = f'cd {machine.folder} && mkdir -p objects && exec "$@" > url 2> store.log'
    code = PROGRAMS[program]
    python = str(BIN / "python")
    words = [python, "-c", code, f"{machine.folder}/objects", machine.address]
    process = machine.start(["sh", "-c", line, "sh", *words], environment)
    until = time.monotonic() + START_S
    while not (url := machine.run(["cat", f"{machine.folder}/url"], environment).stdout.strip()):
        assert process.poll() is None, machine.run(["cat", "store.log"], environment).stdout
        assert time.monotonic() < until, "the store did not start"
        time.sleep(0.1)
    variables = s3_variables(url)
    make = f"import s3fs; s3fs.S3FileSystem().mkdir({BUCKET!r})"
    done = machine.run([python, "-W", "ignore", "-c", make], {**environment, **variables})
    assert done.returncode == 0, done.stderr
    return Store(process, variables)
