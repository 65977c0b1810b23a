"""Runs on tars that are streamed, through clipmill train."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from clipmill.manifests import console, disk
from clipmill.train.trainer.loop import StepRunner
from tests.support import commands
from tests.support.other_tars import Members, pack, picture
from tests.support.steps import RUN_SETTINGS

SETTINGS = ["--set", *(f"{key}={value}" for key, value in RUN_SETTINGS.items())]


@pytest.fixture(autouse=True)
def _usual_signals(one_thread):
    """Sums on one thread."""


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Two tars of eight samples, a lonely caption and a lonely image."""
    folder = tmp_path_factory.mktemp("tars")
    paths = []
    for number in range(2):
        members: Members = [("x.txt", b"no image"), ("y.jpg", picture())]
        for row in range(8):
            members += [(f"{row}.jpg", picture(40, 32, shade=9 * row)), (f"{row}.txt", b"a text")]
        paths.append(str(pack(folder / f"{number}.tar", members)))
    return paths


def test_a_run_on_a_pipe_trains_and_says_everywhere_that_it_cannot_be_resumed(
    tars, tmp_path, capsys, caplog
):
    out = str(tmp_path / "run")
    streams = ["--stream", f"pipe:cat {tars[0]}", tars[1]]
    assert commands.train([*streams, "--plan", *SETTINGS]) == 0
    assert "from streams of tars: not resumable" in capsys.readouterr().out
    assert not Path(out).exists()
    with caplog.at_level("INFO"):
        assert commands.train([*streams, "--out", out, "--json", *SETTINGS]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["resumable"] is False
    source = record["sources"]["stream"]
    assert source["drawn"] == 48
    assert source["skipped"]["no image"] >= 2
    assert source["skipped"]["no caption"] >= 2
    assert "this run cannot be resumed, since its tars are streams" in caplog.text
    assert "samples without image or caption were skipped" in caplog.text
    lines = Path(out, "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["sources"]["stream"]["samples"] == 48
    resolved = disk.join(out, "blend.json")
    assert (
        commands.train([resolved, "--out", out, "--resume", "auto", *SETTINGS]) == 0
    )  # it is finished


def test_a_stopped_run_is_refused_and_restart_trains_it_anew(
    tars, tmp_path, monkeypatch, capsys, caplog
):
    out = str(tmp_path / "run")
    command = ["--stream", *tars, "--out", out, *SETTINGS]
    step = StepRunner.step

    def stopped_at_2(self, ready, waited):
        if ready.batch.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, ready, waited)

    with monkeypatch.context() as patched:
        patched.setattr(StepRunner, "step", stopped_at_2)
        with pytest.raises(SystemExit) as ended:
            commands.train(command)
    assert ended.value.code == console.EXIT_SAVED
    assert "it is saved, and cannot be resumed" in caplog.text
    capsys.readouterr()
    for resume in ("auto", "required"):
        assert commands.train([*command, "--resume", resume]) == 2
        error = capsys.readouterr().err
        assert "has a checkpoint after step 2, but its blend streams tars" in error
        assert error.count("\n") == 1
    assert commands.train([*command, "--restart"]) == 0
    assert disk.read_json(disk.join(out, "run.json"))["steps"] == 6
    other = ["--stream", *tars, "--out", str(tmp_path / "new"), *SETTINGS]
    assert commands.train([*other, "--resume", "required"]) == 2
    assert "such a run cannot be resumed; leave --resume out" in capsys.readouterr().err


def test_a_broken_tar_is_exit_3_and_named_or_counted(tars, tmp_path, capsys):
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(tars[0]).read_bytes()[:9_000])
    assert (
        commands.train(["--stream", tars[1], str(cut), "--out", str(tmp_path / "a"), *SETTINGS])
        == 3
    )
    error = capsys.readouterr().err
    assert error.startswith(f"error: {cut} of stream 'stream' is broken: ")
    assert error.count("\n") == 1
    assert commands.train(["--stream", "pipe:exit 9", "--out", str(tmp_path / "b"), *SETTINGS]) == 3
    assert "pipe:exit 9 of stream 'stream' is broken" in capsys.readouterr().err
    blend = tmp_path / "blend.yaml"
    streams = {"mine": {"tars": [tars[1], "cut.tar"], "broken": "count"}}
    blend.write_text(yaml.safe_dump({"name": "streamed", "streams": streams}))
    out = str(tmp_path / "c")
    assert commands.train([str(blend), "--out", out, *SETTINGS]) == 0
    source = disk.read_json(disk.join(out, "run.json"))["sources"]["mine"]
    assert source["broken"] >= 1
    assert list(source["broken_tars"]) == [str(cut)]
