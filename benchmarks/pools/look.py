#!/usr/bin/env python3
"""The page of a large pool: time and memory to read it, size of the file, and how long a threshold
and a search take in a headless Chromium, from a file and from the server.

example: python benchmarks/pools/look.py --rows 1000000 --out benchmarks/results/look.json

Makes a pool of drawn rows with 12 columns of numbers and two views. All images are members of one
small tar.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

import numpy as np
import pyarrow as pa
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Recipe, Rule, Source, View
from clipmill.pipeline.look.page import Bounds, page_data, render
from clipmill.pipeline.look.server import Answers, make_server
from clipmill.pipeline.look.survey import survey_pool
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import choose_views
from tests.support.browser import Tab, browser
from tests.support.commit_records import write_record

ROWS_PER_SHARD = 10_000
SCORES = 8  # columns of scores
IMAGES = 64
WORDS = ["red", "blue", "small", "large", "dog", "cat", "house", "tree", "river", "mountain"]
VIEWS = (
    View(
        name="basic",
        rules=(
            Rule(name="side", where="least(original_width, original_height) >= 200"),
            Rule(name="shape", where="aspect <= 3"),
            Rule(name="english", where="page_lang = 'en' OR page_lang = 'de'"),
            Rule(name="best", where="score_0 >= top(score_0, 0.5)"),
            Rule(name="other", where="score_1 > 0.2"),
        ),
    ),
    View(name="top30", rules=(Rule(name="best", where="score_2 >= top(score_2, 0.3)"),)),
)
# Moves a slider to some places and notes when the page shows the count, and when it is painted.
MEASURE = """
window.times = [];
(async () => {
  const slider = document.getElementById("slider"), rule = document.getElementById("rule");
  document.getElementById("view").value = "basic";
  document.getElementById("view").dispatchEvent(new Event("change"));
  const columns = [...document.getElementById("column").options].map(o => o.value);
  await new Promise(done => setTimeout(done, 1500));
  for (let i = 0; i < 100; i++) {
    if (i % 20 === 0) {
      document.getElementById("column").value = columns[(i / 20) % columns.length];
      document.getElementById("column").dispatchEvent(new Event("change"));
      await new Promise(done => setTimeout(done, 500));
    }
    const start = performance.now();
    const shown = new Promise(done => {
      const watcher = new MutationObserver(() => {
        watcher.disconnect();
        const at = performance.now();
        requestAnimationFrame(() => setTimeout(() => done([at, performance.now()])));
      });
      watcher.observe(rule, { childList: true, characterData: true, subtree: true });
    });
    slider.value = Math.round((0.03 + 0.94 * ((i * 37) % 100) / 100) * slider.max);
    slider.dispatchEvent(new Event("input"));
    const [at, painted] = await shown;
    window.times.push([at - start, painted - start]);
  }
  window.done = true;
})();
"""
SEARCH = """
(async () => {
  window.searches = [];
  const box = document.getElementById("search"), hits = document.getElementById("hits");
  for (const text of ["red dog", "z", "unlikely words here", "9f", "mountain bird"]) {
    const start = performance.now();
    const shown = new Promise(done => {
      const watcher = new MutationObserver(() => { watcher.disconnect(); done(); });
      watcher.observe(hits, { childList: true, characterData: true, subtree: true });
    });
    box.value = text;
    box.dispatchEvent(new Event("input"));
    await shown;
    window.searches.push(performance.now() - start);
  }
  window.searched = true;
})();
"""


def sidecar(shard: int, places: list[tuple[int, int]]) -> pa.Table:
    """10,000 attempts, about 90 % stored."""
    rng = np.random.default_rng(shard)
    stored = rng.random(ROWS_PER_SHARD) < 0.9
    hexes = [rng.bytes(16).hex() for _ in range(ROWS_PER_SHARD)]
    hosts = rng.integers(0, 2000, ROWS_PER_SHARD)
    words = rng.choice(WORDS, (ROWS_PER_SHARD, 5))
    image = rng.integers(0, len(places), ROWS_PER_SHARD)

    def numbers(low: int, high: int) -> pa.Array:
        return pa.array(rng.integers(low, high, ROWS_PER_SHARD), mask=~stored)

    columns = {
        "url": pa.array([f"https://h{h}.example/{x}" for h, x in zip(hosts, hexes, strict=True)]),
        "caption": pa.array([" ".join(w) + " " + x[:6] for w, x in zip(words, hexes, strict=True)]),
        "key": pa.array([f"{shard:05d}{row:04d}" for row in range(ROWS_PER_SHARD)]),
        "uid": pa.array(hexes),
        "status": pa.array(np.where(stored, "success", "failed_to_download")),
        "reason": pa.array(np.where(stored, "", "dns"), mask=stored),
        "original_width": numbers(50, 2000),
        "original_height": numbers(50, 2000),
        "page_url": pa.array([f"https://p{h}.example/" for h in hosts]),
        "page_lang": pa.array(rng.choice(["en", "de", "fr", "ru"], ROWS_PER_SHARD)),
        "image_offset": pa.array([places[i][0] for i in image], mask=~stored),
        "image_length": pa.array([places[i][1] for i in image], mask=~stored),
    }
    fields, arrays = list(SIDECAR), []
    for field in SIDECAR:
        values = columns.get(field.name)
        rows = pa.nulls(ROWS_PER_SHARD, field.type) if values is None else values.cast(field.type)
        arrays.append(rows)
    for number in range(SCORES):
        values = pa.array(rng.normal(0.28, 0.05, ROWS_PER_SHARD).astype(np.float32), mask=~stored)
        fields.append(pa.field(f"score_{number}", pa.float32()))
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def make_pool(folder: Path, rows: int) -> str:
    """A pool of `rows` attempts whose images lie in one tar."""
    pool = folder / "pool"
    places = []
    with tarfile.open(folder / "images.tar", "w") as tar:
        for number in range(IMAGES):
            sink = io.BytesIO()
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).resize((256, 256)).save(sink, "JPEG")
            member = tarfile.TarInfo(f"{number:09d}.jpg")
            member.size = len(sink.getvalue())
            tar.addfile(member, io.BytesIO(sink.getvalue()))
    with tarfile.open(folder / "images.tar") as tar:
        places = [(member.offset_data, member.size) for member in tar]
    for shard in range(rows // ROWS_PER_SHARD):
        table = sidecar(shard, places)
        disk.write_parquet(PoolLayout(str(pool)).sidecar(shard), table, {})
        failed = table["reason"].drop_null()
        write_record(
            str(pool), shard, tar=str(folder / "images.tar"), adopted=True,
            count=ROWS_PER_SHARD, successes=ROWS_PER_SHARD - len(failed),
            reasons={"dns": len(failed)}, failed_to_download=len(failed),
        )  # fmt: skip
    recipe = Recipe(name="look", source=Source(kind="wat", paths=("x",)), views=VIEWS)
    choose_views(PoolWriter(str(pool)), recipe)
    return str(pool)


def quantiles(values: list[float]) -> dict[str, float]:
    """Milliseconds: the median, the 99th percentile and the largest."""
    ordered = np.sort(values)
    return {
        "median": round(float(np.median(ordered)), 1),
        "p99": round(float(np.quantile(ordered, 0.99)), 1),
        "most": round(float(ordered[-1]), 1),
    }


def main_thread_s(tab: Tab) -> float:
    """CPU time of the page's thread: script, layout and painting."""
    metrics = tab.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def measure(target: Path | str, folder: Path) -> dict[str, Any]:
    """What a person waits for in a browser, ms."""
    with browser(folder / f"profile-{time.monotonic_ns()}") as tab:
        start = time.perf_counter()
        tab.open(target)
        opened = time.perf_counter() - start
        tab.send("Performance.enable", timeDomain="threadTicks")
        before = main_thread_s(tab)
        tab.value(MEASURE)
        while not tab.value("window.done"):
            time.sleep(0.2)
        times: list[list[float]] = tab.value("window.times")
        cpu_ms = 1000 * (main_thread_s(tab) - before) / len(times)
        tab.value(SEARCH)
        while not tab.value("window.searched"):
            time.sleep(0.2)
        searches: list[float] = tab.value("window.searches")
        assert tab.errors == [], tab.errors
    return {
        "open_s": round(opened, 2),
        "cpu_ms_per_input": round(cpu_ms, 1),
        "count_shown_ms": quantiles([one[0] for one in times]),
        "painted_ms": quantiles([one[1] for one in times]),
        "search_ms": quantiles(searches),
    }


def run(rows: int, folder: Path) -> dict[str, Any]:
    pool = make_pool(folder, rows)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    survey = survey_pool(pool)
    seconds = {"survey": time.perf_counter() - start}
    start = time.perf_counter()
    page = render(survey, page_data(survey, Bounds()))
    seconds["file"] = time.perf_counter() - start
    path = folder / "pool.html"
    path.write_text(page)
    start = time.perf_counter()
    answers = Answers(survey)
    served = render(survey, page_data(survey))
    seconds["server"] = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    with make_server(answers, served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        in_browser = {"file": measure(path, folder), "server": measure(url, folder)}
        server.shutdown()
    return {
        "rows": rows,
        "cores": os.cpu_count(),
        "wall_s": {name: round(value, 1) for name, value in seconds.items()},
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "file_mb": round(path.stat().st_size / 1e6, 2),
        "served_page_mb": round(len(served) / 1e6, 2),
        "browser": in_browser,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    results = []
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(rows, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    if args.out:
        command = f"python benchmarks/pools/look.py {' '.join(argv or sys.argv[1:])}"
        Path(args.out).write_text(json.dumps({"command": command, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
