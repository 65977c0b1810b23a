"""What a running command exports: on a port, in a folder, by names that the dashboard has."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from clipmill import ROOT
from clipmill.manifests import telemetry
from clipmill.manifests.telemetry import METRICS, Sample, exported
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.progress.view import counted_stage, shown_progress

pytest.importorskip("prometheus_client")


def read() -> Iterator[Sample]:
    yield Sample("clipmill_run_step", 7, {"run": 'a "run"'})
    yield Sample("clipmill_run_samples_total", 7000.5, {"run": "b"})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as answer:
        return str(answer.read().decode())


def test_a_port_serves_what_there_is_at_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    port, steps = free_port(), [1.0]
    monkeypatch.setenv(telemetry.VARIABLE, str(port))
    with exported(lambda: [Sample("clipmill_run_step", steps[-1], {"run": 'a "run"'})]):
        assert 'clipmill_run_step{run="a \\"run\\""} 1.0' in page(port)
        steps.append(2.0)
        assert 'clipmill_run_step{run="a \\"run\\""} 2.0' in page(port)
    with pytest.raises(OSError, match="refused"):
        page(port)


def test_a_folder_has_a_file_while_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry.VARIABLE, str(tmp_path))
    with exported(read):
        (path,) = tmp_path.glob("*.prom")
        text = path.read_text()
    assert "# TYPE clipmill_run_samples_total counter" in text
    assert 'clipmill_run_samples_total{run="b"} 7000.5' in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["taken", "no/such/folder", "host:port"])
def test_what_goes_wrong_is_a_line_and_the_command_goes_on(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        where = str(one.getsockname()[1]) if where == "taken" else where
        monkeypatch.setenv(telemetry.VARIABLE, where)
        done = []
        with exported(read):
            done.append(True)
    assert done
    assert "nothing is exported" in caplog.text


def test_the_stages_of_a_build_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(telemetry.VARIABLE, f"127.0.0.1:{port}")
    with shown_progress(), counted_stage("fetch", 3) as counter:
        counter.started("a")
        counter.ended("a", Measure())
        text = page(port)
    assert 'clipmill_stage_tasks{pool="",stage="fetch",state="done"} 1.0' in text
    assert 'clipmill_stage_tasks{pool="",stage="fetch",state="all"} 3.0' in text


def test_the_dashboard_asks_for_all_that_is_exported_and_for_nothing_else() -> None:
    dashboard = json.loads(Path(ROOT, "cluster/grafana.json").read_text())
    queries = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    patterns = [each for query in queries for each in re.findall(r'__name__=~"([^"]+)"', query)]
    assert len(patterns) >= len(queries)
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in METRICS), pattern
        assert any(re.fullmatch(pattern, f"ray_{name}") for name in METRICS), pattern
    for name in METRICS:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_the_page_on_operations_has_all_names() -> None:
    page = Path(ROOT, "docs/operations.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
