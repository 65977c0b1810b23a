"""benchmarks/fetching/sizes.py: what it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fetching import fidelity, sizes
from clipmill import ROOT


@pytest.mark.slow
def test_drawn_pictures_are_stored_by_two_checkouts_and_compared(tmp_path: Path) -> None:
    out = tmp_path / "sizes.json"
    words = ["--sides", "270", "300", "--count", "2", "--before", ROOT, "--out", str(out)]
    assert sizes.main(words) == 0
    results = json.loads(out.read_text())
    assert list(results["sets"]) == ["drawn"]
    for figures in results["sets"]["drawn"].values():
        psnr = {name: value["mean"] for name, value in figures["psnr_db"].items()}
        assert figures["pictures"] == 2
        assert 20 < psnr[sizes.OURS] == psnr[sizes.BEFORE]
        assert abs(psnr[sizes.OURS] - psnr[fidelity.CEILING]) < 5
    assert sizes.markdown(results).count("| drawn |") == 2
