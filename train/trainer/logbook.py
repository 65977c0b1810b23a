"""The log of a run: a line of log.jsonl every `log_every` steps, and the text of the progress bar.

TensorBoard and W&B get the same values where `log_to` names them; they are imported only then. A
line that a killed process left incomplete is dropped on resume.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from clipmill.manifests import disk, telemetry
from clipmill.manifests.layout import RunLayout
from clipmill.train.config import TrainConfig, trained_groups
from clipmill.train.data.tar_streams import StreamDraws
from clipmill.train.mixture.order import Repeats
from clipmill.train.model.memory import training_flops
from clipmill.train.model.open_clip_model import AnyModel
from clipmill.train.sizing.device_fit import peak_flops

Values = Mapping[str, float | None]
logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Another receiver of the values of a run."""

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Write the values after `step` steps."""

    def close(self) -> None:
        """Flush and close."""


class Logbook:
    """Counts every batch and writes lines. Every rank calls it; rank 0 writes.

    `sources` gives what the first N steps draw of each source (`Order.repeats`). A resumed run
    passes its `first` step and the lines before it in `kept`. ValueError for a `log_to` that cannot
    be written to.
    """

    def __init__(
        self,
        out: str,
        config: TrainConfig,
        model: AnyModel,
        device: torch.device,
        sources: Callable[[int], Mapping[str, Repeats | StreamDraws]],
        *,
        rank: int = 0,
        world: int = 1,
        first: int = 0,
        kept: Sequence[str] = (),
        log_to: Sequence[str] = (),
    ) -> None:
        self.out, self.config, self.model, self.device = out, config, model, device
        self._sources, self._world = sources, world
        self._flops = training_flops(model.config, trained=trained_groups(config))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._peak = peak_flops(name, config.precision)
        self._writes = rank == 0
        self._lines = list(kept)
        self._file_is_current = False  # whether the file has exactly these lines
        self._sinks = [_sink(kind, self, first) for kind in log_to] if self._writes else []
        if self._writes and telemetry.VARIABLE in os.environ:
            self._sinks.append(_Telemetry(self))
        self._samples = first * config.batch_size
        self._clear()

    def batch(self, length_B: Tensor, waited: float) -> None:
        """Count this rank's part of a batch: lengths of its captions, and seconds waited for it."""
        config = self.config
        # The ranks of a tensor-parallel group divide the operations of a sample.
        self._operations += self._flops.batch(length_B, config.captions) / config.tp
        self._tokens += int(length_B.sum())
        self._rows += len(length_B)
        self._waited += waited

    def line(self, step: int, values: Values) -> dict[str, Any]:
        """Write the line after `step` steps: `values`, and what happened since the line before."""
        seconds = time.perf_counter() - self._since
        samples = step * self.config.batch_size
        rate = (samples - self._samples) / seconds
        operations = self._operations / seconds
        sources = {}
        for name, drawn in self._sources(step).items():
            sources[name] = drawn.realised()
        line: dict[str, object] = {
            "step": step,
            "samples": samples,
            **values,
            "tokens_per_caption": self._tokens / max(1, self._rows),
            "sources": sources,
            "samples_per_s": rate,
            "samples_per_s_per_gpu": rate / self._world,
            "model_flops_per_s_per_gpu": operations,
            "mfu": None if self._peak is None else operations / self._peak,
            "wait_s": self._waited,
            "wait_share": self._waited / seconds,
            "peak_memory_bytes": peak_memory(self.device),
        }
        self._samples = samples
        self._clear()
        if self._writes:
            self._write(json.dumps(line))
            for sink in self._sinks:
                sink(step, flat(line))
        return line

    def close(self) -> None:
        """Close TensorBoard, W&B and what is exported."""
        for sink in self._sinks:
            sink.close()

    def _clear(self) -> None:
        self._since = time.perf_counter()
        self._operations = self._waited = 0.0
        self._tokens = self._rows = 0

    def _write(self, line: str) -> None:
        """Append to a local file: OSError where the disk did not take the line. On a store the
        whole file is written again.
        """
        path = RunLayout(self.out).log
        self._lines.append(line)
        if self._file_is_current and not disk.is_url(path):
            target, data = disk.local_path(path), line.encode() + b"\n"
            with disk.naming(target), open(target, "ab") as file:
                size = file.tell() + len(data)
                file.write(data)
            disk.check_size(target, size)
            return
        disk.write_bytes(path, ("\n".join(self._lines) + "\n").encode())
        self._file_is_current = True


