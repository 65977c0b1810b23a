"""The manifests and commands that the README and the guide show are right."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from cyclopts import App, CycloptsError, MissingArgumentError, ValidationError

from clipmill.commands.app import COMMANDS, root_app
from clipmill.manifests import console, reader
from clipmill.manifests.schema import Ablation, Blend, Recipe, TaskSpec
from docs.tools import reference
from tests.support import pages

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(language: str) -> list[tuple[str, str]]:
    """(document, text) of every fenced block in a language."""
    code_blocks = []
    for name in DOCUMENTS:
        for kind, text in BLOCK.findall((ROOT / name).read_text()):
            if kind == language:
                code_blocks.append((name, text))
    return code_blocks


STAGES = ("crawl", "fetch", "score", "choose", "blend", "train", "evaluate", "report")
RUN_BY = {
    "docs/growing.md": "tests/test_quick_starts.py",
    "docs/interop.md": "tests/test_quick_starts.py",
    "docs/look.md": "tests/test_quick_starts.py",
    "docs/operations.md": "tests/test_operations.py",
    "docs/consent.md": "tests/test_blurred_faces.py",
    "docs/start/datasets.md": "tests/test_quick_starts.py",
    "docs/start/datacomp.md": "tests/test_quick_starts.py",
    "docs/start/results.md": "tests/test_quick_starts.py",
    "docs/start/images.md": "tests/test_quick_starts.py",
    "docs/start/img2dataset.md": "tests/test_quick_starts.py",
    "docs/start/open_clip.md": "tests/test_quick_starts.py",
    **{f"docs/stages/{stage}.md": "tests/test_quick_starts.py" for stage in STAGES},
}
# Commands in blocks that are not `bash`, by their beginning: why no test runs them as they stand.
NOT_RUN = {
    "ray start": "a cluster: tests/test_nodes.py runs it on nodes of its own",
    "STORE=": "a variable of the jobs below it",
    "export ": "a variable of the commands below it",
    "ray job submit": "a cluster: tests/test_jobs.py and tests/test_nodes.py submit jobs",
    "img2dataset --url_list": "the internet, and a program of others",
    "clip-retrieval inference": "a program of others",
    "python -m open_clip_train.main": "a program of others, for hours",
    "clipmill demo --out": "minutes: tests/test_null_web.py runs such an ablation",
    "clipmill try": "minutes: tests/clipmill/test_tryout.py",
    "clipmill decide examples": "an installed wheel: tests/test_wheel.py",
    "clipmill decide out/small": "folders of ablations: tests/verdict/decisions has their form",
    "clipmill demo manifests/ablations/cifar10_scales.yaml": "hours: tests/train/test_ablate.py",
    "clipmill ablate my_ablation.yaml --scales": "tests/train/test_ablate.py has one",
    "clipmill build sources.yaml": "a swarm: tests/verdict/decisions/test_blends.py",
    "clipmill mix": "a swarm: tests/verdict/decisions/test_blends.py",
    "clipmill train out/found": "a swarm: tests/verdict/decisions/test_blends.py",
    "clipmill ablate out/found": "a swarm: tests/verdict/decisions/test_blends.py",
    "clipmill why": "runs: tests/clipmill/test_why.py, tests/study/reporting/test_changes.py",
    "clipmill ablate out/why/": "hours: tests/clipmill/test_why.py",
    "clipmill demo manifests/ablations/cifar10_why.yaml": "CIFAR-10, two hours",
    "clipmill audit lock out/pool": "two labs and a web: tests/pipeline/lock",
    "clipmill audit consent out/pool": "a web: tests/pipeline/audit/test_consent.py",
    "clipmill audit explain out/pool": "a web: tests/pipeline/audit/test_consent.py",
    "clipmill build --from-lock": "two labs and a web: tests/pipeline/lock",
    "clipmill audit lock out/theirs": "two labs: tests/pipeline/lock",
    "clipmill audit same-rows out/pool": "two labs: tests/pipeline/lock",
    "clipmill look out/pool --serve": "runs until Ctrl-C: tests/pipeline/look",
    "python benchmarks/studies/scales.py": "runs of hours; tests/benchmarks/studies has its table",
    "python examples/miniweb/small_web.py cifar10": "a download: test_photographs.py makes one",
    "clipmill demo manifests/ablations/cifar10.yaml": "hours: test_photographs.py",
    "clipmill evaluate out/run --suite": "data of 38 tasks",
    "clipmill evaluate out/run --task objects.yaml --average-last": "two checkpoints:"
    " tests/train/test_evaluate.py",
    "torchrun --nproc-per-node 4": "four processes and ImageNet",
    "clipmill train mostly_long.yaml --out out/run --preset datacomp_small": "eight GPUs",
    "clipmill train mostly_long.yaml --out out/lit": "weights; tests/train/trainer/test_loop.py",
    "clipmill train mostly_long.yaml --out out/flip": "a GPU; tests/train/test_resume.py",
    "clipmill train mostly_long.yaml --out out/siglip": "a GPU; tests/train/trainer/test_loop.py",
    "clipmill train mostly_long.yaml --out out/rn50": "a GPU; tests/train/test_open_clip_models.py",
    "clipmill train trusted.yaml": "a GPU; tests/pipeline/test_ablation_run.py has a scorer",
    "clipmill build manifests/recipes/datacomp_": "data of DataComp, or its URLs:"
    " tests/test_published_recipes.py",
    "SCORER=": "the result of the run above it",
    "clipmill bench": "minutes: tests/benchmarks/trainer/test_bench.py",
    "make ": "minutes to hours: .ci/run calls make test",
}


BENCH = "benchmarks/trainer/bench.py"
# What `ray job submit` and torchrun start: the command of the same words.
FILES = {
    "pipeline/build.py": "build",
    "pipeline/score.py": "score",
    "pipeline/filter.py": "filter",
    "train/run.py": "train",
    "train/evaluate.py": "evaluate",
    "train/ablate.py": "ablate",
    "train/report.py": "report",
}
SHOWN = re.compile(
    r"(?:^|-- |=\S+ )((?:python -m )?clipmill .+|python (?:pipeline|train|benchmarks|examples)/.+)"
)


def text_of(name: str) -> str:
    """A document as the site shows it, with the examples of every command's help."""
    return reference.fill((ROOT / name).read_text())


