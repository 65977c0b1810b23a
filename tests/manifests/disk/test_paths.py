"""Paths and URLs as text; the folder of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk


def test_braces_stand_for_many_paths() -> None:
    assert disk.expand_braces("a/{008..011}.tar") == [
        f"a/{n}.tar" for n in ["008", "009", "010", "011"]
    ]
    assert disk.expand_braces("{2..0}{x,y}") == ["2x", "2y", "1x", "1y", "0x", "0y"]
    assert disk.expand_braces("pipe:awk {x} {0..1}") == ["pipe:awk {x} 0", "pipe:awk {x} 1"]
    assert disk.expand_braces("{9..10}") == ["9", "10"]
    for text in ("w-{00..02.tar", "w-}{", "{a,{b,c}}"):
        with pytest.raises(ValueError, match=r"the braces of .* do not fit; write web-\{00000"):
            disk.expand_braces(text)
    for text in ("{0..9999999}", "{0..999999}{0..1}", "{0..999999999999999999}"):
        with pytest.raises(ValueError, match="at most 1,000,000 are listed"):
            disk.expand_braces(text)


def test_a_relative_folder_under_a_submitted_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runtime_resources" / "working_dir_files"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="lost with the job; give an absolute path"):
        disk.output_folder("out")
    assert disk.output_folder("/abs/out") == "/abs/out"
    assert disk.output_folder("s3://bucket/out") == "s3://bucket/out"
    monkeypatch.chdir(tmp_path)
    assert disk.output_folder("out") == str(tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--to is '/proc/a/b', but nothing .* to /proc \(No such"):
        disk.output_folder("/proc/a/b", "--to")  # os.access says that root may write there
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"--out is .*/file/x', but .*/file is a file"):
        disk.output_folder(str(tmp_path / "file" / "x"))
    assert disk.output_folder(str(tmp_path / "new" / "er")) == str(tmp_path / "new" / "er")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
