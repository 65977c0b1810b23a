"""docs/benchmarks.md says what the JSON files of the benchmarks say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.rows import Row, row_of, write_stage


def row(**changes: Any) -> Row:
    made = row_of("a thing", "CPU ms", 0.8, "a peer", [1.0, 3.0, 2.0], [2.0, 2.0, 2.0], items=7)
    return dataclasses.replace(made, **changes)


def test_the_page_is_what_the_results_say() -> None:
    assert page.PAGE.read_text() == page.text_of(), "run make bench-page"


def test_every_stage_has_a_row_and_what_fell_short_says_so(tmp_path: Path) -> None:
    results = tmp_path / "bench"
    missing = row_of("b", "CPU s", 1.0, "c", [1.0], [], items=1, missing="no wheel for it")
    write_stage(results, "crawl", [row(), missing], "3 photographs", {"a peer": "1.2"}, "bench")
    text = page.text_of(results)
    assert "| crawl | a thing | CPU ms | 2 | a peer | 2 | 1.00 (0.50 to 1.50) | ≤ 0.8 |" in text
    assert "**not met**" in text
    assert "| ≤ 1 | not measured: no wheel for it |" in text
    assert "| fetch | not measured |" in text
    assert "make bench-gpu` has not run" in text
    document = json.loads((results / "crawl.json").read_text())
    assert {"date", "machine", "command"} <= set(document)
    assert {"cores", "processor", "load"} <= set(document["machine"])


def test_the_bars_of_a_gpu_are_taken_in_when_they_were_measured(tmp_path: Path) -> None:
    bars = [
        {"bar": "B/32: samples/s", "measured": 8000.0, "goal": 9000.0},
        {"bar": "H/14: samples/s", "measured": None, "goal": 420.0},
    ]
    document = {"command": "python benchmarks/gpu.py", "device": "H200", "bars": bars}
    (tmp_path / "gpu.json").write_text(json.dumps(document))
    text = page.text_of(tmp_path / "bench")
    assert "| B/32: samples/s | 8,000 | ≥ 9,000 | **not met** |" in text
    assert "| H/14: samples/s | not measured | ≥ 420 |  |" in text


STEP: dict[str, Any] = {
    "stage": "look", "what": "rows", "unit": "rows", "sort": False, "load": 1.5, "share": 0.5,
    "date": "2026-01-02", "machine": {"cores": 2, "processor": "EPYC"}, "sizes": [10, 20, 40, 80],
    "cpu_s": {"10": [1.0], "20": [4.0], "40": [8.0], "80": [16.0]}, "fixed_s": 0.0,
    "exponent": 1.0, "exponent_range": [0.9, 1.1], "plain": 0.98,
}  # fmt: skip


def every_change(document: Any) -> list[Any]:
    """Copies of a document: each value in turn is of another type, NaN, or missing."""
    changed: list[Any] = [["a list"], "text", None]
    for key in list(document) if isinstance(document, dict) else range(len(document)):
        value = document[key]
        of_value = every_change(value) if isinstance(value, (dict, list)) and value else []
        bad = {"x": 1} if isinstance(value, (str, list)) else "x"
        for other in [bad, float("nan"), *of_value]:
            copy = document.copy()
            copy[key] = other
            changed.append(copy)
        if isinstance(document, dict):
            changed.append({name: each for name, each in document.items() if name != key})
    return changed


def problem_of(results: Path) -> str:
    """The message of the page generator about a file; nothing where it makes the page."""
    try:
        page.text_of(results)
    except ValueError as error:
        return str(error)
    return ""


def test_a_result_with_a_bad_value_in_any_field_is_refused_by_the_name_of_its_file(
    tmp_path: Path,
) -> None:
    results = tmp_path / "bench"
    write_stage(results, "crawl", [row()], "3 photographs", {"a peer": "1.2"}, "bench")
    stage = json.loads((results / "crawl.json").read_text())
    gpu = {
        "command": "c", "device": "H200", "cells": [],
        "bars": [{"bar": "b", "measured": 1.0, "goal": 2.0, "measured_over_goal": 0.5}],
    }  # fmt: skip
    files = {results / "crawl.json": stage, tmp_path / "gpu.json": gpu}
    files[tmp_path / "growth.json"] = {"steps": {"look": STEP}}
    for path, document in files.items():
        path.write_text(json.dumps(document))
    expected = page.text_of(results)
    assert "Measured at a share of the usual sizes: look 0.5." in expected
    refused = 0
    for path, document in files.items():
        for changed in every_change(document):
            path.write_text(json.dumps(changed))
            message = problem_of(results)
            refused += bool(message)
            # No problem: a field that may be null or missing, or the cells of gpu.json.
            assert not message or message.startswith(f"{path} ")
        for data in (b"", b"{", b"\xff\xfe", json.dumps(document).encode()[:-9]):
            path.write_bytes(data)
            with pytest.raises(ValueError, match=f"{path.name} is not JSON"):
                page.text_of(results)
        path.write_text(json.dumps(document))
    assert refused > 200
    (results / "crawl.json").write_text(json.dumps({**stage, "date": "a|b\n\x1b[2J"}))
    assert r"| a\|b\x0a\x1b[2J |" in page.text_of(results)
