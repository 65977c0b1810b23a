from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from clipmill.commands import ablate
from clipmill.library import ablations
from clipmill.manifests import console, disk
from clipmill.manifests.folder_lock import locked_folder
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import Ablation, Arm
from clipmill.study import runner
from clipmill.study.arms import Run
from clipmill.study.results import scale_decisions
from clipmill.study.runner import Outcome
from clipmill.verdict.measurements import Measurements
from tests.support import commands, processes
from tests.support.ablations import in_process, three_arms
from tests.support.reports import complete_pool

TRAIN = """{model: test, samples_seen: 64, batch_size: 16, lanes: 4, threads: 0, precision: fp32,
        device: cpu, warmup: 1, lr: 1e-3}"""
MANIFEST = """
name: tiny
question: Is half as good as all?
pools: {{web: {{out: {pool}}}}}
arms: {{raw: web/all, half: web/half}}
baseline: raw
controls: {{a_a: raw}}
seeds: [0, 1]
train: {train}
evaluate:
  - {{name: colours, kind: classification, data: {data}/classes}}
  - {{name: captions, kind: retrieval, data: {data}/captions}}
primary: colours
equivalence: 0.01
jobs: 2
scales:
  debug: {{seeds: [0, 1, 2]}}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of four pictures, and four captioned ones."""
    lines = ["file,caption"]
    for i in range(8):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 32, 3)).astype(np.uint8)
        folder = tmp_path / "data" / "classes" / ("red" if i < 4 else "blue")
        for target in (folder, tmp_path / "data" / "captions"):
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target / f"{i}.png")
        lines.append(f"{i}.png,picture number {i}")
    (tmp_path / "data" / "captions" / "captions.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def manifest(folder: Path, pool: str, data: Path, **replaced: str) -> str:
    text = MANIFEST.format(pool=pool, data=data, train=replaced.pop("train", TRAIN))
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.yaml").write_text(text)
    return str(folder / "tiny.yaml")


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_ablation_from_its_manifest_to_a_verdict(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, out = manifest(tmp_path, tiny_pool, data), tmp_path / "out"
    assert commands.ablate([path, "--out", str(out), "--json"]) == 0
    results = disk.read_json(out / "results.json")
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1]) == results
    assert disk.from_plain(Ablation, disk.read_json(out / "ablation.json")).arms == {
        "raw": Arm(view="web/all"),
        "half": Arm(view="web/half"),
    }
    assert results["overlap"] == {"colours": 0, "captions": 0}
    measurements = Measurements.read(str(out / "measurements.parquet"))
    assert ("half", 1) in measurements.runs
    assert measurements.values("captions", "recall@1").keys() == {"raw", "half", "a_a"}
    assert math.isfinite(results["tasks"]["colours"]["comparisons"][0]["difference"])
    assert f"next: clipmill report {out}" in printed

    # Once more, from the resolved file: nothing is trained again, and the answer is the same.
    monkeypatch.setattr(runner, "run_in_children", lambda *_: pytest.fail("a run was repeated"))
    assert commands.ablate([str(out / "ablation.json"), "--out", str(out)]) == 0
    assert disk.read_json(out / "results.json") == results


