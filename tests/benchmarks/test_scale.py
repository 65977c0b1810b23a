"""benchmarks/scale.py: the page says what the results say, the exponents are right, and what a
process starts is counted."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale
from benchmarks.scaling import document, processes, web

ROOT = Path(__file__).resolve().parents[2]


def results() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(scale.RESULTS.read_text())
    return loaded


def row(count: int, cpu_s: float, **more: Any) -> dict[str, Any]:
    return {"count": count, "cpu_s": cpu_s, "wall_s": 2.0, "peak_mib": 100, "load": [1.0], **more}


def part(**steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"unit": "rows", "base": 1000, "cores": 2, "steps": steps}


@pytest.mark.parametrize("page", document.PAGES)
def test_a_page_is_the_one_that_the_results_make(page: str) -> None:
    text = (ROOT / page).read_text()
    made = document.page(results(), text, document.PAGES[page])
    assert made == text, "run python benchmarks/scale.py --docs"


def test_a_bar_is_held_missed_or_not_measured() -> None:
    made = {
        "plan": part(plan=[row(8000, 1.0) | {"wall_s": 241.0}]),
        "views": part(three_views=[row(4000, 1.0)]),
        "command": part(build_until_plan=[row(8000, 1.0) | {"wall_s": 239.0}]),
    }
    lines = list(document.bar_lines(made))
    assert "| plan, one process | 240 s | 241 s | 8,000 rows, 1 s of CPU | missed |" in lines
    assert (
        "| `clipmill build --until plan` | 240 s | 239 s | 8,000 rows, 1 s of CPU | holds |"
        in lines
    )
    assert "| three views over 50 million rows | 60 s | | | not measured at 8x |" in lines


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_that_of_a_power(power: float) -> None:
    rows = [row(count, 3 * count**power) for count in (1000, 2000, 4000, 8000)]
    assert document.exponent_of(rows) == pytest.approx(power, abs=1e-3)
    assert document.exponent_of(rows[:1]) is None


def test_a_projection_uses_exponents_above_one_only() -> None:
    slow = part(plan=[row(10**6, 10.0), row(10**7, 1000.0)])
    fast = part(plan=[row(10**6, 10.0), row(10**7, 20.0)])
    [plan] = [cost for cost in document.costs({"plan": slow}) if cost.stage == "plan"]
    assert plan.cpu_s == pytest.approx(1000 * 100**2, rel=0.01)
    [plan] = [cost for cost in document.costs({"plan": fast}) if cost.stage == "plan"]
    assert plan.cpu_s == pytest.approx(20 * 100, rel=0.01)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no <!-- written by"):
        document.page({}, "a page", ["bars"])


def test_a_result_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    for count, cpu_s in ((2000, 2.0), (1000, 1.0), (2000, 3.0)):
        scale.add_result(path, "plan", "plan", row(count, cpu_s))
    rows = json.loads(path.read_text())["plan"]["steps"]["plan"]
    assert [(each["count"], each["cpu_s"]) for each in rows] == [(1000, 1.0), (2000, 3.0)]


@pytest.mark.slow
def test_what_a_process_starts_is_counted() -> None:
    """A child that computes for half a second and holds 60 MB, whose parent only waits."""
    child = "b = bytearray(60 << 20)\nimport time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(7)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    out, tree = processes.watched(process)
    assert out == "7\n"
    [usage] = tree.descendants()
    assert 0.2 < usage.cpu_s < 1.5
    assert 60 <= usage.peak_mib < 120
    failing = subprocess.Popen([sys.executable, "-c", "1 / 0"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    with pytest.raises(subprocess.CalledProcessError):
        processes.watched(failing)


@pytest.mark.slow
def test_the_web_answers_as_it_says() -> None:

    with web.serving(3) as (_, port):
        kinds = dict.fromkeys(web.KINDS, 0)
        for number in (0, 7, 71, 93):
            path = web.path_of(number)
            url = f"http://{web.hosts(3)[number % 3]}:{port}{path}"
            kind = path.split("/")[1]
            if kind == "gone":
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(url, timeout=30)
            else:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    is_page = answer.headers["Content-Type"] == "text/html"
                    assert is_page == (kind == "text")
                    assert answer.read()[:2] == (b"<h" if is_page else b"\xff\xd8")
            kinds[kind] += 1
        assert list(kinds.values()) == [1] * 4
        with urllib.request.urlopen(f"http://127.1.0.1:{port}/_requests", timeout=30) as answer:
            assert answer.read() == b"4"
    expected = web.expected(1000)
    assert expected == {"stored": 950, "http_4xx": 30, "not_an_image": 10, "decode_error": 10}
