"""The words of a command line: what is wrong with them is told in one line, with exit status 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clipmill.commands import app
from clipmill.manifests import console
from docs.tools import code_tables

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scor"], 'Unknown command "scor". Did you mean "score"?'),
        (["score"], "POOL is missing"),
        (["decide", "runs.csv", "--csv"], "--csv has no value behind it"),
        (["audit"], "POOL is missing"),
        (["audit", "verfy", "p"], "did you mean `clipmill audit verify`?"),
        (["audit", "p", "q"], "'q' belongs to no option; see --help"),
        (["ablate", "plam", "a.yaml"], "did you mean `clipmill ablate plan`?"),
        (["score", "p", "--filter", "caption"], "Unknown option: --filter"),
        (["train", "--workers", "2", "--train-data", "{0..9}.tar"], "behind --from-open-clip"),
        (["train", "b.yaml", "--lr=1e-3"], "a setting behind --set"),
        (
            ["build", "--url_list", "u.parquet"],
            "Unknown option: --url_list; options of img2dataset",
        ),
        (["score", "p", "--filters"], "--filters requires at least 1 element"),
        (["build", "r.yaml", "--engine", "RAY"], 'Choose from: "auto", "inline", "ray"'),
        (["audit", "trace", "p", "1.5"], "'1.5' is no whole number"),
        (["filter", "random-like", "p", "v", "--seed", "0", "1e3"], "'1e3' is no whole number"),
        (["look", "p", "--images", "0x10"], "'0x10' is no whole number"),
        (["build", "r.yaml", "\x1b[31m"], r"'\x1b[31m' belongs to no option"),
    ],
)
def test_wrong_words_are_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(words) == console.EXIT_MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "~/pool"],
        ["weights", "local-dir:~/pool", "--to", "x"],
        ["decide", "runs.csv", "--page=~/pool/page.html"],
        ["train", "--mix=~/pool/all=1", "--plan"],
        ["train", "~/pool", "--out", "x", "--set", "init=~/pool"],
    ],
)
def test_the_home_folder_is_read_where_a_shell_leaves_it(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text("arm,seed,acc\na,0,0.5\na,1,0.6\nb,0,0.7\nb,1,0.6\n")
    status = app.main(words)
    shown = capsys.readouterr()
    assert "~" not in shown.out + shown.err
    assert status == 2 or (tmp_path / "home" / "pool" / "page.html").exists()
    assert not (tmp_path / "~").exists()


def test_the_bare_command_and_its_help_name_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.main([]) == 0
    bare = capsys.readouterr().out
    assert app.main(["--help"]) == 0
    assert capsys.readouterr().out == bare
    for name, _, group, text in app.COMMANDS:
        assert name in bare
        assert group.name in bare
        assert text.split()[0] in bare


def test_a_package_that_is_not_installed_is_named_with_the_remedy() -> None:
    code = (
        "import sys; sys.modules['fastwarc'] = None; sys.argv[1:] = ['build', 'r.yaml']\n"
        "from clipmill.__main__ import start; start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == console.EXIT_MISTAKE
    (line,) = done.stderr.splitlines()
    assert "has no package 'fastwarc'; run `make venv`" in line


def test_a_locale_of_ascii_has_all_signs_of_a_verdict() -> None:
    """UTF-8, as Python itself writes it there where nothing forbids it."""
    done = subprocess.run(
        [sys.executable, "-m", "clipmill", "decide", "examples/cifar10_120_runs.parquet"],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=900,
        check=True,
    )
    assert "clip30                24    44.6 ± 0.9  +12.1 [+10.6, +13.6]" in done.stdout.decode()


def test_the_sentences_below_the_options_fit_a_terminal() -> None:
    """Of 80 columns, which would break longer lines once more. A command line may be longer."""
    names = [name for name, _, _, _ in app.COMMANDS if name != "bench"]  # argparse fills its own
    for name in names:
        lines = (code_tables.app_of(name).help_epilogue or "").splitlines()
        assert [line for line in lines if len(line) > 80 and not line.startswith("  ")] == []
