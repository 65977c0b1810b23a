"""The report page: everything inside one file, the numbers where they belong, and no error in a real browser."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from train.reporting import charts, page

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
DIFFERENCE = {
    "mean": 0.041,
    "low": 0.029,
    "high": 0.053,
    "p": 0.002,
    "p_holm": 0.004,
    "mde": 0.012,
    "verdict": "better",
}


def arm(name: str, mean: float, difference: dict[str, Any] | None) -> dict[str, Any]:
    values = {"0": mean - 0.01, "1": mean, "2": mean + 0.01}
    return {
        "arm": name,
        "role": "arm",
        "view": f"web/{name}",
        "rows": 1200,
        "share": 0.3,
        "drawn": 6400,
        "repeats": 5.33,
        "metrics": {"objects": {"mean": mean, "sd": 0.01, "values": values}},
        "difference": difference,
    }


def sample() -> dict[str, Any]:
    shot = {"image": PIXEL, "caption": "a <red> star & more", "score": 0.25, "rule": "clip"}
    report: dict[str, Any] = {
        "name": "demo",
        "question": "Does it help?",
        "baseline": "raw",
        "primary": "objects",
        "equivalence": 0.01,
        "seeds": [0, 1, 2],
        "samples_seen": 6400,
        "verdict": "clip30 is better than raw on objects: +4.1 points.",
        "arms": [arm("raw", 0.3, None), arm("clip30", 0.341, DIFFERENCE)],
        "tasks": [
            {
                "task": "objects",
                "kind": "classification",
                "metric": "accuracy",
                "samples": 640,
                "chance": 1 / 64,
                "rows": [
                    {"arm": "raw", "mean": 0.3, "sd": 0.01, "difference": None, "mcnemar": None},
                    {
                        "arm": "clip30",
                        "mean": 0.341,
                        "sd": 0.01,
                        "difference": DIFFERENCE,
                        "mcnemar": 0.01,
                    },
                ],
            }
        ],
        "curves": [{"arm": "raw", "seed": 0, "points": [[128, 4.8, 0.01], [256, 4.1, 0.05]]}],
        "funnels": [
            {"title": "web", "steps": [["links", 100], ["stored", 80]], "reasons": {"dns": 20}}
        ],
        "histograms": [
            {
                "pool": "web",
                "column": "clip_score",
                "edges": [0.0, 0.1, 0.2],
                "counts": {"stored": [10, 20], "clip30": [0, 12]},
                "marks": {"clip30": 0.1},
            }
        ],
        "gallery": [
            {"pool": "web", "view": "clip30", "kept": [shot], "near": [shot], "rejected": [shot]}
        ],
        "overlap": {"arms": ["raw", "clip30"], "jaccard": [[1.0, 0.3], [0.3, 1.0]]},
        "aa": {"told": "a_a is not distinguishable from raw."},
        "controls": [{"told": "clip30 is better than random_like_clip30."}],
        "null_web": None,
        "costs": [["fetch", 12.5], ["train", 100.0]],
        "provenance": {
            "facts": {"ablation": "abc"},
            "files": [["runs/raw/seed-0/run.json", "ff" * 32]],
        },
    }
    report["null_web"] = {
        **copy.deepcopy(report),
        "name": "null",
        "verdict": "clip30 is not distinguishable from raw.",
    }
    return report


class Outside(HTMLParser):
    """Collects addresses that a browser would ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.asked += [
            v
            for k, v in attrs
            if k in ("src", "href", "srcset", "action") and v and not v.startswith("data:")
        ]


def test_the_page_asks_for_nothing_outside_itself() -> None:
    html = page.render(sample())
    parser = Outside()
    parser.feed(html)
    assert parser.asked == []
    assert parser.scripts == 0
    assert not re.search(r"url\(|@import|https?://", html)
    loud = Outside()
    loud.feed('<img src="http://a/b.png"><script src="x.js"></script>')
    assert loud.asked == ["http://a/b.png", "x.js"]


def test_the_page_shows_the_numbers_it_was_given() -> None:
    html = page.render(sample())
    assert "34.1 ± 1.0" in html
    assert "+4.1 [+2.9, +5.3]" in html
    assert '<span class="better">better</span>' in html
    assert "clip30 is not distinguishable from raw." in html
    assert "a &lt;red&gt; star &amp; more" in html
    assert "a <red> star" not in html


def test_a_report_without_controls_says_so() -> None:
    report = {**sample(), "aa": None, "null_web": None, "controls": [], "costs": []}
    html = page.render(report)
    assert html.count("Not run.") == 3
    assert "Not recorded." in html


def test_ticks_are_round_and_inside() -> None:
    assert charts.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert charts.ticks(-0.13, 0.21, 4) == [-0.1, 0, 0.1, 0.2]
    assert charts.ticks(3, 3) == [3]
    assert charts.number(12_800) == "12.8k"


def test_charts_survive_what_runs_can_log() -> None:
    assert "no points were logged" in charts.lines([("raw", "#000", [])], "x", "y", "empty")
    assert "nan" not in charts.lines(
        [("raw", "#000", [(1, 2.0), (2, float("nan")), (3, 1.0)])], "x", "y", "holes"
    )
    assert charts.bars([("none", 0, "0")], "zero").count("<rect") == 1
    assert "nan" not in charts.forest([("same", 0.0, 0.0, 0.0, "#000")], 0.5, "flat")


CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    f"--disable-{x}" for x in ("gpu", "quic", "background-networking", "component-update", "sync")
]
FLAGS += [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=2000",
]


def browse(path: Path, profile: Path, *more: str) -> tuple[str, list[str]]:
    """The page's DOM after loading, and what it wrote to the console."""
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *more, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_real_browser_renders_it_without_a_console_error(tmp_path: Path) -> None:
    good, bad = tmp_path / "report.html", tmp_path / "bad.html"
    good.write_text(page.render(sample()))
    bad.write_text("<script>nothing_of_that_name()</script><img src='file:///not/there.png'>")
    _, complaints = browse(bad, tmp_path / "profile")
    assert complaints, "a page with an error must be noticed, or this test says nothing"
    dom, complaints = browse(good, tmp_path / "profile")
    assert complaints == []
    assert dom.count("<svg") == page.render(sample()).count("<svg")
    assert "clip30 is better than raw" in dom
