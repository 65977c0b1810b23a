"""The manifests and commands that the README and the guide show are right."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from manifests import reader
from manifests.schema import Ablation, Blend, Recipe, TaskSpec

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


def commands() -> list[str]:
    """Every command line `python FILE …` that is shown, with continued lines joined."""
    lines = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text().replace("\\\n", " ")
        lines += re.findall(
            r"(?:^|`|-- |/)(python (?:pipeline|train|benchmarks)/[^\n`]+)", text, re.M
        )
    return sorted({line.split("  #")[0].strip() for line in lines})


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


def test_there_are_a_recipe_a_blend_and_an_ablation_to_copy() -> None:
    texts = [yaml.safe_load(text) for _, text in blocks("yaml")]
    assert any("source" in keys for keys in texts)
    assert any("arms" in keys for keys in texts)
    assert any("pools" in keys and "views" in keys for keys in texts)


def options_of(script: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The options in a script's help. The script runs in this process: a child of its own would
    import everything again, and tests/test_layout.py starts those.
    """
    output = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", [script, "--help"])
        patch.setattr(sys, "path", sys.path[:])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / script), run_name="__main__")
    assert end.value.code == 0, output.getvalue()
    return set(re.findall(r"(--[a-z][a-z-]*)", output.getvalue()))


def test_every_command_that_is_shown_has_options_that_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, set[str]] = {}
    shown = commands()
    assert len(shown) > 10
    for line in shown:
        _, script, *words = shlex.split(line.replace("…", ""))
        assert (ROOT / script).exists(), line
        if script not in options:
            options[script] = options_of(script, monkeypatch)
        known = options[script]
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= known, f"{line}: {sorted(used - known)} are not options of {script}"


def test_every_link_leads_to_a_file() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{name} links to {target}"
