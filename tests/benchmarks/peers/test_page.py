"""docs/benchmarks.md says what the JSON files of the benchmarks say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

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