def in_blocks() -> list[str]:
    """Every command line `clipmill NAME …` and `python FILE …` of a block."""
    lines = []
    for name in DOCUMENTS:
        for language, text in pages.FENCE.findall(text_of(name)):
            if language not in ("yaml", "python"):
                lines += pages.commands_in(text)
    return sorted({match[1] for line in lines if (match := SHOWN.search(line))})


def in_text() -> list[str]:
    """Those of the text, which may leave words out."""
    lines = []
    for name in DOCUMENTS:
        prose = pages.FENCE.sub("", text_of(name)).replace("\n", " ")
        lines += re.findall(r"`([^`]+)`", prose)
    return sorted({match[1] for line in lines if (match := SHOWN.search(line))})


@pytest.mark.parametrize(("document", "text"), blocks("yaml"))
def test_every_manifest_that_is_shown_can_be_read(
    document: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("MINIWEB", "MINIWEB_PORT", "SCORER", "IMAGENET", "DATACOMP", "CLIPMILL_USER_AGENT")
    for name in names:
        monkeypatch.setenv(name, "1")
    keys = yaml.safe_load(text)
    if set(keys) <= {"filters", "views"}:  # a part: a recipe around it makes it one
        text += "name: shown\nsource: {kind: shards, paths: [shards]}\n"
        keys = yaml.safe_load(text)
    kind = Recipe if "source" in keys else Ablation if "arms" in keys else Blend
    if "kind" in keys:
        kind = TaskSpec
    path = tmp_path / "shown.yaml"
    path.write_text(text)
    manifest = reader.read_manifest(path, kind)
    assert manifest.name == keys["name"], document


class _ParserIsThereError(Exception):
    """Ends a program at the moment when it would read its arguments."""


@functools.cache
def parser_of(script: str) -> argparse.ArgumentParser:
    """The parser that a script of the checkout builds. Nothing of the script runs after that.

    ValueError if it reads no arguments.
    """
    parsers: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        parsers.append(parser)
        raise _ParserIsThereError

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", keep),
        mock.patch.object(argparse.ArgumentParser, "parse_args", keep),
        mock.patch.object(console, "end_on_stop_signals"),  # of this process
        mock.patch.object(sys, "argv", [script]),
        mock.patch.object(sys, "path", sys.path[:]),
        contextlib.suppress(_ParserIsThereError, SystemExit),
    ):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    if not parsers:
        raise ValueError(f"{script} read no arguments")
    return parsers[0]


def options_of(app: App) -> set[str]:
    """The options of a command that is called without a sub-command."""
    arguments = app.assemble_argument_collection()
    return {name for argument in arguments if argument.parse for name in argument.names}