@pytest.mark.slow
def test_smaller_scales_are_run_first_and_held_against_the_ablation(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arms = {
        "half: web/half}": "half: web/half, both: {views: {web/all: 0.5, web/half: 0.5}}}",
        "controls: {a_a: raw}": "",
        "debug: {seeds: [0, 1, 2]}": "small: {train: {samples_seen: 32}}\n"
        "  part: {part: 0.9, train: {samples_seen: 32}}\n"
        "  few: {part: 0.25, train: {samples_seen: 32}}",
    }
    pool = str(tmp_path / "pool")
    shutil.copytree(tiny_pool, pool)
    complete_pool(pool)
    path, out = manifest(tmp_path, pool, data, **arms), tmp_path / "out"
    words = [path, "--scales", "small", "--out", str(out)]
    monkeypatch.setattr(runner, "run_in_children", in_process)
    assert commands.ablate([*words, "--json"]) == 0
    *printed, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == disk.read_json(out / "results.json")
    small = disk.read_json(out / "scales" / "small" / "ablation.json")
    assert (small["train"]["samples_seen"], small["pools"]["web"]["out"]) == (32, pool)
    texts = [line for line in printed if re.search(r"^  \S.*  32  ", line)]
    assert any(text.startswith("  captions, contrastive_loss  ") for text in texts)
    assert "How often a smaller scale orders two arms as 64 does" in printed, "accuracy ties them"

    monkeypatch.setattr(runner, "run_in_children", lambda *_: pytest.fail("a run was repeated"))
    assert commands.ablate(words) == 0
    assert commands.report([str(out)]) == 0
    page = (out / "report.html").read_text()
    part = page[page.index("How often a smaller scale orders two arms as 64 does") :]
    for text in texts:  # the page has the rows that were printed
        cells = re.split(r"\s{2,}", text.strip())
        assert re.search("<td[^>]*>".join(f"{re.escape(cell)}</td>" for cell in cells), part)
    assert disk.read_json(out / "report.json")["scales"][0]["small"] == "32"
    capsys.readouterr()
    assert commands.decide([str(out), "--task", "colours"]) == 0
    decided = capsys.readouterr().out.split()  # a wrapped name leaves the words as they are
    assert " ".join(" ".join(texts).split()) in " ".join(decided)

    monkeypatch.setattr(runner, "run_in_children", in_process)
    on_a_part = [path, "--scales", "part", "--out", str(out)]
    assert commands.ablate(on_a_part) == 2  # no recipe of the manifest makes them
    command = f"filter part {pool} all half --share 0.9 --seed 0 1"
    assert capsys.readouterr().err.endswith(f"part-0.9.seed-0 yet: run clipmill {command}\n")
    assert commands.filter_pool(command.split()[1:]) == 0
    few = ["part", pool, "all", "half", "--share", "0.25", "--seed", "0", "1"]
    assert commands.filter_pool(few) == 0
    assert commands.ablate([path, "--scales", "few", "--out", str(out)]) == 2
    assert re.search(r"web/\w+.part-0.25.seed-\d keeps \d+, and a", capsys.readouterr().err)
    assert commands.ablate(on_a_part) == 0
    drawn = {}
    for arm in ("raw", "both"):
        for seed in (0, 1):
            blend = disk.read_json(out / f"scales/part/blends/{arm}.seed-{seed}.json")
            drawn[arm, seed] = set(blend["views"])
    assert drawn["raw", 1] == {"web/all.part-0.9.seed-1"}
    assert drawn["both", 0] == {"web/all.part-0.9.seed-0", "web/half.part-0.9.seed-0"}
    printed = capsys.readouterr().out.splitlines()
    for name in ("part", "small"):  # equal samples: a scale is named by its folder
        assert any(
            re.search(rf"^  captions, contrastive_loss  .*32 .*{name}", line) for line in printed
        )


def test_a_scale_of_another_question_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scales = "{baseline: half}\n  more: {arms: {other: web/all}}"
    path = manifest(tmp_path, "/nowhere/pool", data, **{"{seeds: [0, 1, 2]}": scales})
    out = ["--out", str(tmp_path / "out")]
    assert commands.ablate([path, *out, "--scales", "debug"]) == 2
    assert commands.ablate([path, *out, "--scales", "tiny"]) == 2
    assert commands.ablate([path, *out, "--scales", "debug", "--scale", "debug"]) == 2
    assert commands.ablate([path, *out, "--scales", "more"]) == 2
    first, second, third, fourth = capsys.readouterr().err.splitlines()
    assert "scale 'more' has arms of its own" in fourth
    assert "scale 'debug' has baseline of its own" in first
    assert "no scale 'tiny'" in second
    assert "leave one out" in third


def test_a_run_without_a_result_is_exit_status_3(
    tiny_pool: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_ends(
        todo: list[Run], tasks: object, jobs: int, out: str, report: Callable[[Outcome], None]
    ) -> None:
        for run in todo:
            report(Outcome(run=run, error="its process ended with -9"))

    monkeypatch.setattr(runner, "run_in_children", none_ends)
    assert (
        commands.ablate([manifest(tmp_path, tiny_pool, data), "--out", str(tmp_path / "out")]) == 3
    )
    assert len(disk.read_json(tmp_path / "out" / "results.json")["failed"]) == 6


def test_check_needs_no_pool_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, "/nowhere/pool", data)
    assert commands.ablate(["check", path, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith(
        "tiny: 6 runs; all checks that need no pool have passed"
    )
    assert (
        commands.ablate(
            ["check", path, "--out", str(tmp_path / "out"), "--json", "--scale", "debug"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["runs"] == 9
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vary", "arms"),
    [("lr: [1e-3, 1.0e+30]", "raw-1e-3 half-1e30"), ("wd: [0.1, 0.2]", "raw-0.1 half-0.2")],
)
def test_a_setting_varies_over_any_number_and_by_a_name_of_open_clip(
    vary: str, arms: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, other = arms.split()
    replaced = {
        "baseline: raw": f"vary: {{{vary}}}\nbaseline: {baseline}",
        "a_a: raw": f"a_a: {other}",
    }
    train = TRAIN.replace(", lr: 1e-3", "")
    path = manifest(tmp_path, "/nowhere/pool", data, train=train, **replaced)
    assert commands.ablate(["check", path, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("tiny: 10 runs; ")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train": "{device: 'cuda:1'}"}, "train: device is 'cuda:1', but a run of an ablation"),
        ({"[0, 1]": "[0, 4294967296]"}, "seed is 4294967296; it must be below 2^32"),
        ({"/classes": "/nothing"}, "there is no folder"),
        ({"primary: colours": "primary: shapes"}, "primary 'shapes' is not one of the tasks"),
    ],
)
def test_what_check_finds(
    replaced: dict[str, str],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = manifest(tmp_path, "/nowhere/pool", data, **replaced)
    assert commands.ablate(["check", path, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"web/half": "web/third"}, "arm 'half' is 'web/third', but there is no view 'third'"),
        ({"train": TRAIN.replace("batch_size: 16", "batch_size: 64")}, "fewer rows than a batch"),
    ],
)
def test_what_the_pools_tell_is_told_before_anything_is_trained(
    replaced: dict[str, str],
    message: str,
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ablations, "run_all", lambda *_: pytest.fail("trained"))
    path = manifest(tmp_path, tiny_pool, data, **replaced)
    assert commands.ablate([path, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_another_command_runs_in_is_left_alone(
    tiny_pool: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = manifest(tmp_path, tiny_pool, data), str(tmp_path / "out")
    with locked_folder(AblationLayout(out).lock, "clipmill ablate"):
        assert commands.ablate([path, "--out", out]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {out} is in use by clipmill ablate, process {os.getpid()} on "
        f"{socket.gethostname()}; wait until it has ended, or choose another --out"
    )
    assert not os.path.exists(out)


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, "the command ended before it was stopped"
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_ablation_keeps_its_runs_and_is_resumed(
    number: signal.Signals, status: int, tiny_pool: str, data: Path, tmp_path: Path
) -> None:
    train = TRAIN.replace(
        "samples_seen: 64", "samples_seen: 960, log_every: 1, checkpoint_every: 30"
    )
    changes = {"controls: {a_a: raw}": "", "jobs: 2": "jobs: 1"}
    path, out = manifest(tmp_path, tiny_pool, data, train=train, **changes), tmp_path / "out"
    command = console.program(["ablate", path, "--out", str(out)])
    mark = processes.new_mark()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, processes.MARK: mark},
    )
    try:
        wait_for(out / "runs/raw/seed-1/log.jsonl", process)
    except AssertionError:
        process.kill()
        process.communicate()
        raise
    assert len(processes.marked(mark, "clipmill.study.child")) == 1
    process.send_signal(number)
    _, stderr = process.communicate(timeout=900)
    assert process.returncode == status
    assert processes.marked(mark) == [], "its child has ended"
    assert stderr.splitlines()[-1] == (
        f"stopped by {number.name}: finished runs stay; run the same command again to do the others"
    )
    assert "Traceback" not in stderr
    first = (out / "runs/raw/seed-0/run.json").read_bytes()
    assert not (out / "runs/raw/seed-1/run.json").exists()
    assert list((out / "runs/raw/seed-1/checkpoints").iterdir()), "the run was saved"
    assert not (out / "results.json").exists()

    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    assert "4 runs, 1 of them are finished already" in ended.stderr
    assert (out / "runs/raw/seed-0/run.json").read_bytes() == first
    assert disk.read_json(out / "runs/raw/seed-1/run.json")["resumed_at"] > 0
    assert len(Measurements.read(str(out / "measurements.parquet")).runs) == 4


@pytest.mark.slow
def test_a_run_on_a_cluster_asks_for_what_a_node_can_give(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine of the command has 64 cores; the workers, on which runs start, have 8 and 4."""
    nodes: list[dict[str, object]] = []
    asked: list[tuple[object, object, object]] = []

    def options(**settings: object) -> SimpleNamespace:
        def submit(request: dict[str, object]) -> str:
            asked.append((settings["num_cpus"], settings["num_gpus"], request["threads"]))
            return f"run {len(asked)}"

        return SimpleNamespace(remote=submit)

    ray = SimpleNamespace(
        nodes=lambda: nodes,
        remote=lambda function: SimpleNamespace(options=options),
        wait=lambda pending, num_returns: ((pending[0],), pending[1:]),
        get=lambda reference: {"error": "no result", "refused": True},
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(runner.ray_runtime, "connect", lambda cpus: None)
    monkeypatch.setattr(runner.ray_runtime, "disconnect", lambda: None)
    monkeypatch.setattr(runner, "usable_cores", lambda: 64)
    path = manifest(tmp_path, tiny_pool, data)
    words = [path, "--out", str(tmp_path / "out"), "--engine", "ray"]

    def asked_on(*resources: dict[str, float]) -> tuple[object, object, object]:
        nodes[:] = [{"Alive": True, "Resources": each} for each in resources]
        asked.clear()
        assert commands.ablate(words) == console.EXIT_INCOMPLETE  # no run has a result
        (kind,) = set(asked)
        return kind

    assert asked_on({"CPU": 0.0}, {"CPU": 8.0}, {"CPU": 4.0}) == (4, 0, 4)  # jobs: 2
    assert asked_on({"CPU": 64.0}, {"CPU": 6.0, "GPU": 1.0}) == (3, 1, 3)
    assert asked_on({"CPU": 1.0}) == (1, 0, 1)

    nodes[:] = [{"Alive": True, "Resources": each} for each in ({"CPU": 9.0}, {"GPU": 1.0})]
    asked.clear()
    capsys.readouterr()
    assert commands.ablate(words) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: ranks is 1, and each needs a CPU of the node that runs it, but the largest node "
        "with 1 of the cluster's GPUs offers 0; start its Ray with a larger --num-cpus, or set "
        "fewer ranks"
    )
    assert not asked


def test_a_plan_of_rounds_says_how_many_runs_are_to_be_expected(
    tiny_pool: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = manifest(tmp_path, tiny_pool, data, **{"jobs: 2": "jobs: 2\nstop: {at_least: 2}"})
    words = ["plan", path, "--out", str(tmp_path / "out"), "--scale", "debug"]
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))  # no line on other work
    assert commands.ablate(words) == 0
    effect, line = capsys.readouterr().out.splitlines()[-2:]
    assert effect.startswith("smallest effect that 3 seeds show in 80 % of such studies: ")
    assert "an assumption of 1 point a run and the errors of 8 test samples" in effect
    assert line.startswith("stop: about ")
    monkeypatch.setattr(ablate, "expected_runs", lambda _, sd, effect=0.0: 8 - 20 * effect)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert commands.ablate([*words, "--sd", "0.01", "--effect", "0.05"]) == 0
    *_, busy, line = capsys.readouterr().out.splitlines()
    assert busy.startswith("other work: 99.0 processes on the ")
    assert line == (
        "stop: about 8 of 9 runs if no arm differs, 7 if every arm differs by 5.00 points "
        "(100 simulated studies)"
    )


def test_scales_that_cannot_be_compared_are_a_sentence_and_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(paths: list[str]) -> None:
        raise ValueError("there is one arm")

    (tmp_path / "scales" / "small").mkdir(parents=True)
    monkeypatch.setattr("clipmill.study.results.read_results", refuse)
    found = scale_decisions(three_arms(), str(tmp_path))
    assert found == ((), ("The smaller scales are not compared: there is one arm",))
