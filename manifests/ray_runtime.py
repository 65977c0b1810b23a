"""The connection of all packages to Ray: a cluster that exists, or one inside this process.

Ray is imported only when a connection is needed, so that everything else works without it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import json
import logging
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

from clipmill import ROOT

OBJECT_STORE_BYTES = 128 * 2**20  # what crosses Ray are tickets and answers of a few hundred bytes

# Of an embedded Ray: on a busy machine its processes wait for each other in vain
START_TRIES = 3
RAYLET_WAIT_S = 120  # of a raylet for its agents, and of the driver for it
# A raylet waits 15 s, whatever is set, for ports that its agents choose themselves, and aborts; it
# does not wait for those that it is given. Ray's workers take ports below these, connections the
# ones above.
GIVEN_PORTS = range(20000, 32768)
LISTEN_PORT = re.compile(r"--listen-port=([1-9]\d*)")  # in a raylet's words for an agent

# The address of a Ray that one command embeds and those that it starts join
ONE_MACHINE = "CLIPMILL_RAY_ONE_MACHINE"

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # what `ray job submit` gives to its driver
MONITOR_STATUS = b"__autoscaling_status"  # a key of Ray, as `ray status` reads it
UNTYPED_NODE = re.compile(r"node_[0-9a-f]{56}")

Engine = Literal["auto", "inline", "ray"]
logger = logging.getLogger(__name__)
_embedded_folder: str | None = None  # of the Ray that this process started


def connect(cpus: int | None = None, *, log_to_driver: bool = False) -> None:
    """Join the cluster named by RAY_ADDRESS, or start a Ray inside this process.

    `ray job submit` sets RAY_ADDRESS. The embedded Ray has `cpus` CPUs (default: those of this
    machine) and no dashboard, listens on 127.0.0.1 and has a temporary folder of its own, so that
    it does not disturb another Ray on the machine. With `log_to_driver`, the lines of the workers
    appear in this process. ValueError where Ray does not start.
    """
    join_cluster = bool(os.environ.get("RAY_ADDRESS"))
    _set_environment(join_cluster)
    import ray

    if ray.is_initialized():
        return
    environment: dict[str, Any] = {"env_vars": _worker_variables()}
    if shlex.quote(sys.executable) != sys.executable:
        environment["py_executable"] = shlex.quote(sys.executable)  # Ray hands it to a shell
    settings: dict[str, Any] = {
        "runtime_env": environment,
        "log_to_driver": log_to_driver,
        "logging_level": "error",
    }
    if join_cluster:
        ray.init(**settings)
        return
    atexit.register(disconnect)
    # the variable counts when Ray is imported, and somebody may have imported it before
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    settings |= {
        "address": "local",
        "num_cpus": cpus or os.cpu_count(),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    _start_embedded(ray, settings)


def _start_embedded(ray: Any, settings: dict[str, Any]) -> None:
    """Start a Ray inside this process. ValueError where it does not start in START_TRIES tries."""
    global _embedded_folder
    for tries in range(1, START_TRIES + 1):
        # in /tmp: the path of a socket has at most 107 characters
        folder = tempfile.mkdtemp(prefix="mill-", dir="/tmp")
        try:
            # a Ray that cannot be given ports starts without, in the last try
            ports = given_ports(ray) if tries < START_TRIES else nullcontext()
            with _without_sighup(), ports as export_port:
                ray.init(**settings, _temp_dir=folder, _metrics_export_port=export_port)
        except Exception as error:  # Ray has no class for it
            _remove_failed(ray, folder)
            message = " ".join(str(error).split())
            logger.warning("Ray did not start in try %d of %d: %s", tries, START_TRIES, message)
            if tries == START_TRIES:
                raise ValueError(
                    f"Ray did not start in {tries} tries, maybe because this machine is busy "
                    f"({message}); run the command again later, or without Ray: --engine inline"
                ) from error
        except BaseException:
            _remove_failed(ray, folder)
            raise
        else:
            _embedded_folder = folder
            return


def _remove_failed(ray: Any, folder: str) -> None:
    """Remove what a start that failed has left: its processes, whose words name its folder, and the
    folder. Ray itself ends them with this process, after other tries have started more.
    """
    with suppress(Exception):
        ray.shutdown()
    for process in gc.get_objects():  # Ray gives away none of them; unwaited they warn at their end
        if issubclass(type(process), subprocess.Popen) and folder in str(process.args):
            process.kill()
            process.wait()
    for words in Path("/proc").glob("[0-9]*/cmdline"):  # what those have started
        with suppress(OSError):  # it has ended, or is another user's
            if folder.encode() in words.read_bytes():
                os.kill(int(words.parent.name), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _without_sighup() -> Iterator[None]:
    """Processes that the block starts never get SIGHUP, as Ray itself does with SIGINT. A closed
    terminal sends it to all of them: they are ended in order by this process, which needs them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def given_ports(ray: Any) -> Iterator[int]:
    """The Ray that the block starts gives its agents ports. `ray.init` has no options for them, but
    for the port of the metrics, which this gives to its caller; `ray start` has options for all,
    and does not tell the raylet one of them.
    """
    parameter, services = ray._private.parameter, ray._private.services
    new_parameters, start_process = parameter.RayParams, services.start_ray_process
    export_port, metrics_port, environment_port, listen_port = free_ports(4)

    def start(command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
        if process_type == "raylet" and (told := LISTEN_PORT.search(" ".join(command))):
            command = [*command, f"--dashboard_agent_listen_port={told[1]}"]
        return start_process(command, process_type, *args, **options)

    parameter.RayParams = functools.partial(
        new_parameters,
        metrics_agent_port=metrics_port,
        runtime_env_agent_port=environment_port,
        dashboard_agent_listen_port=listen_port,
    )
    services.start_ray_process = start
    try:
        yield export_port
    finally:
        parameter.RayParams, services.start_ray_process = new_parameters, start_process


def free_ports(count: int) -> list[int]:
    """Ports of GIVEN_PORTS on 127.0.0.1 that nobody has now."""
    free: list[int] = []
    for port in random.SystemRandom().sample(GIVEN_PORTS, len(GIVEN_PORTS)):
        with socket.socket() as probe, suppress(OSError):  # it is taken
            probe.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            break
    return free


def _set_environment(join_cluster: bool) -> None:
    """Variables that Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    # Ray's coming default; without it Ray warns
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not join_cluster:
        os.environ.setdefault("RAY_raylet_start_wait_time_s", str(RAYLET_WAIT_S))
        os.environ.setdefault("RAY_agent_register_timeout_ms", str(1000 * RAYLET_WAIT_S))
        # keeps its servers on 127.0.0.1, as Ray does where a firewall asks about new servers
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _worker_variables() -> dict[str, str]:
    """Variables of Ray's workers: the project's path, and threads of OpenMP that do not spin while
    they wait, which beside other work makes training ten times slower. Those of the job count more;
    Ray refuses a variable that both set.
    """
    policy = os.environ.get("OMP_WAIT_POLICY", "passive")
    variables = {"PYTHONPATH": ROOT, "OMP_WAIT_POLICY": policy}
    job = json.loads(os.environ.get(JOB_CONFIG, "{}"))
    of_job = (job.get("runtime_env") or {}).get("env_vars") or {}
    return {name: value for name, value in variables.items() if name not in of_job}


def is_there() -> bool:
    """Whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def settled(engine: Engine) -> Engine:
    """The engine; `ray` for `auto` where this process was given a Ray, as in a job of `ray job
    submit`, or has joined one.
    """
    if engine != "auto":
        return engine
    is_given = os.environ.get("RAY_ADDRESS") or os.environ.get(JOB_CONFIG)
    has_joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return "ray" if is_given or has_joined else engine


def is_embedded() -> bool:
    """Whether this process runs on a Ray that it started itself."""
    return _embedded_folder is not None


def is_connected() -> bool:
    """Whether this process runs on any Ray, by whoever started it."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def is_one_machine() -> bool:
    """Whether Ray has this machine only and cannot grow: this process embeds it, or joins a Ray
    that another command embeds.
    """
    address = os.environ.get("RAY_ADDRESS")
    return is_embedded() or (bool(address) and address == os.environ.get(ONE_MACHINE))


def has_autoscaler() -> bool:
    """Whether the cluster that was joined may start nodes by itself.

    The monitor of every head writes its status some seconds after its start. Without an autoscaler
    each node has a type of its own, made of its id. True where there is no status, or one of
    another form.
    """
    from ray.experimental import internal_kv

    text = internal_kv._internal_kv_get(MONITOR_STATUS)
    report = json.loads(text or "{}").get("autoscaler_report") or {}
    types = [*(report.get("active_nodes") or ()), *(report.get("idle_nodes") or ())]
    return not types or not all(UNTYPED_NODE.fullmatch(name) for name in types)


def disconnect() -> None:
    """Shut down the Ray that `connect` started. A cluster that was joined keeps running."""
    global _embedded_folder
    if _embedded_folder is None:
        return
    import ray

    ray.shutdown()
    atexit.unregister(disconnect)
    shutil.rmtree(_embedded_folder, ignore_errors=True)
    _embedded_folder = None


def leave() -> None:
    """As `disconnect`; this process also leaves a cluster that it has joined."""
    disconnect()
    if is_connected():
        sys.modules["ray"].shutdown()
