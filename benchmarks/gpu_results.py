"""What the cells of benchmarks/gpu.py say together: ratios to open_clip and to goals, one line per
cell.
"""

from __future__ import annotations

from typing import Any

# Samples/s on one H200, length 77
SPEED = {"ViT-B-32": 9000, "ViT-L-14": 900, "ViT-H-14": 420, "ViT-g-14": 280}
RATIO = {"ViT-B-32": 1.5, "ViT-L-14": 1.25, "ViT-H-14": 1.25}  # times open_clip's
Cell = dict[str, Any]


def find_rate(results: list[Cell], rate: str, *key: str) -> float | None:
    for cell in results:
        if (cell["model"], cell["program"], cell["captions"], cell["data"]) == key and cell[
            "state"
        ] == "measured":
            return float(cell[rate]["mean"])
    return None


def bars(results: list[Cell], models: list[str], cpu: bool) -> list[dict[str, Any]]:
    """What was measured over what was aimed at; goals are of one H200, ratios to open_clip of any
    device.

    Ratios on a processor are of samples a second of its time: other programs may take a share of
    the clock's.
    """
    rows: list[dict[str, Any]] = []
    rate, per = ("samples_per_cpu_s", " of CPU time") if cpu else ("samples_per_s", "")

    def add(name: str, measured: float | None, goal: float | None) -> None:
        reached = None if measured is None or goal is None else measured / goal
        rows.append(
            {"bar": name, "measured": measured, "goal": goal, "measured_over_goal": reached}
        )

    for model in models:
        padded = find_rate(results, rate, model, "ours", "padded", "memory")
        theirs = find_rate(results, rate, model, "open_clip", "padded", "memory")
        if model in SPEED and not cpu:
            add(f"{model}: samples/s", padded, SPEED[model])
        add(
            f"{model}: ours ÷ open_clip{per}",
            padded and theirs and padded / theirs,
            RATIO.get(model),
        )
        for data in ("memory", "shards"):
            packed = find_rate(results, rate, model, "ours", "packed", data)
            what = "packed" if data == "memory" else "packed, from shards,"
            add(f"{model}: {what} ÷ padded{per}", packed and padded and packed / padded, None)
            add(f"{model}: {what} ÷ open_clip{per}", packed and theirs and packed / theirs, None)
    return [bar for bar in rows if bar["measured"] is not None or bar["goal"] is not None]


def line_of(cell: Cell) -> str:
    name = f"{cell['model']:12} {cell['program']:9} {cell['captions']:6} {cell['data']:6}"
    if "samples_per_s" not in cell:
        return f"{name} {cell['state']}: {cell.get('why', '')}"
    speed, spread = cell["samples_per_s"]["mean"], cell["samples_per_s"]["sd"]
    words = [f"{speed:10,.1f} ± {spread or 0:,.1f} samples/s", f"batch {cell['batch']}"]
    words.append(f"{cell['model_tflops']:.3g} TFLOP/s")
    words += [] if cell["mfu"] is None else [f"MFU {cell['mfu']:.1%}"]
    words += [] if cell["peak_memory_gib"] is None else [f"{cell['peak_memory_gib']:.1f} GiB"]
    words += [] if cell["wait_share"] < 0.005 else [f"{cell['wait_share']:.0%} waiting"]
    profile = cell.get("profile") or {}
    if "shares" in profile:
        words.append(", ".join(f"{kind} {share:.0%}" for kind, share in profile["shares"].items()))
    if "loader_samples_per_s" in profile:
        words.append(
            f"the loader alone {profile['loader_samples_per_s']:,.0f} samples/s with "
            f"{profile['decoder']}"
        )
    return f"{name} " + ", ".join(words) + (f"; {cell['why']}" if "why" in cell else "")
