"""Pyright, strict, on the examples and on what the page "From Python" writes; mypy is in
`make check`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
# Lines of a page show values and begin anew; a script would do neither.
OF_A_PAGE = "# pyright: reportUnusedExpression=false, reportDuplicateImport=false\n"


def problems(folder: Path, include: list[str]) -> list[str]:
    """What pyright says of some files, a line each."""
    config = {**SETTINGS, "include": include, "extraPaths": [os.path.relpath(ROOT, folder)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    variables = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [*command, "-p", str(folder)], capture_output=True, text=True, env=variables
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["summary"]["filesAnalyzed"] > 0
    found = []
    for each in document["generalDiagnostics"]:
        line = each["range"]["start"]["line"] + 1
        found.append(f"{Path(each['file']).name}:{line}: {each['message']}")
    return found


@pytest.mark.slow
def test_the_examples_and_the_page_are_clean(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    page = (ROOT / "docs/from_python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "page.py").write_text(OF_A_PAGE + "\n".join(blocks))
    examples = os.path.relpath(ROOT / "examples", tmp_path)
    assert problems(tmp_path, ["page.py", f"{examples}/*.py"]) == []


@pytest.mark.slow
def test_a_mistake_in_a_call_is_found(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    wrong = (
        "import clipmill\n\n"
        'loader = clipmill.Loader("pool/all", batch_size="256", image_size=224)\n'
        "for batch in loader:\n    batch.images\n"
        'clipmill.decide("runs.csv", basline="raw").tabel\n'
        'clipmill.open_pool("pool").scan(["uid"], veiw="all")\n'
    )
    (tmp_path / "wrong.py").write_text(wrong)
    lines = {int(line.split(":")[1]) for line in problems(tmp_path, ["wrong.py"])}
    assert lines == {3, 5, 6, 7}
