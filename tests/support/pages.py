"""The fenced blocks of the documents, and their commands run in this process.

A block whose first line is `# NAME.yaml` or `# NAME.py` is a file of that name. A block of the
language `bash` or `sh` holds commands that a test runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.support import commands

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
WITH_ENGINE = ("build", "score")


def pages() -> list[Path]:
    """All documents that people read: the site and the two files beside it."""
    site = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *site]


def blocks(page: str | Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block of a page."""
    return FENCE.findall((ROOT / page).read_text())


def commands_in(text: str) -> list[str]:
    """The lines of a block, continued ones joined, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    stripped = [re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in lines]
    return [re.sub(r"\s+", " ", line) for line in stripped if line]


def write_files(page: str, folder: Path, changes: Mapping[str, str] | None = None) -> list[str]:
    """The files of a page, written into a folder; their names. `changes`: texts to replace."""
    names = []
    for _, text in blocks(page):
        match = re.match(r"# ([\w./]+\.(?:yaml|py))\n", text)
        if match:
            for old, new in (changes or {}).items():
                text = text.replace(old, new)
            (folder / match[1]).write_text(text)
            names.append(match[1])
    return names


def runnable(page: str) -> list[str]:
    """The commands of a page that a test runs, in order."""
    lines = []
    for language, text in blocks(page):
        if language in ("bash", "sh"):
            lines += commands_in(text)
    return lines


def run_command(line: str, changes: Mapping[str, str] | None = None) -> int:
    """The exit status of `clipmill NAME …`, run in this process; without Ray. `changes`: words that
    are replaced, such as the length of a training run."""
    for old, new in (changes or {}).items():
        line = line.replace(old, new)
    program, name, *words = shlex.split(line)
    assert program == "clipmill", line
    if name in WITH_ENGINE:
        words += ["--engine", "inline"]
    return commands.run(name, words)
