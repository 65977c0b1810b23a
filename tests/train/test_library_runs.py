"""`clipmill.build_pool`, `train_model`, `evaluate_model` and `run_ablation`: what the commands do,
in a process of somebody else, which is as it was when they return.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import clipmill
from clipmill.library import calls
from clipmill.manifests import console, disk, waits
from clipmill.train.parallel import ray_train
from clipmill.train.trainer import loop
from tests.support import commands
from tests.support.ablations import TRAIN
from tests.support.notebooks import fake_notebook

ABLATION = "manifests/ablations/demo.yaml"
SETTINGS = {**TRAIN, "samples_seen": 48, "log_every": 1}


def state_of_process() -> dict[str, Any]:
    """What a caller may have set."""
    kind, keys, *rest = np.random.get_state()
    return {
        "variables": dict(os.environ),
        "signals": [signal.getsignal(each) for each in console.STOP_SIGNALS],
        "random": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "start method": torch.multiprocessing.get_start_method(allow_none=True),
        "handlers": (list(logging.root.handlers), list(logging.getLogger("clipmill").handlers)),
        "levels": (logging.root.level, logging.getLogger("clipmill").level),
        "disabled": logging.root.manager.disable,
        "folder": os.getcwd(),
        "guest": console.is_guest(),
    }


@contextmanager
def unchanged() -> Iterator[None]:
    before = state_of_process()
    yield
    assert state_of_process() == before


def blend_file(folder: Path, pool: str) -> Path:
    path = folder / "blend.yaml"
    path.write_text(yaml.safe_dump({"name": "b", "pools": {"p": pool}, "views": {"p/all": 1}}))
    return path


def test_a_pool_is_built_twice_and_opened(tiny: Path) -> None:
    with unchanged():
        built = clipmill.build_pool(tiny / "tiny.yaml", out=tiny / "pool", engine="inline")
    assert (built.causes, built.totals["changed"]) == ((), True)
    assert built.pool.commits.totals.rows == 48
    with unchanged():
        again = clipmill.build_pool(tiny / "tiny.yaml", out=tiny / "pool", engine="inline")
    assert not again.totals["changed"]
    assert again.pool.fingerprint == built.pool.fingerprint


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_that_the_call_started_ends_with_it_and_one_of_the_caller_stays(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with unchanged():
        clipmill.build_pool(tiny / "tiny.yaml", out=tiny / "first")
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "600")  # on a busy machine
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with unchanged():
            clipmill.build_pool(tiny / "tiny.yaml", out=tiny / "second")
        assert ray.is_initialized()
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)  # Ray has its own


@pytest.mark.slow
def test_a_run_is_trained_as_the_command_trains_it(tiny_pool: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    path = blend_file(tmp_path, tiny_pool)
    with unchanged():
        record = clipmill.train_model(path, out=tmp_path / "run", settings=SETTINGS)
    assert record.samples == 48
    with unchanged():
        assert clipmill.train_model(path, out=tmp_path / "run", settings=SETTINGS) == record
    words = [f"{name}={value}" for name, value in SETTINGS.items()]
    out = tmp_path / "command"
    assert commands.train([str(path), "--out", str(out), "--set", *words]) == 0
    file = "export/open_clip_model.safetensors"
    assert (tmp_path / "run" / file).read_bytes() == (out / file).read_bytes()
    mixed = clipmill.train_model(
        mix={f"{tiny_pool}/all": 1}, out=tmp_path / "mix", settings=SETTINGS, seed=0
    )
    assert mixed.steps == record.steps


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_the_same_call_resumes_it(
    tiny_pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = blend_file(tmp_path, tiny_pool), tmp_path / "run"
    whole = clipmill.train_model(path, out=tmp_path / "whole", settings=SETTINGS)
    original = loop.contrastive

    def interrupted(*words: Any, **options: Any) -> Any:
        monkeypatch.setattr(loop, "contrastive", original)
        signal.raise_signal(signal.SIGINT)
        return original(*words, **options)

    monkeypatch.setattr(loop, "contrastive", interrupted)
    with unchanged(), pytest.raises(KeyboardInterrupt, match="the same call resumes it"):
        clipmill.train_model(path, out=out, settings=SETTINGS)
    record = clipmill.train_model(path, out=out, settings=SETTINGS)
    assert 0 < record.resumed_at < record.steps == whole.steps
    file = "export/open_clip_model.safetensors"
    assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.slow
def test_workers_of_ray_train_the_run_that_was_asked_for(
    tiny_pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cluster adds is tested in `test_run.py`: here a worker is this process."""
    path, ended = blend_file(tmp_path, tiny_pool), []

    def start(main: Any, request: Any, out: str, workers: int) -> int:
        ended.append((out, workers, main(request)))
        return int(ended[-1][2])

    monkeypatch.setattr(ray_train, "start", start)
    out, settings = tmp_path / "run", {**SETTINGS, "beta1": 0.8}
    record = clipmill.train_model(path, out=out, preset="micro", settings=settings, ray=True)
    assert ended == [(str(out), 1, 0)]
    plain = tmp_path / "plain"
    assert clipmill.train_model(path, out=plain, preset="micro", settings=settings) != record
    file = "export/open_clip_model.safetensors"
    assert (out / file).read_bytes() == (plain / file).read_bytes()
    broken = {**settings, "lr": 1e30}
    with pytest.raises(RuntimeError, match="ended with status 3"):
        clipmill.train_model(path, out=tmp_path / "broken", settings=broken, ray=True)


