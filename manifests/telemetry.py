"""Numbers of a running command for Prometheus: served on a port, in a file of a folder, or by Ray.

The variable CLIPMILL_METRICS says where: `9464` or `HOST:9464` serves them (a port alone on
127.0.0.1); an existing folder gets clipmill-PID.prom, as node_exporter's textfile collector reads
it, and loses it with the command; `ray` gives them to the metrics of the Ray that the command has
joined, whose names begin with `ray_`. Without it nothing is imported. What goes wrong here is
logged once and never reaches the command.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmill.manifests import waits

VARIABLE = "CLIPMILL_METRICS"
EVERY_S = 5.0  # between two states of a file, and of Ray
# All that is exported, with what each number is. Those that only grow end in _total.
METRICS = {
    "clipmill_stage_tasks": "tasks of a stage of a build, by state: all, done, failed, running",
    "clipmill_stage_rows_total": "rows of a stage that have an outcome: stored, or the reason",
    "clipmill_stage_bytes_total": "bytes that a stage has stored",
    "clipmill_stage_seconds": "seconds since a stage began, or that it took",
    "clipmill_stage_left_seconds": "estimate of the seconds that are left of a stage",
    "clipmill_run_step": "optimizer steps of a training run",
    "clipmill_run_samples_total": "samples that a training run has seen",
    "clipmill_run_loss": "loss of the last logged step",
    "clipmill_run_learning_rate": "learning rate of the last logged step",
    "clipmill_run_samples_per_second": "samples a second of all ranks since the line before",
    "clipmill_run_wait_share": "share of the time in which the step waited for data",
    "clipmill_run_mfu": "share of the device's peak that the model's operations use",
    "clipmill_run_peak_memory_bytes": "largest memory in use of rank 0, on its GPU or as a process",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """A number with the labels that tell it from others of its name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[], Iterable[Sample]]


@contextlib.contextmanager
def exported(read: Read) -> Iterator[None]:
    """While the block runs, what `read` gives is where CLIPMILL_METRICS says."""
    where = os.environ.get(VARIABLE, "")
    if not where:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_open(where, read))
        except Exception as error:  # a port that is taken, a package that is missing
            logger.warning("%s=%s: nothing is exported: %s", VARIABLE, where, error)
        yield


def _open(where: str, read: Read) -> contextlib.AbstractContextManager[None]:
    if where == "ray":
        return _written(_Ray(read).write)
    if Path(where).is_dir():
        return _in_folder(Path(where), read)
    host, _, port = where.rpartition(":")
    if not port.isdecimal():
        raise ValueError("give a port, HOST:PORT, an existing folder, or ray")
    return _served(host or "127.0.0.1", int(port), read)


def _registry(read: Read) -> Any:
    """A registry of prometheus_client that asks `read` each time."""
    client = importlib.import_module("prometheus_client")
    core = importlib.import_module("prometheus_client.core")

    class Collector:
        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            for sample in read():
                name, labels = sample.name, list(sample.labels)
                if name not in families:
                    kind = "CounterMetricFamily" if name.endswith("_total") else "GaugeMetricFamily"
                    families[name] = getattr(core, kind)(name, METRICS[name], labels=labels)
                families[name].add_metric([sample.labels[each] for each in labels], sample.value)
            yield from families.values()

    registry = client.CollectorRegistry()
    registry.register(Collector())
    return registry


@contextlib.contextmanager
def _served(host: str, port: int, read: Read) -> Iterator[None]:
    client = importlib.import_module("prometheus_client")
    server, thread = client.start_http_server(port, addr=host, registry=_registry(read))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _in_folder(folder: Path, read: Read) -> Iterator[None]:
    client = importlib.import_module("prometheus_client")
    path, registry = folder / f"clipmill-{os.getpid()}.prom", _registry(read)
    try:
        with _written(lambda: client.write_to_textfile(str(path), registry)):
            yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _written(write: Callable[[], None]) -> Iterator[None]:
    """Calls `write` at once and every EVERY_S."""

    def failed(error: Exception) -> None:
        logger.warning("%s: nothing more is exported: %s", VARIABLE, error)

    write()
    with waits.repeated(write, EVERY_S, "telemetry", failed):
        yield


class _Ray:
    """Gauges of Ray, which its agents export."""

    def __init__(self, read: Read) -> None:
        self._read, self._gauges = read, dict[str, Any]()

    def write(self) -> None:
        import ray

        if not ray.is_initialized():  # a stage may not have begun
            return
        metrics = importlib.import_module("ray.util.metrics")
        for sample in self._read():
            if sample.name not in self._gauges:
                self._gauges[sample.name] = metrics.Gauge(
                    sample.name, METRICS[sample.name], tuple(sample.labels)
                )
            self._gauges[sample.name].set(sample.value, dict(sample.labels))
