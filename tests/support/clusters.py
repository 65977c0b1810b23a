"""Ray clusters of a head and some nodes, an S3 server beside them, and jobs that are sent there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from clipmill.manifests.ray_runtime import free_ports
from tests.support.machines import Machine, laboratory
from tests.support.s3_server import BUCKET, PROGRAM, s3_variables

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_S = 600.0
TRIES = 4  # of starting Ray on a machine
OBJECT_STORE_BYTES = 80 * 2**20


def ray_environment() -> dict[str, str]:
    """The environment of every process of a cluster: a token, and nothing of this process's Ray."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "CLIPMILL_", "AWS_"))},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "600",
    }


@dataclass
class Cluster:
    """A running head, its nodes, and the environment that may send jobs."""

    head: Machine
    environment: dict[str, str]
    port: int
    dashboard_port: int
    head_cwd: str | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    words: dict[str, Sequence[str]] = field(default_factory=dict)  # of `ray`, by machine
    starts: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where jobs are sent, from the head."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def gcs_address(self) -> str:
        """What RAY_ADDRESS must be on the head to join."""
        return f"{self.head.address}:{self.port}"

    def start_job(self, words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """`ray job submit` of these words, in the background."""
        command = [str(BIN / "ray"), "job", "submit", "--address", self.address, *words]
        return self.head.start(command, self.environment, cwd=str(ROOT), log=log)

    def submit(
        self, *words: str, token: bool = True, seconds: float = 1200
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit` of these words, on the head."""
        environment = dict(self.environment)
        if not token:
            environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        command = [str(BIN / "ray"), "job", "submit", "--address", self.address, *words]
        return self.head.run(command, environment, cwd=str(ROOT), seconds=seconds)

    def start(self, machine: Machine, words: Sequence[str]) -> None:
        """`ray start` of these words on a machine."""
        self.words[machine.name] = words
        cwd = self.head_cwd if machine is self.head else None
        self.processes[machine.name] = start_ray(machine, words, self.environment, cwd)

    def add_node(self, machine: Machine, cpus: int = 1) -> None:
        """Start a raylet that joins the head."""
        words = ["start", f"--address={self.gcs_address}", "--block"]
        words += [f"--num-cpus={cpus}", f"--node-ip-address={machine.address}"]
        self.start(machine, words)

    def kill_raylet(self, machine: Machine) -> None:
        """Kill the raylet of a machine, and wait until its `ray start` has noticed."""
        code = (
            "import os, pathlib, signal, sys\n"
            "for folder in pathlib.Path('/proc').glob('[0-9]*'):\n"
            "    line = (folder / 'cmdline').read_bytes().decode()\n"
            "    if 'raylet/raylet' in line.split('\\0')[0] and sys.argv[1] in line:\n"
            "        os.kill(int(folder.name), signal.SIGKILL)\n"
        )
        done = machine.run(
            [str(BIN / "python"), "-c", code, f"{machine.folder}/ray"], self.environment
        )
        assert done.returncode == 0, done.stderr
        self.processes[machine.name].wait(60)

    def restart_ended(self, machine: Machine) -> None:
        """Start Ray again where it has ended: on a busy machine its parts wait for each other in
        vain. AssertionError after TRIES.
        """
        if self.processes[machine.name].poll() is None:
            return
        self.starts[machine.name] = self.starts.get(machine.name, 1) + 1
        assert self.starts[machine.name] <= TRIES, self.log(machine)
        self.start(machine, self.words[machine.name])

    def log(self, machine: Machine) -> str:
        """What the Ray of a machine printed."""
        return machine.run(["cat", f"{machine.folder}/ray.log"], self.environment).stdout

    def wait_for_nodes(self, machines: Sequence[Machine]) -> None:
        """Wait until the head and these nodes are alive, as a driver on the head sees them."""
        code = (
            "import ray, sys, time\n"
            "ray.init(logging_level='error', log_to_driver=False)\n"
            "while sum(n['Alive'] for n in ray.nodes()) < int(sys.argv[1]): time.sleep(0.3)\n"
        )
        words = [str(BIN / "python"), "-c", code, str(len(machines) + 1)]
        environment = {**self.environment, "RAY_ADDRESS": self.gcs_address}
        waiting = self.head.start(words, environment)
        until = time.monotonic() + START_S
        while waiting.poll() is None:
            for machine in machines:
                self.restart_ended(machine)
            assert time.monotonic() < until, self.log(self.head)
            time.sleep(0.3)
        assert waiting.returncode == 0, self.log(self.head)

    def close(self) -> None:
        """End all processes of Ray on machines without namespaces; the others end as a whole."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(5)  # it closes no earlier while an agent of a job is alive
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


AGENT_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
RAY_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import ray
from ray.scripts.scripts import main
from clipmill.manifests import ray_runtime
with ray_runtime.given_ports(ray):
    main()
"""


def start_ray(
    machine: Machine,
    words: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | None = None,
) -> subprocess.Popen[bytes]:
    """`ray start` in the foreground of a process, with small stores, its own folder, and ports that
    are given to its agents, as the product's own Ray has them.
    """
    words = [sys.executable, "-c", RAY_START, str(ROOT), *words, f"--temp-dir={machine.folder}/ray"]
    words += ["--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    words += [f"--{name}={port}" for name, port in zip(AGENT_PORTS, free_ports(4), strict=True)]
    line = 'exec "$@" > "$0" 2>&1'
    command = ["sh", "-c", line, f"{machine.folder}/ray.log", *words]
    return machine.start(command, environment, cwd=cwd)


def skip_without_ray_start() -> None:
    """Skip the test where the path of Python has a blank."""
    if " " in sys.executable:
        pytest.skip("`ray start` gives the path of Python to a shell without quotes")


@contextlib.contextmanager
def running_cluster(
    head: Machine,
    nodes: Sequence[Machine] = (),
    *,
    head_cpus: int = 0,
    node_cpus: int = 1,
    variables: Mapping[str, str] | None = None,
    head_cwd: str | None = None,
) -> Iterator[Cluster]:
    """A head that takes jobs, and a raylet on each node. `variables`: of all processes of Ray.

    head_cwd: the folder in which the head starts, and a job without a working directory of its own.
    """
    skip_without_ray_start()
    environment = {**ray_environment(), **(variables or {})}
    cluster = Cluster(head, environment, *free_ports(2), head_cwd)
    words = ["start", "--head", "--block", f"--port={cluster.port}", f"--num-cpus={head_cpus}"]
    words += [f"--node-ip-address={head.address}", "--include-dashboard=true"]
    words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={cluster.dashboard_port}"]
    try:
        cluster.start(head, words)
        _wait_for_jobs(cluster)
        for machine in nodes:
            cluster.add_node(machine, node_cpus)
        if nodes:
            cluster.wait_for_nodes(nodes)
        yield cluster
    finally:
        cluster.close()


def _wait_for_jobs(cluster: Cluster) -> None:
    """Wait until the head takes jobs: the dashboard answers, then an agent is there."""
    until = time.monotonic() + START_S
    while (done := cluster.submit("--no-wait", "--", "true")).returncode:
        cluster.restart_ended(cluster.head)
        assert time.monotonic() < until, done.stderr + cluster.log(cluster.head)
        time.sleep(1)


@dataclass
class Store:
    """An S3 server on a machine, with an empty bucket."""

    machine: Machine
    process: subprocess.Popen[Any]
    variables: dict[str, str]

    def count(self, prefix: str, ending: str) -> int:
        """Objects of the bucket below a prefix whose names end so; localbucket keeps each as a
        file.
        """
        find = ["find", f"{self.machine.folder}/objects/{BUCKET}/{prefix}", "-name", f"*{ending}"]
        return len(self.machine.run(find, dict(os.environ)).stdout.splitlines())

    def cut_off(self, machines: Sequence[Machine], seconds: float) -> None:
        """Keep these machines from reaching the store for so long: connections cannot be opened,
        and what is sent on open ones is lost. On the loopback network the server is stopped:
        connections open, and nothing answers.
        """
        cut = [machine for machine in machines if machine.holder]
        if not cut:
            os.killpg(self.process.pid, signal.SIGSTOP)
        for machine in cut:
            machine.run(["ip", "route", "add", "unreachable", self.machine.address], os.environ)
        time.sleep(seconds)
        for machine in cut:
            machine.run(["ip", "route", "del", "unreachable", self.machine.address], os.environ)
        if not cut:
            os.killpg(self.process.pid, signal.SIGCONT)


def start_store(machine: Machine) -> Store:
    """Start an S3 server on a machine; it ends with the machine."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    line = f'cd {machine.folder} && mkdir -p objects && exec "$@" > url 2> store.log'
    python = str(BIN / "python")
    words = [python, "-c", PROGRAM, f"{machine.folder}/objects", machine.address]
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
    return Store(machine, process, variables)


def main(argv: Sequence[str] | None = None) -> int:
    """A cluster of its own on this machine until Ctrl-C, and how to send jobs to it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.clusters", description=main.__doc__
    )
    parser.add_argument("--nodes", type=int, default=2, help="beside the head (default: 2)")
    parser.add_argument("--cpus", type=int, default=1, help="of each node (default: 1)")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    nodes = [f"node{number}" for number in range(1, args.nodes + 1)]
    with laboratory(["store", "head", *nodes]) as (store_machine, head, *machines):
        store = start_store(store_machine)
        with running_cluster(head, machines, node_cpus=args.cpus) as cluster:
            enter = shlex.join(head.command([], str(ROOT)))
            names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "PATH")
            variables = {name: cluster.environment[name] for name in names}
            variables["RAY_ADDRESS"] = cluster.address
            variables["STORE"] = json.dumps({"env_vars": store.variables})
            for name, value in variables.items():
                print(f"export {name}={shlex.quote(value)}")
            submit = 'ray job submit --working-dir . --runtime-env-json "$STORE" -- COMMAND'
            print(f"{enter} {submit}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