def kept_lines(out: str, step: int) -> list[str]:
    """Lines of RUN/log.jsonl up to `step`; [] where there is no file. Others are left out: the last
    may be incomplete, and those before it are counted in a warning.
    """
    path = RunLayout(out).log
    if not disk.exists(path):
        return []
    kept, damaged = [], 0
    lines = disk.read_bytes(path).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, TypeError, LookupError):
            damaged += number < len(lines)
    if damaged:
        logger.warning("%s: %d of %d lines are damaged: left out", path, damaged, len(lines))
    return kept


def progress_text(line: Mapping[str, Any]) -> str:
    """A line as text for the progress bar."""
    words = [
        f"loss {line['loss']:.4f}",
        f"accuracy {line['accuracy']:.3f}",
        f"{line['samples_per_s']:,.0f} samples/s",
    ]
    if line["mfu"] is not None:
        words.append(f"MFU {line['mfu']:.1%}")
    if line["wait_share"] >= 0.01:
        words.append(f"{line['wait_share']:.0%} waiting for data")
    return ", ".join(words)


def peak_memory(device: torch.device) -> int:
    """The largest number of bytes in use: on the GPU, or by this process (Linux gives KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- TensorBoard and W&B --------------------------------------------------------------------------


def flat(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The values of a line by name, those of a source as sources/POOL/VIEW/samples."""
    values: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}/")
        elif value is not None:
            values[prefix + name] = value
    return values


class _TensorBoard:
    """Scalars under RUN/tensorboard. On resume, values after the checkpoint are hidden."""

    def __init__(self, book: Logbook, first: int) -> None:
        if disk.is_url(book.out):
            raise ValueError(
                "log_to has tensorboard, which writes to a local folder, "
                f"but the run's is {book.out}"
            )
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(_not_installed("tensorboard")) from error
        folder = disk.local_path(disk.join(book.out, "tensorboard"))
        purge_step = first + 1 if first else None
        self.writer: Any = SummaryWriter(str(folder), purge_step=purge_step)  # type: ignore[no-untyped-call]

    def __call__(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()


class _Wandb:
    """A W&B run named as the folder; a resumed run continues it. WANDB_… variables apply."""

    def __init__(self, book: Logbook, first: int) -> None:
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ValueError(_not_installed("wandb")) from error
        folder = None if disk.is_url(book.out) else str(disk.local_path(book.out))
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "clipmill"),
            name=book.out.rstrip("/").rpartition("/")[2],
            id=disk.content_hash([str(disk.local_path(book.out)), disk.to_plain(book.config)]),
            resume="allow",
            dir=folder,
            config=disk.to_plain(book.config),
        )

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self.run.log({name: value for name, value in values.items() if name != "step"}, step=step)

    def close(self) -> None:
        """Flush and close."""
        self.run.finish()


EXPORTED = {  # values of a line -> what they are called behind clipmill_run_
    "step": "step",
    "samples": "samples_total",
    "loss": "loss",
    "lr": "learning_rate",
    "samples_per_s": "samples_per_second",
    "wait_share": "wait_share",
    "mfu": "mfu",
    "peak_memory_bytes": "peak_memory_bytes",
}


class _Telemetry:
    """The last line for Prometheus, see manifests/telemetry.py."""

    def __init__(self, book: Logbook) -> None:
        self._labels = {"run": book.out}
        self._last: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(telemetry.exported(self._samples))

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self._last = values

    def _samples(self) -> Iterator[telemetry.Sample]:
        for name, exported in EXPORTED.items():
            if name in self._last:
                yield telemetry.Sample(f"clipmill_run_{exported}", self._last[name], self._labels)

    def close(self) -> None:
        """Nothing is exported any more."""
        self._stack.close()


SINKS: dict[str, Callable[[Logbook, int], Sink]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}


def _sink(kind: str, book: Logbook, first: int) -> Sink:
    if kind not in SINKS:
        raise ValueError(
            f"log_to has {kind!r}{disk.did_you_mean(kind, SINKS)} (of {', '.join(SINKS)})"
        )
    return SINKS[kind](book, first)


def _not_installed(name: str) -> str:
    return (
        f"log_to has {name}, which is not installed; pip install {name}, or take it out of log_to"
    )
