"""docs/operations.md lists exactly the statuses, reasons and metrics of the code, and every command
in it does what the page says.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from clipmill.bench import bench
from clipmill.commands.app import COMMANDS
from clipmill.manifests.columns import REASONS
from docs.tools import code_tables
from tests.support import pages
from tests.support.s3_server import s3_server, s3_variables

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/operations.md").read_text()
RECIPE = """
name: small
source:
  {kind: image_folder, paths: [images], captions: m.csv, file_column: file, caption_column: text}
fetch: {image_size: 32, rows_per_shard: 4}
filters: [caption]
views: {all: [], long: [{words: caption_words >= 2}]}
"""


def tables() -> Iterator[list[list[str]]]:
    """The tables of the page: their rows as cells, the header first."""
    rows: list[list[str]] = []
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip() for cell in cells])
        elif rows:
            yield rows[:1] + rows[2:]
            rows = []


def table(*header: str) -> list[list[str]]:
    """The rows of the table whose header begins so."""
    (found,) = [rows for rows in tables() if rows[0][: len(header)] == list(header)]
    return found[1:]


# --- reasons --------------------------------------------------------------------------------------


def test_every_reason_of_a_row_is_explained_with_its_class() -> None:
    listed = {row[0].strip("`"): row[1] for row in table("reason", "class")}
    assert listed == REASONS
    assert all(row[2] for row in table("reason", "class"))


def test_every_reason_that_the_crawl_counts_is_explained_and_no_other() -> None:
    """A ValueError of one word, and a word that is assigned to `reason`, are counted as reasons."""
    words: set[str] = set()
    for path in [
        *(ROOT / "pipeline/archives").glob("*.py"),
        *(ROOT / "pipeline/crawl").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            value: ast.expr | None = None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ValueError":
                value = node.args[0]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reject":
                value = node.args[1]
            elif isinstance(node, ast.keyword) and node.arg == "reason":
                value = node.value
            elif isinstance(node, ast.Assign):
                target = node.targets[0]
                base = target.value if isinstance(target, ast.Subscript) else target
                if getattr(base, "id", "") in ("reason", "reasons"):
                    value = node.value
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    value = target.slice if getattr(base, "id", "") == "reasons" else None
            if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z_]+", str(value.value)):
                words.add(str(value.value))
    assert sorted(words) == sorted(row[0].strip("`") for row in table("reason", "meaning"))


# --- exit statuses --------------------------------------------------------------------------------


NAMES = [name for name, _, _, _ in COMMANDS]


def statuses_of(name: str) -> set[int]:
    """The statuses in the help of a command."""
    text = bench.EXIT_STATUS if name == "bench" else code_tables.app_of(name).help_epilogue or ""
    _, _, lines = text.partition("exit status:\n")
    return {int(status) for status in re.findall(r"^  (\d+) ", lines, re.M)}


def test_the_statuses_of_every_command_are_listed() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("command", "also")}
    always = "Every command ends with 0, 2, 129, 130, 141 or 143, and some with others too"
    assert always in " ".join(PAGE.split())
    assert rows.keys() <= {f"clipmill {name}" for name in NAMES}
    for name in NAMES:
        listed, meaning_of_3 = rows.get(f"clipmill {name}", ("", ""))
        also = {int(word) for word in listed.split(",") if word}
        assert {0, 2, 129, 130, 141, 143} | also == statuses_of(name), name
        assert (3 in also) == bool(meaning_of_3), name


# --- environment variables ------------------------------------------------------------------------


def test_every_variable_of_the_code_and_of_shipped_manifests_is_listed() -> None:
    folders = ("clipmill", "manifests", "filters", "pipeline", "train", "verdict", "study")
    read = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml") and path.resolve().is_relative_to(ROOT / folder):
                read.update(re.findall(r"\bCLIPMILL_[A-Z_]*[A-Z]\b", path.read_text()))
    makefile = (ROOT / "Makefile").read_text()
    read.update(re.findall(r"\bCLIPMILL_[A-Z_]+\b", makefile))
    listed = [name for row in table("variable") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(read)


# --- commands -------------------------------------------------------------------------------------


def command_lines() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


# What is not there to purge or explain in the pool of this test ends as a mistake or does nothing.
EXPECTED = {"audit explain": 2, "audit purge": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a recipe of ten images."""
    (tmp_path / "images").mkdir()
    rows = ["file,text"]
    for number in range(10):
        Image.new("RGB", (40, 40), (20 * number, 0, 0)).save(tmp_path / f"images/{number}.jpg")
        rows.append(f"{number}.jpg,{'a dog' if number % 2 else 'dog'}")
    (tmp_path / "images/m.csv").write_text("\n".join(rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(line: str) -> int:
    """The status of a command of the page."""
    words = shlex.split(line)
    if words[0] == "clipmill":
        return pages.run_command(line)
    if words[:4] == ["aws", "s3", "cp", "--recursive"]:
        import s3fs

        s3fs.S3FileSystem().put(words[4] + "/", words[5], recursive=True)
        return 0
    assert words[0] == "cp"
    return subprocess.run(words).returncode


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
def test_the_commands_of_the_page_do_what_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("localbucket")
    lines = command_lines()
    assert len(lines) > 12
    with s3_server(folder) as url:
        for name, value in s3_variables(url).items():
            monkeypatch.setenv(name, value)
        lines = [line.replace("s3://bucket/", "s3://pools/") for line in lines]
        # There is nothing to watch at first.
        for line in sorted(lines, key=lambda line: "audit watch" in line):
            status = run_line(line)
            expected = next((code for words, code in EXPECTED.items() if words in line), 0)
            assert status == expected, (line, capsys.readouterr())
            if "s3://pools" in line and "clipmill build" in line:
                assert "it was complete already; nothing was done" in capsys.readouterr().out
    assert "no command writes into out/pool" in capsys.readouterr().out


@pytest.mark.slow
def test_a_moved_pool_is_the_same_pool(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_line = "clipmill build recipe.yaml --out {}"
    assert run_line(build_line.format("out/pool")) == 0
    shutil.move("out/pool", "elsewhere")
    assert run_line("clipmill audit verify elsewhere") == 0
    capsys.readouterr()
    assert run_line(build_line.format("elsewhere")) == 0
    assert "nothing was done" in capsys.readouterr().out
