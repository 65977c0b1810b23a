"""Latency of a model that answers, from images and texts in host memory to their unit vectors.

A back end is timed only after its outputs were compared with PyTorch's eager ones in fp32: 1e-5 in
fp32, 1e-3 in fp16 and TF32, 1e-2 in bf16. The back ends take turns in every repeat, so that a
machine that slows down slows all of them. Every text of a request has all its tokens: no back end
can compute fewer.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clipmill.bench.backends import (
    BACKENDS,
    Backend,
    Eager,
    Outputs,
    Setup,
    StoredGraphs,
    Unavailable,
    read_graphs,
)
from clipmill.bench.options import SYNTHETIC, BenchOptions, Mode, is_source, source_label
from clipmill.bench.report import torch_device
from clipmill.bench.report_form import Cell
from clipmill.bench.tables import text_table
from clipmill.bench.timing import percentile_figures, spread_figures
from clipmill.manifests.disk import did_you_mean
from clipmill.train.config import TrainConfig, model_config
from clipmill.train.formats import model_files
from clipmill.train.formats.model_files import load_model
from clipmill.train.formats.onnx_export import TOLERANCES, example_inputs
from clipmill.train.model.architecture import ModelConfig
from clipmill.train.model.clip import CLIP
from clipmill.train.transforms import decode_image

EAGER = "eager"
logger = logging.getLogger(__name__)

# --- what a request brings ------------------------------------------------------------------------

# Of the images that stand for those of a web crawl, before they are resized.
JPEG_HEIGHT_WIDTH = (375, 500)
JPEG_QUALITY = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One request of B images and B texts, in host memory."""

    pixels_BHWC: Tensor | None  # uint8 RGB in the size of the model
    jpegs: tuple[bytes, ...]  # instead of the pixels
    token_BT: Tensor  # int64

    def decoded(self, config: ModelConfig) -> Tensor:
        """The pixels. Of JPEG bytes: decoded, resized and cut to the centre, one after another."""
        if self.pixels_BHWC is not None:
            return self.pixels_BHWC
        smallest = min(config.height_width)
        images = []
        for data in self.jpegs:
            pixels_HWC = decode_image(data, smallest)
            images.append(config.pixels(Image.fromarray(pixels_HWC), config.height_width))
        return torch.from_numpy(np.stack(images))


