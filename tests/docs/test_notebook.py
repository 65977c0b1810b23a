"""The notebook of the site: it is stored without outputs, and its cells run in order, here without
Jupyter; the build of the site runs them in a kernel (`tools/test_build_site.py`).
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import clipmill

PATH = Path(__file__).resolve().parents[2] / "docs/notebook.ipynb"
NOTEBOOK = json.loads(PATH.read_text())
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS)
    assert NOTEBOOK["nbformat"] == 4
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_its_cells_run_in_order_and_show_a_pool_and_a_verdict_with_its_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for cell in CELLS:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body[-1]
        if isinstance(last, ast.Expr) and not cell["source"][-1].endswith(";"):
            tree.body.pop()
            exec(compile(tree, str(PATH), "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), str(PATH), "eval"), names))
        else:
            exec(compile(tree, str(PATH), "exec"), names)
    pool, columns, table, picture, rows, verdict, numbers = shown
    assert isinstance(pool, clipmill.Pool)
    assert pool.views["wide"].kept == len(pool.table(["key"], view="wide")) > 0
    assert columns is pool.columns
    assert len(table) == 5
    assert picture.height == 200
    assert 0 < len(rows) < pool.commits.totals.stored
    assert isinstance(verdict, clipmill.Verdict)
    assert "<svg" in verdict._repr_html_()
    assert "better" in set(numbers["verdict"])
