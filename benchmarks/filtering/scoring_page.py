"""docs/scoring.md from the results of benchmarks/filtering/scoring.py: its tables are made here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs/scoring.md"
MARKERS = ("<!-- written by benchmarks/filtering/scoring.py: {} -->", "<!-- end -->")
BARS = {"pass / tensors": 0.85, "preprocess, exact": 2.0, "preprocess, fast": 2.0}
STEPS = (
    "open_clip: decode", "open_clip: resize", "open_clip: crop", "open_clip: to tensor",
    "open_clip: normalise", "ours: decode", "ours: of it simplejpeg",
    "ours: resize and crop, exact", "ours: resize and crop, fast", "ours: to a normalised tensor",
)  # fmt: skip


def bars_of(results: Mapping[str, Any]) -> dict[str, float]:
    """The figures that have a bar, as far as they are measured."""
    figures = {}
    if "pass" in results:
        figures["pass / tensors"] = results["pass"]["share"]
    if "preprocess" in results:
        cost = results["preprocess"]["ms"]
        figures["preprocess, exact"] = cost["open_clip"] / cost["exact"]
        figures["preprocess, fast"] = cost["open_clip"] / cost["fast"]
    return figures


def table_lines(part: str, results: Mapping[str, Any]) -> Iterator[str]:
    """The lines between the markers of one table of the page."""
    if part == "bars":
        yield "| bar | at least | measured | |"
        yield "|---|---:|---:|---|"
        for name, figure in bars_of(results).items():
            verdict = "holds" if figure >= BARS[name] else "missed"
            yield f"| {name} | {BARS[name]:g} | {figure:.2f} | {verdict} |"
    elif part == "steps":
        yield "| step | ms of CPU for an image |"
        yield "|---|---:|"
        costs = results["preprocess"]["ms_of_steps"]
        for name in STEPS:
            yield f"| {name} | {costs[name]:.3f} |"
        for name in ("open_clip", "exact", "fast"):
            yield f"| {name}, all | {results['preprocess']['ms'][name]:.3f} |"
    elif part == "parity":
        yield "| resize | values that differ | by at most | mean | cosine distance at most |"
        yield "|---|---:|---:|---:|---:|"
        for name in ("exact", "fast"):
            row = results["preprocess"]["parity"][name]
            yield (
                f"| {name} | {row['share_of_values']:.2%} | {row['largest_level']} levels "
                f"| {row['mean_level']:.4f} | {row['largest_cosine_distance']:.1e} |"
            )
    elif part == "pass":
        row = results["pass"]
        yield "| ViT-B-32 in fp32 | images for a second of CPU |"
        yield "|---|---:|"
        for name, speed in row["images_per_cpu_s"].items():
            yield f"| {name} | {speed:.2f} |"
    elif part == "memory":
        row = results["memory"]
        sizes = " ".join(str(size) for size in row["largest_mib_by_tenth"])
        yield "| images | CPU, s | before, MiB | largest in each tenth of the pass, MiB |"
        yield "|---:|---:|---:|---:|"
        yield f"| {row['images']:,} | {row['cpu_s']:.1f} | {row['before_mib']:.0f} | {sizes} |"


def page(results: Mapping[str, Any], text: str) -> str:
    """The page with its tables made again. ValueError for a table without an end."""
    for part in ("bars", "steps", "parity", "pass", "memory"):
        begin, end = MARKERS[0].format(part), MARKERS[1]
        if begin not in text:
            continue
        before, _, rest = text.partition(begin)
        _, marker, after = rest.partition(end)
        if not marker:
            raise ValueError(f"{PAGE.name}: {begin} has no {end}")
        lines = "\n".join(table_lines(part, results))
        text = f"{before}{begin}\n{lines}\n{end}{after}"
    return text