def synthetic_inputs(
    config: ModelConfig, batch: int, text_length: int, *, count: int, jpeg: bool = False
) -> list[Inputs]:
    """`count` different requests. Every text has all its tokens, so that none is computed in less.

    ValueError for a batch or a text length that the model cannot take.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    if not 1 <= text_length <= config.context_length:
        raise ValueError(
            f"text length is {text_length}; the model takes 1 to {config.context_length} tokens"
        )
    requests = []
    for seed in range(count):
        pixels_BHWC, token_BT = example_inputs(config, batch, text_length, "uint8", seed)
        end = config.vocab_size - 1
        token_BT[token_BT == 0] = 1
        token_BT[token_BT == end] = 1
        token_BT[:, -1] = end
        jpegs = tuple(_jpegs(batch, seed)) if jpeg else ()
        requests.append(
            Inputs(pixels_BHWC=None if jpeg else pixels_BHWC, jpegs=jpegs, token_BT=token_BT)
        )
    return requests


def _jpegs(batch: int, seed: int) -> Sequence[bytes]:
    """Smooth random images: noise alone would compress and decode like no photograph."""
    height, width = JPEG_HEIGHT_WIDTH
    generator = np.random.default_rng(seed)
    files = []
    for _ in range(batch):
        coarse = generator.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        sink = io.BytesIO()
        image.save(sink, "JPEG", quality=JPEG_QUALITY)
        files.append(sink.getvalue())
    return files


# --- latency of the back ends ---------------------------------------------------------------------

# Of a component of a unit vector, to eager PyTorch in fp32; TF32 has the mantissa of fp16.
LIMITS = {
    "fp32": TOLERANCES["fp32"],
    "tf32": TOLERANCES["fp16"],
    "fp16": TOLERANCES["fp16"],
    "bf16": 1e-2,
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


# --- mode infer -----------------------------------------------------------------------------------


def add_infer_options(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    parser.add_argument(
        "--backends",
        metavar="NAME,NAME",
        help=f"mode infer: of {', '.join(BACKENDS)} (default: all that can run here)",
    )
    parser.add_argument(
        "--graphs",
        metavar="FOLDER",
        help="mode infer: measure these graphs of clipmill weights onnx, and export none; --model "
        "is the run that they were made from",
    )
    parser.add_argument(
        "--cpu-threads",
        type=int,
        metavar="N",
        help="mode infer: threads of an operation on the processor (default: torch's)",
    )
    parser.add_argument(
        "--jpeg",
        action="store_true",
        help="mode infer: the images come as JPEG, and decoding and resizing count",
    )


def infer_cells(options: BenchOptions, args: argparse.Namespace) -> Iterator[Cell]:
    """A cell for every back end at every batch; all of a batch end together."""
    names = backend_names(args.backends)
    threads = args.cpu_threads
    if threads is not None and threads < 1:
        raise ValueError(f"cpu-threads is {threads}; it must be at least 1")
    if options.data != SYNTHETIC:
        raise ValueError("mode infer measures synthetic images; leave --data out")
    subjects = planned_subjects(options)
    graphs = None if args.graphs is None else graphs_of(args.graphs, subjects, options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        for subject in subjects:
            model, config = subject.load(), subject.config
            with tempfile.TemporaryDirectory(prefix="clipmill_infer_") as folder:
                setup = Setup(
                    model=model,
                    config=config,
                    device=torch_device(options.changes.get("device", "auto")),
                    text_length=text_length_of(options, graphs) or model.config.context_length,
                    threads=torch.get_num_threads(),
                    folder=Path(folder),
                    graphs=graphs,
                )
                yield from _of_model(subject.label, setup, names, options, args)
    finally:
        torch.set_num_threads(before)


ONLY_OURS = "mode infer measures the ViTs of this trainer alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model that is measured in one precision, before it is built."""

    label: str  # of its cells in the report
    config: TrainConfig
    trained: CLIP | None = None

    def load(self) -> CLIP:
        """The trained model, or one with random weights."""
        if self.trained is not None:
            return self.trained
        model = model_config(self.config)
        assert isinstance(model, ModelConfig)  # as `planned_subjects` has found
        return CLIP(model, seed=self.config.seed).eval()


def planned_subjects(options: BenchOptions) -> list[Subject]:
    """Every model in every precision. ValueError for one that cannot be read or measured."""
    subjects: list[Subject] = []
    for name in options.models:
        trained = read_trained(name, options) if is_source(name) else None
        label = source_label(name) if is_source(name) else name
        if any(subject.label == label for subject in subjects):
            raise ValueError(
                f"two models of --model are named {label} in the report; measure them one by one"
            )
        for dtype in options.dtypes:
            first, layout = options.batches[0], options.layouts[0]
            if trained is None:
                config = options.config(name, dtype, first, layout, 1, options.iterations)
                if not isinstance(model_config(config), ModelConfig):
                    raise ValueError(f"{name} is open_clip's own module; {ONLY_OURS}")
            else:  # the settings of the model come with it
                of_run = dataclasses.replace(options, text_length=None)
                default = TrainConfig().model
                config = of_run.config(default, dtype, first, layout, 1, options.iterations)
            subjects.append(Subject(label=label, config=config, trained=trained))
    return subjects


def read_trained(source: str, options: BenchOptions) -> CLIP:
    """The model of a finished run, of an exported folder, or of open_clip's list, to be measured.

    ValueError where there is none, where its weights are not finite, and for a setting of the model
    or a text length that it does not have.
    """
    for name in options.changes:
        if name.startswith("model."):
            raise ValueError(f"{source} has its own architecture; leave {name} out")
    model = load_model(source).eval()
    if not isinstance(model, CLIP):
        raise ValueError(f"{source} is computed by open_clip's own module; {ONLY_OURS}")
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} of {source} holds NaN or infinity; the model is broken")
    longest = model.config.context_length
    if options.text_length is not None and not 1 <= options.text_length <= longest:
        raise ValueError(
            f"text-length is {options.text_length}; {source} takes 1 to {longest} tokens"
        )
    return model