@pytest.mark.slow
def test_in_a_notebook_a_run_is_one_bar(
    tiny_pool: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_notebook(monkeypatch)
    monkeypatch.setattr(logging.root, "handlers", [])
    path = blend_file(tmp_path, tiny_pool)
    with unchanged():
        record = clipmill.train_model(path, out=tmp_path / "run", settings=SETTINGS)
    shown = capsys.readouterr().err
    assert sum("\r" in line for line in shown.split("\n")) <= 2  # a log line begins a new one
    assert f" {record.steps}/{record.steps} " in shown.split("\r")[-1].split("\n")[0]
    assert shown.count("\r") > record.steps
    assert "step 1 of" not in shown


@pytest.mark.slow
def test_a_model_is_evaluated_and_an_ablation_run(
    tiny_pool: str, data: str, tmp_path: Path
) -> None:
    task = {"name": "colours", "kind": "classification", "data": data}
    manifest = {
        "name": "tiny", "question": "Is half as good as all?", "pools": {"web": {"out": tiny_pool}},
        "arms": {"raw": "web/all", "half": "web/half"}, "baseline": "raw", "seeds": [0, 1],
        "train": TRAIN, "evaluate": [task], "primary": "colours",
    }  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(manifest))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    torch.set_num_threads(2)
    with unchanged():
        run = clipmill.run_ablation(tmp_path / "tiny.yaml", out=tmp_path / "out")
    assert run.results.failed == ()
    assert str(run) == run.text
    assert disk.read_json(run.results_json)["verdict"] == run.results.verdict
    seconds = clipmill.run_ablation(tmp_path / "tiny.yaml", out=tmp_path / "out")
    assert seconds.results == run.results
    model = tmp_path / "out/runs/raw/seed-0"
    with unchanged():
        done = clipmill.evaluate_model(model, tasks=str(tmp_path / "task.yaml"))
    assert done is not None
    measured = pq.read_table(tmp_path / "out/measurements.parquet").to_pylist()
    of_run = [row for row in measured if (row["arm"], row["seed"]) == ("raw", 0)]
    assert done.metrics["colours"] == {row["metric"]: row["value"] for row in of_run}
    assert (Path(done.predictions) / "colours.parquet").exists()


def test_a_mistake_is_one_line_of_a_value_error(tiny_pool: str, tmp_path: Path) -> None:
    path = blend_file(tmp_path, tiny_pool)
    for call, message in (
        (lambda: clipmill.train_model(out=tmp_path / "r"), "give either BLEND.yaml or --mix"),
        (lambda: clipmill.train_model(path, mix={"a/b": 1}, out="r"), "give one of a blend"),
        (lambda: clipmill.train_model(path, out=tmp_path, settings={"lrr": 1}), "'lrr'"),
        (lambda: clipmill.train_model(path, out=tmp_path, ranks=0), "--ranks is 0"),
        (lambda: clipmill.evaluate_model(tmp_path), "give either tasks or a suite"),
        (lambda: clipmill.evaluate_model(tmp_path, tasks="no.yaml"), "no.yaml"),
        (lambda: clipmill.build_pool(out=tmp_path), "give either a recipe or from_lock"),
        (lambda: clipmill.build_pool("no.yaml", out=tmp_path), "no.yaml"),
        (lambda: clipmill.build_pool(ABLATION, out=tmp_path), "run it with: clipmill build"),
        (lambda: clipmill.run_ablation("no.yaml", out=tmp_path), "no.yaml"),
        (lambda: clipmill.run_ablation(path, out=tmp_path, scale="a", scales=["b"]), "--scale"),
    ):
        with unchanged(), pytest.raises(ValueError, match=r"\A[^\n]+\Z") as error:
            call()
        assert message in str(error.value)


# --- whose process it is --------------------------------------------------------------------------


def test_a_hang_interrupts_a_call_and_ends_the_process_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    waits.end_now(3, "of a command")
    assert statuses == [3]

    def hang() -> None:
        waits.end_now(3, "of a caller")

    with pytest.raises(KeyboardInterrupt), calls.guest(), waits.watched(hang):
        threading.Event().wait(600)
    assert statuses == [3]


def test_inside_of_a_command_the_process_is_the_commands() -> None:
    seen = []

    def body() -> int:
        with calls.guest():
            seen.append(console.is_guest())
        return 0

    assert console.run_command(body) == 0
    with calls.guest():
        seen.append(console.is_guest())
    assert seen == [False, True]
    assert not console.is_guest()


def test_a_second_stop_signal_of_a_call_does_what_the_caller_set() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(-number))
    try:
        with calls.guest(), console.on_stop_signal(seen.append):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM, -signal.SIGTERM]


def test_log_lines_are_shown_where_the_caller_shows_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("clipmill.pipeline.fetch")
    own = logging.StreamHandler()
    monkeypatch.setattr(logging.root, "handlers", [])
    with calls.guest():
        logger.info("one %d", 1)
    monkeypatch.setattr(logging.root, "handlers", [own])
    with calls.guest():
        logger.info("two")
    assert capsys.readouterr().err.rstrip().endswith("fetch: one 1")


def test_a_full_disk_is_a_value_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing/there: No such file"), calls.guest():
        (tmp_path / "nothing/there").read_bytes()
