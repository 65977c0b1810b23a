"""The table of docs/measured.md on loaders, from the results of foreign_loops.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.tools.schema_tables import table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"


def loop_table() -> str:
    """The loaders of `benchmarks/reading/foreign_loops.py`, the fastest first, below clipmill's,
    and what they were measured on.
    """
    document: dict[str, Any] = json.loads((RESULTS / "foreign_loops.json").read_text())
    loaders: dict[str, dict[str, Any]] = document["loaders"]
    rows = []
    for name, loader in loaders.items():
        title = f"{loader['title']} {loader.get('version') or ''}".strip()
        if "turns" not in loader:
            rows.append((0.0, (title, f"not measured: {loader['missing']}", *[""] * 5)))
            continue
        of_kernels, of_transform = (loader["turns"][way] for way in ("kernels", "transform"))
        best = [_best(turns) for turns in (of_kernels, of_transform)]
        first = min(turn["first_batch_s"] for turn in of_kernels)
        tried = loader["tried"]
        cells = (
            title, *(f"{value:,.0f}" for value in best), f"{first:.1f}",
            _said(tried["exact resume"]), _said(tried["other ranks"]), loader["rows"],
        )  # fmt: skip
        rows.append((float("inf") if name == "clipmill" else best[0], cells))
    head = (
        "loader", "samples per CPU s, same kernels", "the same, torchvision on Pillow",
        "first batch, s", "exact resume", "on other ranks", "draws from some rows",
    )  # fmt: skip
    ordered = sorted(rows, key=lambda row: -row[0])
    origin = (
        f"{document['date']}, {document['samples']:,} samples, turns: {document['turns']}, "
        f"{document['machine']} ([results](../benchmarks/results/foreign_loops.json))"
    )
    return f"{table(head, *(cells for _, cells in ordered))}\n\n{origin}"


def _best(turns: list[dict[str, float]]) -> float:
    return max(turn["samples_per_cpu_s"] for turn in turns)


def _said(is_so: bool) -> str:
    return "yes" if is_so else "**no**"