def graphs_of(folder: str, subjects: Sequence[Subject], options: BenchOptions) -> StoredGraphs:
    """The stored graphs. ValueError where they are of another model or another text length."""
    graphs = read_graphs(folder)
    trained = subjects[0].trained
    if len(options.models) > 1 or trained is None:
        raise ValueError("--graphs goes with one --model, the run that they were made from")
    if model_files.weights_sha256(trained.state_dict()) != graphs.weights_sha256:
        raise ValueError(f"the graphs of {folder} have other weights than {subjects[0].label}")
    fixed, wanted = graphs.options.text_length, options.text_length
    if fixed is not None and wanted not in (None, fixed):
        raise ValueError(f"text-length is {wanted}; the graphs of {folder} take {fixed} tokens")
    return graphs


def text_length_of(options: BenchOptions, graphs: StoredGraphs | None) -> int | None:
    """The stated length of texts, or that of stored graphs; None: the context of the model."""
    return options.text_length or (None if graphs is None else graphs.options.text_length)


def backend_names(text: str | None) -> tuple[tuple[str, ...], bool]:
    """The back ends, eager first, and whether they were named. ValueError for an unknown one."""
    if text is None:
        return tuple(BACKENDS), False
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise ValueError(
                f"there is no back end {name!r}{did_you_mean(name, BACKENDS)} "
                f"(of {', '.join(BACKENDS)})"
            )
    return tuple(dict.fromkeys([EAGER, *names])), True  # ratios are to eager


def _of_model(
    label: str,
    setup: Setup,
    names: tuple[tuple[str, ...], bool],
    options: BenchOptions,
    args: argparse.Namespace,
) -> Iterator[Cell]:
    """The cells of one model in one precision."""
    backends: dict[str, Backend] = {}
    grown: dict[str, int | None] = {}
    for name in names[0]:
        try:
            backends[name], grown[name] = start(name, setup)
        except Unavailable as error:
            if not names[1]:
                logger.info("%s is left out: %s", name, error)
                continue
            for batch in options.batches:
                cell = _cell(label, setup.config, batch, name)
                yield dataclasses.replace(cell, state="not run", reason=f"{name}: {error}")
    exact = reference(setup)
    try:
        for batch in options.batches:
            schedule = Schedule(
                warmup=options.warmup,
                iterations=max(1, options.iterations_of(batch)),
                repeats=options.repeats,
            )
            requests = synthetic_inputs(
                setup.model.config, batch, setup.text_length, count=REQUESTS, jpeg=args.jpeg
            )
            timings = measure_batch(
                backends,
                exact,
                requests,
                lambda request: request.decoded(setup.model.config),
                schedule,
                setup,
            )
            for name, timing in timings.items():
                cell = _cell(label, setup.config, batch, name)
                yield finished_cell(cell, setup, timing, timings[EAGER], grown[name])
    finally:
        for backend in backends.values():
            backend.close()


def _cell(label: str, config: TrainConfig, batch: int, name: str) -> Cell:
    return Cell(
        model=label,
        dtype=config.precision,
        ranks=1,
        batch=batch,
        global_batch=batch,
        data=SYNTHETIC,
        variant=name,
    )


def finished_cell(
    cell: Cell, setup: Setup, timing: Timing, eager: Timing, grown: int | None
) -> Cell:
    """What was seen of a back end, as figures. `grown` is what the process grew by at its start."""
    batch = cell.batch
    if timing.reason is not None:
        return dataclasses.replace(cell, state="failed", reason=f"{cell.variant}: {timing.reason}")
    calls = len(timing.wall_s)
    figures = {
        "text_length": float(setup.text_length),
        "threads": float(setup.threads),
        "calls": float(calls),
        **spread_figures("latency_s", timing.wall_s),
        **percentile_figures("latency_s", timing.wall_s),
        **spread_figures("repeat_s", timing.repeat_s),
        "samples_per_s": batch * calls / sum(timing.wall_s),
        "cpu_s": timing.cpu_s / calls,
        "difference": timing.difference,
        "host_bytes": None if timing.host_bytes is None else timing.host_bytes + (grown or 0),
        "device_bytes": timing.device_bytes,
        "speedup": None,
        "cpu_ratio": None,
    }
    if eager.reason is None:
        figures["speedup"] = _mean(eager.wall_s) / _mean(timing.wall_s)
        figures["cpu_ratio"] = eager.cpu_s / timing.cpu_s if timing.cpu_s else None
    rates = tuple(batch / seconds for seconds in timing.repeat_s)
    return dataclasses.replace(cell, figures=figures, rates=rates)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- tables ---------------------------------------------------------------------------------------

