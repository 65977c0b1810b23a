"""benchmarks/whole.py: its web against what it expects, and a command that is killed."""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import whole
from benchmarks.scaling import web
from clipmill.pipeline.archives.wat import batches_of_wat


def test_the_web_answers_as_the_steps_expect() -> None:
    kinds = Counter(whole.kind_of(number) for number in range(1000))
    assert kinds == {"drawn": 930, "copy": 20, "gone": 30, "text": 10, "cut": 10}
    answers: dict[int, Any] = {}
    with web.serving(1) as (_, port):
        for number in (7, 47, 48, 49, 71):
            url = f"http://127.1.0.1:{port}/{whole.kind_of(number)}/{number}.jpg"
            try:
                with urllib.request.urlopen(url, timeout=30) as response:
                    answers[number] = response.read()
            except urllib.error.HTTPError as error:
                answers[number] = error.code
    assert answers[49] == answers[47] == web.drawn(47) != answers[48]
    assert answers[7] == 404
    assert b"<html>" in answers[71]


def test_a_wat_has_every_pair_and_one_of_a_hundred_twice(tmp_path: Path) -> None:
    whole.write_wat(tmp_path, file=1, count=400)
    batches = batches_of_wat(str(tmp_path / "00001.warc.wat.gz"), Counter())
    table = pa.Table.from_batches(list(batches)).select(["url", "caption"])
    pairs = Counter((row["url"], row["caption"]) for row in table.to_pylist())
    expected = {
        f"http://site{n % 200}.whole.test/{whole.kind_of(n)}/{n}.jpg": whole.caption_of(n)
        for n in range(400, 800)
    }
    assert dict(pairs.keys()) == expected
    twice = {url for (url, _), count in pairs.items() if count == 2}
    assert twice == {url for url in expected if int(url[-7:-4]) % 100 == 17}


COMMAND = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for number in range(6):
    (folder / f"{number}.part").touch()
    if number == 3 and not (folder / "killed").exists():
        time.sleep(60)
"""


def test_a_killed_command_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "INTERVAL_S", 0.05)
    command = [sys.executable, "-c", COMMAND, str(tmp_path)]
    kills = [(0.5, "driver")]

    def done() -> float:
        part = whole.files_done(tmp_path, "*.part", 6)()
        if part >= 0.5:
            (tmp_path / "killed").touch()
        return part

    disturbed = whole.Disturbed(
        command,
        tmp_path / "log",
        done,
        kills,
        web=SimpleNamespace(),  # type: ignore[arg-type]
    )
    figures = disturbed.run()
    assert figures["statuses"] == [-signal.SIGKILL, 0]
    assert figures["killed"] == ["driver"]
    assert not figures["not_killed"]


def test_a_mistake_is_not_tried_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(2)"]
    web_ = SimpleNamespace()
    disturbed = whole.Disturbed(command, tmp_path / "log", lambda: 0.0, [], web_)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"\[2\]"):
        disturbed.run()
