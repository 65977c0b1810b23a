"""A whole ablation on a web where no caption is wrong: a filter that still looked better would be a
lie.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clipmill.manifests import console
from clipmill.verdict.measurements import Measurements

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("null") / "out"
    words = [
        "manifests/ablations/demo_null.yaml",
        "--scale",
        "debug",
        "--engine",
        "inline",
        "--out",
        str(folder),
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("SCORER", "RAY_ADDRESS")}
    done = subprocess.run(
        console.program(["demo", *words]),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ clipmill train" in done.stdout, "every command is shown before it runs"
    return folder


def test_no_false_victory_is_declared(out: Path) -> None:
    results = json.loads((out / "report.json").read_text())["results"]
    (row,) = results["tasks"]["objects"]["comparisons"]
    assert row["arm"] == "clip30"
    assert row["verdict"] != "better"
    assert "clip30 is better" not in results["verdict"]


def test_the_report_says_what_the_runs_said(out: Path) -> None:
    report = json.loads((out / "report.json").read_text())
    results = json.loads((out / "results.json").read_text())
    measurements = Measurements.read(str(out / "measurements.parquet"))
    for arm in report["arms"]:
        for task, metric in (("objects", "accuracy"), ("retrieval", "recall@1")):
            shown = {int(seed): x for seed, x in arm["metrics"][task]["values"].items()}
            assert shown == measurements.values(task, metric)[arm["arm"]]
    assert report["results"] == results
    again = report["provenance"]["facts"]["run again with"]
    manifest = "manifests/ablations/demo_null.yaml"
    assert again == f"clipmill demo {manifest} --out {out} --scale debug"
    kept = {arm["arm"]: arm["rows"] for arm in report["arms"]}
    assert 0.25 < kept["clip30"] / kept["raw"] < 0.35
    steps = dict(report["funnels"][0]["steps"])
    assert steps["attempted"] == steps["stored"] + sum(
        n
        for reason, n in report["funnels"][0]["reasons"].items()
        if reason in attempted_reasons(out)
    )


def attempted_reasons(out: Path) -> set[str]:
    return set(json.loads((out / "pools" / "web" / "pool.json").read_text())["fetch"]["reasons"])


def test_the_page_is_whole(out: Path) -> None:
    html = (out / "report.html").read_text()
    assert html.count("<svg") >= 5
    assert html.count('src="data:image/jpeg;base64,') >= 24
    assert "http://" not in html.replace("http://www.w3.org", "")
