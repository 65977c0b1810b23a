"""A run as workers of Ray Train, on the cluster that a job was submitted to. Ray is imported only
here.

Ray starts the workers, gives them torchrun's variables and joins them in a process group; each then
calls `main`. Where a worker or a node is lost, Ray starts all workers again,
and they resume from the newest checkpoint. Stop signals do not reach Ray's workers: what
`checkpoint_every` says saves such a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from clipmill.manifests import console, disk, ray_runtime

SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
RESTARTS = 3  # of a run, after workers were lost
logger = logging.getLogger(__name__)


def _storage(out: str) -> dict[str, Any]:
    """Where Ray Train keeps its own state: in the folder of the run.

    An object store is written by our filesystem: pyarrow's puts an object of the name `RUN/` for
    each folder, which some stores refuse.
    """
    if not disk.is_url(out):
        return {"storage_path": disk.join(out, "ray")}
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    filesystem, name = disk.filesystem(disk.join(out, "ray"))
    return {
        "storage_path": name,
        "storage_filesystem": PyFileSystem(FSSpecHandler(filesystem)),
    }


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has an IPv4 address; None where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no such address
                answer = fcntl.ioctl(s.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _choose_interface() -> None:
    """Let gloo listen where the other nodes find this one.

    It asks for the address of the host name otherwise, which is often 127.0.1.1, or none at all,
    and then it listens on loopback.
    """
    import ray

    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _torch_config() -> Any:
    """Ray's own setup of the process group, after each worker has chosen its interface."""
    from ray.train.torch import TorchConfig

    base: Any = TorchConfig().backend_cls

    class Backend(base):  # type: ignore[misc]
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(_choose_interface)
            super().on_start(worker_group, backend_config)

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return Backend

    return Config()


def run_unless_failed(
    main: Callable[[list[str]], int], arguments: Sequence[str], failed: str
) -> None:
    """What a worker does, also when Ray starts it again.

    A run that failed by itself (status 2 or 3) leaves `failed`, and is not tried again: it would
    fail again. RuntimeError where it fails or has failed.
    """
    if disk.exists(failed):
        raise RuntimeError("the run has failed and is not started again")
    if status := main(list(arguments)):
        if status in (console.EXIT_MISTAKE, console.EXIT_INCOMPLETE):
            disk.write_json(failed, {"status": status})
        raise RuntimeError(f"a worker ended with status {status}")


def start(
    main: Callable[[list[str]], int], arguments: Sequence[str], out: str, workers: int
) -> int:
    """`main(arguments)` on `workers` workers. 0, or 3 where one of them failed; its own message
    says why.

    ValueError where Ray Train is not installed, or no cluster is named by RAY_ADDRESS.
    """
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    if not ray_runtime.is_connected() and not os.environ.get("RAY_ADDRESS"):
        raise ValueError(
            "--ray joins the cluster of a `ray job submit`, or of RAY_ADDRESS, and there is none;"
            " leave --ray out to train on this machine"
        )
    try:
        ray_runtime.connect(log_to_driver=True)
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise ValueError(
            f"--ray needs Ray Train, which cannot be imported ({error}); pip install 'ray[train]'"
        ) from error
    has_gpus = bool(ray.cluster_resources().get("GPU"))
    failed = disk.join(out, "ray", "failed.json")
    disk.remove(failed)

    def run_worker(_: object) -> None:
        run_unless_failed(main, arguments, failed)

    trainer = TorchTrainer(
        run_worker,
        train_loop_config={},
        torch_config=_torch_config(),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=has_gpus),
        run_config=RunConfig(
            name="workers", failure_config=FailureConfig(max_failures=RESTARTS), **_storage(out)
        ),
    )
    try:
        trainer.fit()
    except (TrainingFailedError, ray.exceptions.RayError) as error:
        logger.error("%s", " ".join(str(error).split())[:300])
        return console.EXIT_INCOMPLETE
    return 0
