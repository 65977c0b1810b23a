"""progress.json is whole or not there, and killed writers leave one partial file at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.progress.view import read_state, write_state
from tests.support.command_states import command_state


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    write_state(str(tmp_path), command_state(pid=1))
    write_state(str(tmp_path), command_state(pid=2))
    assert read_state(str(tmp_path)) == command_state(pid=2)
    assert os.listdir(tmp_path) == ["progress.json"]


def test_a_killed_writer_leaves_a_file_that_the_next_one_takes(tmp_path: Path) -> None:
    (tmp_path / ".progress.json.partial").write_text("{half")
    write_state(str(tmp_path), command_state())
    assert os.listdir(tmp_path) == ["progress.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version": 2}', '{"version": 2, "pid": "x"}']
)
def test_a_damaged_file_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert read_state(str(tmp_path)) is None


def test_an_object_store_has_a_state_too() -> None:
    write_state("memory://progress-test", command_state())
    assert read_state("memory://progress-test") == command_state()


def test_a_folder_that_is_gone_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_state(str(tmp_path / "gone"), command_state())