def parse(line: str, *, whole: bool = True) -> None:
    """Parse a command line as its program does. ValueError for a mistake.

    Where a part of it is left out (…), only the options are compared; so they are with `whole`
    false where an argument is missing.
    """
    words = shlex.split(line.split("|")[0].split(";")[0])
    if words[:3] == ["python", "-m", "clipmill"]:
        words = words[2:]
    if words[0] == "python" and words[1] in FILES:
        words = ["clipmill", FILES[words[1]], *words[2:]]
    if words[:2] == ["clipmill", "bench"]:  # its options are those of a script
        words = ["python", BENCH, *words[2:]]
    _, name, *rest = words
    if words[0] == "python":
        parse_script(line, name, rest)
        return
    if name in ("COMMAND", "--help"):
        return
    if name not in {each for each, _, _, _ in COMMANDS}:
        raise ValueError(f"{line}: there is no command {name!r}")
    if "--help" in rest:
        rest, whole = [word for word in rest if word != "--help"], False
    app = root_app(name)
    options = [word.split("=")[0] for word in rest if word.startswith("--")]
    used = {word for word in options if " " not in word}  # not a quoted line of another program
    try:
        _, apps, _ = app.parse_commands([name, *rest])
        known = options_of(apps[-1])
        if "…" not in line:
            app.parse_args([name, *rest], print_error=False, exit_on_error=False)
    except (MissingArgumentError, ValidationError) as error:
        if whole:
            raise ValueError(f"{line}: {error}") from None
    except CycloptsError as error:
        raise ValueError(f"{line}: {error}") from None
    if unknown := used - known:
        raise ValueError(f"{line}: {sorted(unknown)} are not options of it")


def parse_script(line: str, script: str, words: list[str]) -> None:
    """Parse the words after `python FILE` with the file's own parser. ValueError for a mistake."""
    parser = parser_of(script)
    if "…" in line:
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        unknown = used - set(parser._option_string_actions)
        if unknown:
            raise ValueError(f"{line}: {sorted(unknown)} are not options of {script}")
        return
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            parser.parse_args(words)
    except SystemExit as end:
        if end.code:
            raise ValueError(f"{line}: {errors.getvalue().splitlines()[-1]}") from None


def fenced() -> list[tuple[str, str, str]]:
    """(document, language, command) of every command in a fenced block."""
    shown = []
    for name in DOCUMENTS:
        for language, text in pages.blocks(name):
            if language in ("yaml", "python") or name.startswith("docs/reference/"):
                continue
            shown += [(name, language, line) for line in pages.commands_in(text)]
    programs = (
        "clipmill ",
        "python ",
        "ray ",
        "torchrun ",
        "make ",
        "img2dataset ",
        "clip-retrieval ",
        "aws ",
    )
    return [
        each
        for each in shown
        if each[2].startswith((*programs, "export ", "STORE=", "SCORER=", "cp "))
    ]


def test_every_command_that_is_shown_is_understood_by_its_parser() -> None:
    lines = in_blocks()
    assert len(lines) > 80
    for line in lines:
        parse(line)
    for line in in_text():
        parse(line, whole=False)


def test_every_command_is_shown_somewhere() -> None:
    shown = {line.split()[1] for line in in_blocks() if line.startswith("clipmill ")}
    assert shown == {name for name, _, _, _ in COMMANDS}


def test_every_fenced_command_is_run_by_a_test_or_has_a_reason_why_not() -> None:
    used = set()
    for name, language, line in fenced():
        if language in ("bash", "sh"):
            assert name in RUN_BY, f"{name}: which test runs {line!r}?"
            used.add(name)
            continue
        reasons = [start for start in NOT_RUN if line.startswith(start)]
        assert reasons, f"{name}: {line!r} is neither run (a bash block) nor in NOT_RUN"
        used.update(reasons)
    assert used == {*RUN_BY, *NOT_RUN}
    for page, test in RUN_BY.items():
        assert (ROOT / test).exists(), page
        stem = Path(page).stem
        assert stem in (ROOT / test).read_text(), f"{test} does not name {page}"


def test_every_target_of_make_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name in DOCUMENTS:
        for target in re.findall(r"(?:^|`)make ([\w-]+)", (ROOT / name).read_text(), re.M):
            assert target in targets, f"{name}: make {target}"


def test_every_link_leads_to_a_file() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{name} links to {target}"
