"""The library's face: the names of `import clipmill`, and what a question about runs answers."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import clipmill
from clipmill.commands.app import main
from clipmill.manifests import console
from clipmill.verdict.decide.exports import COLUMNS
from clipmill.verdict.tables.reader import VERDICTS

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "examples/cifar10_120_runs.parquet"
RATIOS, METRICS = (ROOT / f"examples/cifar10_mix_{name}.csv" for name in ("ratios", "metrics"))
FRAME = pd.DataFrame(
    {
        "arm": ["raw", "raw", "raw", "clip", "clip", "clip"],
        "seed": [0, 1, 2, 0, 1, 2],
        "accuracy": [0.31, 0.33, 0.32, 0.41, 0.40, 0.42],
    }
)


def printed(*words: str) -> str:
    """What the command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main([str(word) for word in words]) == 0
    return output.getvalue()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that refuses its words, as the text of a ValueError."""
    assert main(words) == console.EXIT_MISTAKE
    line = capsys.readouterr().err.strip()
    assert line.startswith("error: ")
    assert "\n" not in line
    return line.removeprefix("error: ")


def test_the_names_are_there_and_nothing_is_loaded_before_one_is_used() -> None:
    code = (
        "import sys, clipmill\n"
        "heavy = {'torch', 'ray', 'duckdb', 'pyarrow', 'numpy', 'pandas', 'scipy'}\n"
        "first = heavy & set(sys.modules)\n"
        "missing = [name for name in clipmill.__all__ if name not in dir(clipmill)]\n"
        "clipmill.decide\n"
        "print(sorted(first), missing, sorted({'torch', 'ray', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[] [] []", done.stderr
    named = sorted(name for names in clipmill.MODULES.values() for name in names)
    assert clipmill.__all__ == named
    assert all(getattr(clipmill, name).__name__ == name for name in named)
    with pytest.raises(AttributeError, match="no attribute 'decides'"):
        clipmill.decides  # noqa: B018


def test_the_names_that_a_type_checker_sees_are_those_that_are_there() -> None:
    tree = ast.parse((ROOT / "clipmill/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        name.asname: node.module.removeprefix("clipmill.")
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    assert seen == {name: module for module, names in clipmill.MODULES.items() for name in names}


def test_a_frame_a_table_rows_and_a_path_give_the_verdict_that_the_command_prints(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.parquet"
    FRAME.to_parquet(path)
    text = clipmill.decide(path).text
    assert printed("decide", str(path)) == f"{text}\n"
    head = text.partition("Read as:")[0]
    for data in (FRAME, pq.read_table(path), FRAME.to_dict("records"), FRAME.to_dict("list")):
        verdict = clipmill.decide(data)
        assert verdict.text.partition("Read as:")[0] == head
        assert str(verdict) == repr(verdict) == verdict.text
        assert verdict.account.rows_used == verdict.account.cells_used == 6
    assert "pandas DataFrame" in clipmill.decide(FRAME).text


def test_the_forms_of_a_verdict_are_those_that_the_command_writes(tmp_path: Path) -> None:
    options = {"--markdown": "v.md", "--latex": "v.tex", "--csv": "v.csv", "--svg": "v.svg"}
    words = [word for option, name in options.items() for word in (option, str(tmp_path / name))]
    words += ["--baseline", "clip50", "--effect", "0.01", "--equivalence", "0.005", "--json"]
    output = printed("decide", str(RUNS), *words, "--page", str(tmp_path / "v.html"))
    keywords: Any = {"baseline": "clip50", "effect": 0.01, "equivalence": 0.005}
    verdict = clipmill.decide(pq.read_table(RUNS), **keywords)
    assert (tmp_path / "v.md").read_text() == verdict.to_markdown()
    assert (tmp_path / "v.tex").read_text() == verdict.to_latex()
    assert (tmp_path / "v.csv").read_text() == verdict.to_csv()
    assert (tmp_path / "v.svg").read_text() == verdict.to_svg()
    of_command, of_library = json.loads(output.splitlines()[-1]), json.loads(verdict.to_json())
    assert of_command["account"].pop("form") == "Parquet"
    assert of_library["account"].pop("form") == "pyarrow Table"
    assert of_library == of_command
    assert (tmp_path / "v.html").read_text() == clipmill.decide(RUNS, **keywords).to_html()


def test_the_table_of_a_verdict_has_the_numbers_of_the_csv() -> None:
    verdict = clipmill.decide(RUNS)
    read = pd.read_csv(io.StringIO(verdict.to_csv()))
    own = verdict.table.to_pandas()
    assert list(own.columns) == list(read.columns)
    for name in ("mean", "difference", "low", "high", "p_adjusted"):
        pd.testing.assert_series_equal(own[name], read[name])
    assert own["verdict"].tolist() == read["verdict"].tolist()
    assert verdict.table.schema.field("runs").type == "int64"


def test_a_notebook_shows_the_plot_and_escapes_names_of_strangers() -> None:
    frame = FRAME.replace({"arm": {"clip": "<script>alert(1)</script>"}})
    html = clipmill.decide(frame)._repr_html_()
    root = ET.fromstring(f"<div>{html}</div>")
    assert root.find("{http://www.w3.org/2000/svg}svg") is not None
    assert "<script" not in html


OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"noise": -1.0}, ("--noise", "-1.0")),
    ({"equivalence": -0.1}, ("--equivalence", "-0.1")),
    ({"unit": {"accuracy": "points"}}, ("--unit", "accuracy=points")),
    ({"baseline": "nobody"}, ("--baseline", "nobody")),
    ({"task": "imagenet"}, ("--task", "imagenet")),
    ({"where": {"arm": "none"}}, ("--where", "arm=none")),
    ({"where": {"seed": [7, 8]}}, ("--where", "seed=7", "--where", "seed=8")),
    ({"seed": "fold"}, ("--seed", "fold")),
]


@pytest.mark.parametrize(("keywords", "words"), OPTIONS, ids=[next(iter(o)) for o, _ in OPTIONS])
def test_a_mistake_is_a_value_error_with_the_line_of_the_command(
    keywords: dict[str, Any],
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "runs.csv"
    FRAME.to_csv(path, index=False)
    line = refused(capsys, "decide", str(path), *words)
    with pytest.raises(ValueError, match=r".") as error:
        clipmill.decide(path, **keywords)
    assert str(error.value) == line
    with pytest.raises(ValueError, match=r".") as error:
        clipmill.decide(FRAME, **keywords)
    assert str(error.value).replace("pandas DataFrame", "runs.csv") == line


def test_options_do_what_they_do_for_the_command(tmp_path: Path) -> None:
    frame = FRAME.assign(lr=[1, 1, 2, 1, 1, 2], loss=1 - FRAME.accuracy)
    path = tmp_path / "runs.csv"
    frame.to_csv(path, index=False)
    keywords = {
        "value": "loss", "arm": ["arm"], "seed": "seed", "where": {"lr": [1, 2], "seed": [0, 1]},
        "lower_is_better": "loss", "unit": {"loss": "share"},
    }  # fmt: skip
    verdict = clipmill.decide(frame, **keywords)
    words = (
        "--value loss --arm arm --seed seed --where lr=1 lr=2 seed=0 seed=1 "
        "--lower-is-better loss --unit loss=share"
    )
    expected = printed("decide", str(path), *words.split())
    assert expected.partition("Read as:")[0] == verdict.text.partition("Read as:")[0]
    assert verdict.account.rows_used == 4
    with pytest.raises(ValueError, match=r"\ATrue is no name: give names"):
        clipmill.decide(frame, lower_is_better=True)  # type: ignore[arg-type]


def test_of_two_metrics_the_other_one_may_be_as_good() -> None:
    text = clipmill.decide(FRAME.assign(recall=FRAME.accuracy), baseline="raw").text
    assert "The other one may be as good as the first." in text


@pytest.mark.parametrize("option", ["--csv", "--markdown", "--latex", "--svg", "--page"])
def test_a_verdict_is_not_written_over_the_results(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "runs.csv"
    FRAME.to_csv(results, index=False)
    before = results.read_bytes()
    assert str(results) in refused(capsys, "decide", str(results), option, str(results))
    assert results.read_bytes() == before


def test_verdicts_that_lie_beside_the_results_are_left_out(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "runs.csv", index=False)
    words = ["decide", str(tmp_path), "--csv", str(tmp_path / "out.csv")]
    first, again = printed(*words), printed(*words)
    assert "(verdicts that `clipmill decide --csv` wrote)" in again
    assert first.split("Read as:")[0] == again.split("Read as:")[0]
    assert ",".join(COLUMNS).encode().startswith(VERDICTS)


# --- mix and compare ------------------------------------------------------------------------------


def test_a_blend_of_tables_in_memory_is_that_of_their_files(tmp_path: Path) -> None:
    by_path = clipmill.mix(str(RATIOS), METRICS)
    blend = clipmill.mix(pd.read_csv(RATIOS), pd.read_csv(METRICS))
    text = by_path.text.replace(str(RATIOS), "the table of shares")
    assert blend.text == text
    assert printed("mix", str(RATIOS), str(METRICS)) == f"{by_path.text}\n"
    assert blend.table.column_names == ["source", "share", "repeats"]
    assert sum(blend.table["share"].to_pylist()) == pytest.approx(1)
    assert blend.account == blend.choice.notes
    assert json.loads(blend.to_json())["shares"] == blend.table["share"].to_pylist()
    assert "| web/gallery" in blend.to_markdown()
    assert r"\begin{tabular}{lrr}" in blend.to_latex()
    ET.fromstring(blend.to_svg())
    assert blend.write(tmp_path / "found") == [
        str(tmp_path / "found" / name) for name in ("mix.json", "ratios.csv")
    ]


def test_a_limit_on_repeats_takes_numbers_as_the_command_writes_them() -> None:
    rows = {name: 10_000 for name in pd.read_csv(RATIOS).columns if "/" in name}
    first = clipmill.mix(RATIOS, METRICS, samples_seen="128k", max_repeats=8, rows=rows)
    again = clipmill.mix(
        RATIOS, METRICS, samples_seen=128_000, max_repeats=8, rows=dict.fromkeys(rows, "10k")
    )
    assert first.table.equals(again.table)
    assert max(first.table["repeats"].to_pylist()) <= 8


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"samples_seen": "0"}, "--samples-seen is '0'; it must be a whole number above 0"),
        ({"max_repeats": -1}, "--max-repeats is -1; it must be above 0"),
        ({"target": "nothing"}, "has no metric 'nothing'"),
        ({"rows": {"web/forum": "many"}}, "--rows web/forum=many is 'many'"),
    ],
)
def test_a_mistake_in_mix_is_one_line(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as error:
        clipmill.mix(RATIOS, METRICS, **keywords)
    assert message in str(error.value)
    with pytest.raises(ValueError, match="needs a second"):
        clipmill.mix(pd.read_csv(RATIOS))


# --- no way around --------------------------------------------------------------------------------


def test_the_library_writes_no_temporary_file_and_starts_no_command() -> None:
    """It is the code under the commands, so it does not import them either (`test_layout.py`)."""
    for path in (ROOT / "clipmill/library").glob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
                names |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Name | ast.Attribute):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
        forbidden = {"tempfile", "subprocess", "contextlib.redirect_stdout", "redirect_stdout",
                     "Popen", "system", "mkdtemp", "mkstemp", "StringIO", "_exit"}  # fmt: skip
        assert not names & forbidden, path
