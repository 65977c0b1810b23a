"""What changed between two states is counted, and Ray exports it."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.progress.view import RayMetrics
from tests.support.command_states import command_state, stage_state

ROOT = Path(__file__).resolve().parents[3]


class FakeMetrics:
    """ray.util.metrics: `values` has what was counted, by metric and tags."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, ...]] = Counter()
        fake = self

        class Metric:
            def __init__(self, name: str, *_: Any, **__: Any) -> None:
                self.name = name

            def inc(self, value: float, tags: dict[str, str]) -> None:
                assert value > 0
                fake.values[(self.name, *tags.values())] += value

            def set(self, value: float, tags: dict[str, str]) -> None:
                fake.values[(self.name, *tags.values())] = value

            def observe(self, value: float, tags: dict[str, str]) -> None:
                fake.values[(self.name, *tags.values())] += 1

        self.module = types.SimpleNamespace(Counter=Metric, Gauge=Metric, Histogram=Metric)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMetrics:
    metrics = FakeMetrics()
    ray = types.SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", types.ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.metrics", metrics.module)
    return metrics


def test_counters_follow_the_state_and_never_go_back(fake: FakeMetrics) -> None:
    metrics = RayMetrics()
    for rows in (10, 30, 20, 40):  # a ticket died and its rows were taken back
        state = stage_state(stored=rows, done=5, failed=1, reasons={"dns": 3}, bytes=7)
        metrics.add(command_state(state), {"fetch": [1.0, 2.0]})
    assert fake.values[("clipmill_rows", "fetch", "stored")] == 40
    assert fake.values[("clipmill_rows", "fetch", "dns")] == 3
    assert fake.values[("clipmill_tickets", "fetch", "done")] == 5
    assert fake.values[("clipmill_tickets", "fetch", "failed")] == 1
    assert fake.values[("clipmill_bytes", "fetch")] == 7
    assert fake.values[("clipmill_ticket_seconds", "fetch")] == 8
    assert fake.values[("clipmill_tickets_left", "fetch")] == 194
    assert fake.values[("clipmill_seconds_left", "fetch")] == 1750.0


def test_two_stages_of_one_name_are_added_up(fake: FakeMetrics) -> None:
    metrics = RayMetrics()
    for number in (0, 1):
        metrics.add(command_state(stage_state(number=number, done=5)), {})
    assert fake.values[("clipmill_tickets", "fetch", "done")] == 10


def test_hosts_are_no_tags(fake: FakeMetrics) -> None:
    RayMetrics().add(command_state(), {})
    assert not [key for key in fake.values if any("example" in part for part in key)]


def test_without_ray_nothing_is_counted_and_ray_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    RayMetrics().add(command_state(), {})
    ray = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    RayMetrics().add(command_state(), {})


SCRAPED = """
import re, sys, time, urllib.request
from manifests import ray_runtime
import ray
ray_runtime.connect(2)
from pipeline.progress import view
from pipeline.progress.state import Measure
from pipeline.executor.stage import execute
from pipeline.executor.tickets import Stage, Ticket
from tests.pipeline.progress.test_ray_metrics import three_rows, rows_of

stage = Stage(name="counted", work=three_rows, measure=rows_of)
tickets = [Ticket(id=str(i), group=str(i % 3)) for i in range(20)]
assert execute(stage, tickets, engine="ray").done == 20
node = ray.nodes()[0]
url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
ends = time.monotonic() + 60
text = ""
while time.monotonic() < ends and "clipmill_rows" not in text:
    time.sleep(1)
    try:
        text = urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError as error:
        text = str(error)
print("\\n".join(line for line in text.splitlines() if "clipmill" in line) or text[:500])
ray_runtime.disconnect()
"""


def three_rows(config: dict[str, Any]) -> Any:
    return lambda ticket: {"rows": 3}


def rows_of(result: Any) -> Any:
    from pipeline.progress.state import Measure

    return Measure(rows=3, stored=2, bytes=100, reasons={"dns": 1})


@pytest.mark.ray
@pytest.mark.slow
def test_prometheus_sees_the_counters_on_the_port_that_ray_exports() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRAPED], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    values = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"(ray_clipmill_\w+)\{(.*)\} (\S+)$", line):
            outcome = re.search(r'outcome="(\w+)"', match[2])
            values[match[1], outcome[1] if outcome else ""] = float(match[3])
    assert values.get(("ray_clipmill_tickets_total", "done")) == 20, done.stdout[-2000:]
    assert values[("ray_clipmill_rows_total", "stored")] == 40
    assert values[("ray_clipmill_rows_total", "dns")] == 20
    assert values[("ray_clipmill_ticket_seconds_count", "")] == 20