COLUMNS = (
    ("batch", "batch"), ("back end", "variant"), ("mean ms", "latency_s_mean"),
    ("SD", "latency_s_sd"), ("p50", "latency_s_p50"), ("p90", "latency_s_p90"),
    ("p95", "latency_s_p95"), ("p99", "latency_s_p99"), ("samples/s", "samples_per_s"),
    ("CPU ms", "cpu_s"), ("speedup", "speedup"), ("by CPU time", "cpu_ratio"),
    ("difference", "difference"), ("host MiB", "host_bytes"), ("GPU MiB", "device_bytes"),
)  # fmt: skip


def infer_lines(cells: Sequence[Cell]) -> list[str]:
    """For every model and type: the framework against the fastest back end, then all figures."""
    text: list[str] = []
    for title, group in groups(cells):
        text += [title, ""]
        for table in (fastest_table(group), full_table(group)):
            if table:
                text += [*text_table(table[0], table[1:], left=0), ""]
    return text


def groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """(title, measured cells) of every model, type and text length."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.measured:
            length = cell.figures["text_length"]
            title = f"{cell.model}, {cell.dtype}, text length {length:.0f}"
            groups.setdefault(title, []).append(cell)
    return list(groups.items())


def fastest_table(cells: Sequence[Cell]) -> list[list[str]]:
    """Latency of the framework against the fastest other back end, in seconds, as in published
    tables.
    """
    rows = [["batch", "framework (s)", "fastest (s)", "back end", "speedup"]]
    by_batch: dict[int, list[Cell]] = {}
    for cell in cells:
        by_batch.setdefault(cell.batch, []).append(cell)
    for batch, of_batch in sorted(by_batch.items()):
        eager = [cell for cell in of_batch if cell.variant == EAGER]
        others = [cell for cell in of_batch if cell.variant != EAGER]
        if not eager or not others:
            continue
        fastest = min(others, key=lambda cell: cell.figures["latency_s_mean"] or 0.0)
        mean, best = (cell.figures["latency_s_mean"] or 0.0 for cell in (eager[0], fastest))
        rows.append(
            [str(batch), f"{mean:.4f}", f"{best:.4f}", fastest.variant, f"{mean / best:.2f}"]
        )
    return rows if len(rows) > 1 else []


def full_table(cells: Sequence[Cell]) -> list[list[str]]:
    """All figures of the cells, by batch; columns that no cell has are left out."""
    ordered = sorted(cells, key=lambda cell: cell.batch)
    rows = [[title for title, _ in COLUMNS]]
    for cell in ordered:
        rows.append([_text(cell, name) for _, name in COLUMNS])
    used = [i for i in range(len(COLUMNS)) if any(row[i] != "-" for row in rows[1:])]
    return [[row[i] for i in used] for row in rows]


def _text(cell: Cell, name: str) -> str:
    """One entry; a dash where this machine cannot measure it."""
    if name in ("batch", "variant"):
        return str(getattr(cell, name))
    value = cell.figures.get(name)
    if value is None:
        return "-"
    if name.startswith("latency_s") or name == "cpu_s":
        return f"{1000 * value:.2f}"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.0f}"
    return {"samples_per_s": f"{value:,.1f}", "difference": f"{value:.1e}"}.get(
        name, f"{value:.2f}"
    )


INFER = Mode(
    about="""\
Latency of a model that answers: from images and texts in host memory to their unit vectors.

A request is a batch of images and as many texts. The back ends take turns in every repeat, and are
compared with eager PyTorch in fp32 before they are timed. --model is an architecture with random
weights, or a trained model: a finished run, a folder of clipmill weights --to, or
open_clip:NAME/TAG.

eager        PyTorch without a compiler (under autocast in fp16 and bf16): the framework
compile      torch.compile, for every batch anew
cuda_graph   eager's operations as one CUDA graph
onnxruntime  the graphs of clipmill weights onnx in ONNX Runtime, on the device
tensorrt     the same in TensorRT, through ONNX Runtime
""",
    unused=("ranks", "global_batch", "parallel"),
    figures=("latency_s_mean", "text_length"),
    add_options=add_infer_options,
    cells=infer_cells,
    lines=infer_lines,
)
