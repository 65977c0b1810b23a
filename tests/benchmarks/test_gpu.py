"""The parts of benchmarks/gpu.py that decide what is measured, on made-up memory and names; no GPU,
nothing timed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_data


@pytest.mark.slow
def test_every_cell_of_a_small_model_ends_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded, packed and from shards, each with its profile, and open_clip's step beside them."""
    pytest.importorskip("open_clip")
    monkeypatch.setattr(gpu_data, "ROWS", 8)
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--models", "test", "--batch", "8"]
    words += ["--threads", "1", "--seconds", "0.05", "--repeats", "1", "--out", str(out)]
    assert gpu.main(words) == 0
    written = json.loads(out.read_text())
    cells = [cell for cell in written["cells"] if cell["program"] == "ours"]
    (peer,) = (cell for cell in written["cells"] if cell["program"] == "open_clip")
    assert (peer["state"], peer["batch"]) == ("measured", 8)
    assert peer["samples_per_s"]["mean"] > 0
    assert all(bar["measured"] > 0 for bar in written["bars"])
    kinds = [(cell["captions"], cell["data"], cell["state"], "why" in cell) for cell in cells]
    measured = ("measured", False)
    assert kinds == [(*kind, *measured) for kind in (
        ("padded", "memory"), ("packed", "memory"), ("packed", "shards"),
    )]  # fmt: skip
    assert cells[0]["profile"]["shares"]["gemm"] > 0
    assert cells[2]["profile"]["loader_samples_per_s"] > 0
