"""Latency of back ends, from the image in host memory to the embeddings in host memory.

A back end is timed only after its outputs were compared with PyTorch's eager ones. The back ends
take turns in every repeat, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from train.formats import TOLERANCES
from train.inference.backends import Backend, Compiled, CudaGraph, Eager, Outputs, Setup
from train.inference.inputs import Inputs
from train.inference.onnx_backends import OnnxRuntime, TensorRT

BACKENDS: dict[str, type[Backend]] = {
    backend.name: backend for backend in (Eager, Compiled, CudaGraph, OnnxRuntime, TensorRT)
}
# Of a component of a unit vector, to eager PyTorch in fp32; TF32 has the mantissa of fp16.
LIMITS = {
    "fp32": TOLERANCES["fp32"],
    "tf32": TOLERANCES["fp16"],
    "fp16": TOLERANCES["fp16"],
    "bf16": 1e-2,
    "bf16_o2": 1e-2,
}
REQUESTS = 4  # different ones, in turn: no answer can be that of the call before


class WrongOutputs(Exception):
    """A back end that computes something else than the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often a back end is called: in every repeat, `warmup` calls before those that count."""

    warmup: int
    iterations: int
    repeats: int


@dataclass(slots=True, kw_only=True)
class Timing:
    """What was seen of one back end at one batch."""

    difference: float | None = None  # the largest, to eager PyTorch in fp32
    wall_s: list[float] = field(default_factory=list)  # of every call
    cpu_s: float = 0.0  # user and system time of the process in all calls
    repeat_s: list[float] = field(default_factory=list)  # the mean call of each repeat
    host_bytes: int | None = None  # growth of the process while the back end got ready
    device_bytes: int | None = None  # the most that torch allocated on the GPU
    reason: str | None = None  # why there are no times


def start(name: str, setup: Setup) -> tuple[Backend, int | None]:
    """A back end and what the process grew by. `Unavailable` where it cannot run."""
    before = resident_bytes()
    backend = BACKENDS[name](setup)
    return backend, growth(before)


def reference(setup: Setup) -> Backend:
    """Eager PyTorch in fp32, which all outputs are compared with."""
    exact = dataclasses.replace(setup.config, precision="fp32")
    return Eager(dataclasses.replace(setup, config=exact))


def difference(ours: Outputs, theirs: Outputs) -> float:
    """The largest difference of a component. Infinite for NaN and for another shape."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            return float("inf")
        distance = float(np.abs(one - other).max())
        largest = max(largest, distance if np.isfinite(distance) else float("inf"))
    return largest


def compare(backend: Backend, exact: Backend, requests: Sequence[Inputs], limit: float) -> float:
    """The largest difference over some requests. WrongOutputs above the limit."""
    largest = 0.0
    for request in requests:
        assert request.pixels_BHWC is not None
        ours = backend(request.pixels_BHWC, request.token_BT)
        theirs = exact(request.pixels_BHWC, request.token_BT)
        largest = max(largest, difference(ours, theirs))
    if not largest <= limit:
        raise WrongOutputs(
            f"its outputs differ from eager's by {largest:.2g}; {limit:g} is allowed"
        )
    return largest


def measure_batch(
    backends: Mapping[str, Backend],
    exact: Backend,
    requests: Sequence[Inputs],
    decode: Callable[[Inputs], torch.Tensor],
    schedule: Schedule,
    setup: Setup,
) -> dict[str, Timing]:
    """The times of every back end for requests of one batch.

    `decode` gives the pixels of a request and is part of the time. A back end that fails has its
    reason, and the others go on.
    """
    timings: dict[str, Timing] = {}
    plain = [dataclasses.replace(r, pixels_BHWC=decode(r), jpegs=()) for r in requests]
    for name, backend in backends.items():
        timings[name] = timing = Timing()
        before = resident_bytes()
        try:
            assert plain[0].pixels_BHWC is not None
            backend.prepare(plain[0].pixels_BHWC, plain[0].token_BT)
            timing.difference = compare(backend, exact, plain, LIMITS[setup.config.precision])
        except WrongOutputs as error:
            timing.reason = str(error)
        # Compilers and runtimes raise anything; the first line says what it is about.
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            timing.reason = f"{type(error).__name__}: {first[:200]}"
        timing.host_bytes = growth(before)
    for _ in range(schedule.repeats):
        for name, timing in timings.items():
            if timing.reason is None:
                _time(backends[name], requests, decode, schedule, timing, setup)
    return timings


def _time(
    backend: Backend,
    requests: Sequence[Inputs],
    decode: Callable[[Inputs], torch.Tensor],
    schedule: Schedule,
    timing: Timing,
    setup: Setup,
) -> None:
    """One repeat."""
    cuda = setup.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(setup.device)
    turn = _in_turn(requests)
    for _ in range(schedule.warmup):
        request = next(turn)
        backend(decode(request), request.token_BT)
    walls = []
    cpu = time.process_time()
    for _ in range(schedule.iterations):
        request = next(turn)
        started = time.perf_counter()
        backend(decode(request), request.token_BT)
        walls.append(time.perf_counter() - started)
    timing.cpu_s += time.process_time() - cpu
    timing.wall_s += walls
    timing.repeat_s.append(sum(walls) / len(walls))
    if cuda:
        peak = torch.cuda.max_memory_allocated(setup.device)
        timing.device_bytes = max(peak, timing.device_bytes or 0)


def _in_turn(requests: Sequence[Inputs]) -> Iterator[Inputs]:
    while True:
        yield from requests


def resident_bytes() -> int | None:
    """Memory of this process that is in use; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * 4096


def growth(before: int | None) -> int | None:
    """Bytes by which the process grew; 0 where it shrank."""
    now = resident_bytes()
    return None if before is None or now is None else max(0, now - before)
