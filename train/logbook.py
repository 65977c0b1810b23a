"""What a run writes down while it trains: a line of log.jsonl every `log_every` steps, and the progress bar's words.

TensorBoard and W&B are given the same numbers where a run asks for them (`log_to`), and are imported only then. A line
that a killed process left unfinished is dropped when the run goes on.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from manifests import disk
from train.config import TrainConfig
from train.data import Repeats
from train.model import CLIP, peak_flops, training_flops

LOG = "log.jsonl"
# Of a line: what the clock and the machine decide, or an interruption. Everything else repeats with the run.
MEASURED = (
    "tokens_per_caption",
    "samples_per_s",
    "samples_per_s_per_gpu",
    "model_flops_per_s_per_gpu",
    "mfu",
    "wait_s",
    "wait_share",
    "peak_memory_bytes",
)
Numbers = Mapping[str, float | None]


class Sink(Protocol):
    """Another place that a run's numbers go to."""

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        """Write the numbers after `step` steps."""

    def close(self) -> None:
        """Write what is held back."""


class Logbook:
    """Tell it of every batch, then ask it for a line. All ranks make lines, the first writes them.

    `sources` gives what so many steps have drawn of each source (`Order.repeats`). `kept` are the lines of a run that
    goes on after `first` steps; `groups` is into how many captions are put where they are grouped by length. ValueError
    for a `log_to` that cannot be written to.
    """

    def __init__(
        self,
        out: str,
        config: TrainConfig,
        model: CLIP,
        device: torch.device,
        sources: Callable[[int], Mapping[str, Repeats]],
        *,
        rank: int = 0,
        world: int = 1,
        groups: int = 1,
        first: int = 0,
        kept: Sequence[str] = (),
        log_to: Sequence[str] = (),
    ) -> None:
        self.out, self.config, self.model, self.device = out, config, model, device
        self._sources, self._world, self._groups = sources, world, groups
        self._work = training_flops(model.config)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._peak = peak_flops(name, config.precision)
        self._writes = rank == 0
        self._lines = list(kept)
        self._whole = False  # whether the file has these lines, and no other
        self._sinks = [_sink(kind, self, first) for kind in log_to] if self._writes else []
        self._samples = first * config.batch_size
        self._clear()

    def batch(self, length_B: Tensor, waited: float) -> None:
        """Take note of this rank's part of a batch: its captions' lengths, and the seconds it was waited for."""
        config = self.config  # ranks of a tensor-parallel group share a sample's operations out
        self._operations += self._work.batch(length_B, config.captions, self._groups) / config.tp
        self._tokens += int(length_B.sum())
        self._rows += len(length_B)
        self._waited += waited

    def line(self, step: int, numbers: Numbers) -> dict[str, Any]:
        """The line after `step` steps, written: `numbers`, and what happened since the line before."""
        seconds = time.perf_counter() - self._since
        samples = step * self.config.batch_size
        rate = (samples - self._samples) / seconds
        operations = self._operations / seconds
        found: dict[str, Any] = {
            "step": step,
            "samples": samples,
            **numbers,
            "logit_scale": float(self.model.logit_scale.detach()),
            "tokens_per_caption": self._tokens / max(1, self._rows),
            "sources": {
                name: {"samples": drawn.drawn, "repeats": drawn.repeats}
                for name, drawn in self._sources(step).items()
            },
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
            self._write(json.dumps(found))
            for sink in self._sinks:
                sink(step, flat(found))
        return found

    def close(self) -> None:
        """Let TensorBoard and W&B finish what they write."""
        for sink in self._sinks:
            sink.close()

    def _clear(self) -> None:
        self._since = time.perf_counter()
        self._operations = self._waited = 0.0
        self._tokens = self._rows = 0

    def _write(self, line: str) -> None:
        """One line more. A local file that has the lines before is appended to; a store has whole files only."""
        path = disk.join(self.out, LOG)
        self._lines.append(line)
        if self._whole and not disk.is_url(path):
            with open(disk.local_path(path), "ab") as file:
                file.write(line.encode() + b"\n")
            return
        disk.write_bytes(path, ("\n".join(self._lines) + "\n").encode())
        self._whole = True


def kept_lines(out: str, step: int) -> list[str]:
    """The lines of RUN/log.jsonl up to `step`; none where there is no file, and not one that a kill cut short."""
    path = disk.join(out, LOG)
    if not disk.exists(path):
        return []
    kept = []
    for line in disk.read_bytes(path).decode(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            break
        if found["step"] <= step:
            kept.append(line)
    return kept


def progress_text(line: Mapping[str, Any]) -> str:
    """A line in a few words, for the progress bar."""
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
    """The most that was held: on the GPU, or by this process (Linux counts in KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- other places ----------------------------------------------------------------------------------------------------


def flat(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a line by name, those of a source as sources/POOL/VIEW/samples."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif value is not None:
            found[prefix + name] = value
    return found


class _TensorBoard:
    """Scalars under RUN/tensorboard; what a run that goes on had written after its checkpoint is hidden."""

    def __init__(self, book: Logbook, first: int) -> None:
        if disk.is_url(book.out):
            raise ValueError(
                f"log_to has tensorboard, which writes to a local folder, but the run's is {book.out}"
            )
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(_absent("tensorboard")) from error
        folder = disk.local_path(disk.join(book.out, "tensorboard"))
        self.writer: Any = SummaryWriter(str(folder), purge_step=first + 1 if first else None)  # type: ignore[no-untyped-call]

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held back."""
        self.writer.close()


class _Wandb:
    """A W&B run of the folder's name; it is the same one when the run goes on. WANDB_PROJECT, WANDB_MODE … apply."""

    def __init__(self, book: Logbook, first: int) -> None:
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ValueError(_absent("wandb")) from error
        folder = None if disk.is_url(book.out) else str(disk.local_path(book.out))
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "clipmill"),
            name=book.out.rstrip("/").rpartition("/")[2],
            id=disk.content_hash([str(disk.local_path(book.out)), disk.to_plain(book.config)]),
            resume="allow",
            dir=folder,
            config=disk.to_plain(book.config),
        )

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log({name: value for name, value in numbers.items() if name != "step"}, step=step)

    def close(self) -> None:
        """Send what is held back."""
        self.run.finish()


SINKS: dict[str, Callable[[Logbook, int], Sink]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}


def _sink(kind: str, book: Logbook, first: int) -> Sink:
    if kind not in SINKS:
        raise ValueError(
            f"log_to has {kind!r}{disk.did_you_mean(kind, SINKS)} (of {', '.join(SINKS)})"
        )
    return SINKS[kind](book, first)


def _absent(name: str) -> str:
    return (
        f"log_to has {name}, which is not installed; pip install {name}, or take it out of log_to"
    )
