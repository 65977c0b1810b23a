"""benchmarks/filtering/scoring.py: the page says what the results say, and the parts can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.filtering import scoring, scoring_page

RESULTS = {
    "preprocess": {
        "ms": {"open_clip": 3.0, "exact": 2.0, "fast": 1.0},
        "ms_of_steps": dict.fromkeys(scoring_page.STEPS, 0.5),
        "parity": {
            name: {
                "share_of_values": 0.0034,
                "largest_level": 2,
                "mean_level": 0.0034,
                "largest_cosine_distance": 3e-7,
            }
            for name in ("exact", "fast")
        },
    },
    "pass": {"share": 0.9, "images_per_cpu_s": {"tensors": 10.0, "pass": 9.0}},
}


def test_the_page_is_the_one_that_the_results_make() -> None:
    text = scoring_page.PAGE.read_text()
    made = scoring_page.page(json.loads(scoring.RESULTS.read_text()), text)
    assert made == text, "run python benchmarks/filtering/scoring.py --docs"


@pytest.mark.slow
def test_drawn_images_are_preprocessed_by_each_way(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert scoring.main(["--part", "preprocess", "--images", "2", "--out", str(out)]) == 0
    preprocess = json.loads(out.read_text())["preprocess"]
    assert preprocess["parity"]["exact"]["largest_level"] == 0
    assert all(cost > 0 for cost in preprocess["ms"].values())
