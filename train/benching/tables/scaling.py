"""Tables of cells: the figures of each, and samples/s against ranks with the perfect line.

Weak scaling keeps the samples of a rank, strong scaling those of a step. The perfect line is the
rate of the fewest ranks times the factor by which there are more; speedup is against these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from train.benching.report import Cell
from train.benching.tables.text_table import NONE, short, text_table
from train.config import PRESETS

GIB = 2**30
RUNS = (
    f"runs/h: runs of {PRESETS['datacomp_small']().samples_seen:,} samples (DataComp small) in an "
    f"hour; micro runs: of {PRESETS['micro']().samples_seen:,} samples; a CPU s: samples for a "
    "second of processor time of all ranks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSeries:
    """Cells that differ by their ranks alone, the fewest first. The first is measured."""

    name: str
    cells: tuple[Cell, ...]

    def perfect(self, cell: Cell) -> float:
        """Samples/s of as many ranks if every rank were as fast as those of the first cell."""
        first = self.cells[0]
        return rate_of(first) * cell.ranks / first.ranks

    def speedup(self, cell: Cell) -> float:
        """Samples/s as a multiple of the first cell's."""
        return rate_of(cell) / rate_of(self.cells[0])


def rate_of(cell: Cell) -> float:
    """Samples/s of a measured cell."""
    rate = cell.figures["samples_per_s"]
    assert rate is not None
    return rate


def scaling_series(cells: Sequence[Cell]) -> list[ScalingSeries]:
    """The series of weak and strong scaling with two measured cells at least."""
    groups: dict[tuple[str, int, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        if cell.measured and cell.scaling:
            size = cell.batch if cell.scaling == "weak" else cell.global_batch
            same = (cell.model, cell.variant, cell.dtype, cell.parallel, cell.data)
            groups.setdefault((cell.scaling, size, same), []).append(cell)
    series = []
    for (scaling, size, names), members in groups.items():
        if len(members) > 1:
            members.sort(key=lambda cell: cell.ranks)
            kind = "a rank" if scaling == "weak" else "a step"
            words = ", ".join(word for word in names if word)
            name = f"{scaling} scaling, {words}, {size} samples {kind}"
            series.append(ScalingSeries(name=name, cells=tuple(members)))
    return series


def scaling_lines(cells: Sequence[Cell]) -> list[str]:
    """A table of every series."""
    text = []
    for series in scaling_series(cells):
        rows = []
        for cell in series.cells:
            speedup = series.speedup(cell)
            factor = cell.ranks / series.cells[0].ranks
            rows.append(
                [
                    str(cell.ranks),
                    str(cell.batch),
                    str(cell.global_batch),
                    short(rate_of(cell), 4),
                    short(series.perfect(cell), 4),
                    f"{speedup:.2f}x",
                    f"{speedup / factor:.1%}",
                ]
            )
        head = ["ranks", "batch", "global batch", "samples/s", "perfect", "speedup", "efficiency"]
        text += ["", series.name, *text_table(head, rows, 0)]
    return text


def figure_lines(cells: Sequence[Cell]) -> list[str]:
    """One row of figures for every cell that is measured; the reason of every other one."""
    if not cells:
        return []
    rates, times = [], []
    for cell in cells:
        name = [cell.model, cell.dtype, cell.parallel, cell.data, str(cell.ranks), _batch(cell)]
        if cell.measured:
            rates.append([*name, *_rates(cell)])
            times.append([*name, *_times(cell)])
    head = ["model", "dtype", "layout", "data", "ranks", "batch"]
    text = []
    if rates:
        text += text_table(
            [
                *head, "samples/s", "SD", "a CPU s", "a rank", "batches/s", "TFLOP/s", "MFU",
                "GiB", "wait", "tokens/s", "runs/h", "micro runs/h",
            ],
            rates,
            4,
        )  # fmt: skip
        text += [RUNS, "", "step time in ms"]
        text += text_table(
            [*head, "mean", "SD", "min", "p50", "p90", "p95", "p99", "max"], times, 4
        )
    text += _power_lines(cells)
    failed = [cell for cell in cells if not cell.measured]
    if failed:
        text += ["", *(f"{cell.state}: {cell.label}: {cell.reason}" for cell in failed)]
    return text


def _batch(cell: Cell) -> str:
    """The batch of a rank, and the global one where the command named that."""
    return str(cell.batch) if cell.scaling != "strong" else f"{cell.global_batch} / {cell.ranks}"


def _rates(cell: Cell) -> list[str]:
    figures = cell.figures
    memory, mfu, wait = (figures.get(f) for f in ("peak_memory_bytes", "mfu", "wait_share"))
    return [
        short(figures.get("samples_per_s"), 4),
        short(figures.get("samples_per_s_sd"), 2),
        short(figures.get("samples_per_cpu_s")),
        short(figures.get("samples_per_s_per_gpu"), 4),
        short(figures.get("global_batches_per_s")),
        short(figures.get("model_tflops")),
        NONE if mfu is None else f"{mfu:.1%}",
        NONE if memory is None else f"{memory / GIB:.2f}",
        NONE if wait is None else f"{wait:.1%}",
        short(figures.get("text_tokens_per_s"), 4),
        short(figures.get("runs_per_hour_datacomp_small")),
        short(figures.get("runs_per_hour_micro")),
    ]


def _times(cell: Cell) -> list[str]:
    names = ("mean", "sd", "min", "p50", "p90", "p95", "p99", "max")
    return [short(cell.figures.get(f"step_ms_{name}"), 4) for name in names]


def _power_lines(cells: Sequence[Cell]) -> list[str]:
    """Utilisation and power, where NVML has answered."""
    text = []
    for cell in cells:
        watts, busy = cell.figures.get("watts"), cell.figures.get("device_utilisation")
        if watts is not None and busy is not None:
            joule = short(cell.figures.get("samples_per_joule"))
            text.append(
                f"{cell.label}: utilisation {busy:.0%}, {watts:,.0f} W, {joule} samples a joule"
            )
    return ["", *text] if text else []
