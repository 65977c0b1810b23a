from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from clipmill.bench import bench
from clipmill.bench.report_form import read_report
from clipmill.bench.training import STAGES
from clipmill.manifests import disk
from tests.support.other_tars import Members, pack, picture

SMALL = ["--model", "test", "-b", "8", "--threads", "1", "-w", "1", "-i", "3"]


@pytest.fixture
def blend(tiny_pool: str, tmp_path: Path) -> str:
    path = tmp_path / "blend.yaml"
    path.write_text(yaml.safe_dump({"name": "b", "pools": {"p": tiny_pool}, "views": {"p/all": 1}}))
    return str(path)


def test_a_blend_is_measured_and_the_report_is_written(
    blend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "report.json"
    words = ["--mode", "loader", "--data", blend, *SMALL, "--json", "-o", str(path)]
    assert bench.main(words) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    report = read_report(path)
    assert json.loads(output) == disk.to_plain(report)
    named = ["blend.yaml" if word == blend else word for word in words[:-1]]
    assert report.command == f"clipmill bench {' '.join(named)} report.json"
    assert str(tmp_path) not in path.read_text()
    assert report.options["batches"] == [8]
    (cell,) = report.cells
    assert cell.figures["samples"] == 24
    for stage in ("decode", "resize", "read", "collate"):
        assert cell.figures[f"{stage}_ms"] is not None
    # The parts add up to the processor time of the process.
    parts = sum(cell.figures[f"{stage}_ms"] or 0 for stage in (*STAGES, "other"))
    assert parts >= 1000 * (cell.figures["cpu_s"] or 0) / 24 - 1e-6


def test_streams_are_measured_and_read_by_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members: Members = []
    for row in range(8):
        members += [(f"{row}.jpg", picture(40, 32)), (f"{row}.txt", b"text")]
    pack(tmp_path / "a.tar", members)
    assert bench.main(["--mode", "loader", "--data", str(tmp_path), *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("blend stream: 24 samples of test in batches of 8 with 1 threads")
    assert "samples/s" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "0"], "error: iterations is 0; it must be at least 1"),
        (["--read-cache", "s3://b/c"], "error: the cache folder 's3://b/c' is a URL"),
        (["--set", "lr"], "error: --set 'lr' is not KEY=VALUE"),
        (["--treads", "3"], "error: there is no option --treads, and no setting of that name; did"),
        (["--model", "ViT-B-23"], "error: there is no model 'ViT-B-23'; did you mean"),
        (["--data", "none.yaml"], "error: none.yaml does not exist"),
        (["-n", "2"], "error: mode loader has no use for --ranks"),
        (["--dtype", "fp32"], "error: mode loader has no use for --dtype"),
        (["-o", "."], "error: -o . is a folder"),
        (["--plot", "a.svg"], "error: --plot draws samples/s against ranks; give several"),
        (["--plot", "a.png"], "error: --plot is 'a.png'; it is an SVG file"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    blend: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert bench.main(["--mode", "loader", "--data", blend, *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_reports_are_shown_compared_and_written_into_a_page(
    blend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, page = (str(tmp_path / name) for name in ("a.json", "b.json", "page.md"))
    for path in (one, other):
        words = ["--mode", "loader", "--data", blend, *SMALL, "-e", "2", "-o", path]
        assert bench.main([*words, *(["--seed", "1"] if path == other else [])]) == 0
    capsys.readouterr()
    assert bench.main(["--compare", one]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("clipmill bench --mode loader")
    assert "blend b: 48 samples of test" in shown
    assert bench.main(["--compare", one, other, "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert columns[0]["reports"] == ["a.json", "b.json"]
    command = f"clipmill bench --compare {one}"
    Path(page).write_text(f"<!-- written by {command} -->\n<!-- end -->\n")
    assert bench.main(["--compare", one, "--into", page]) == 0
    assert "blend b: 48 samples" in Path(page).read_text()


@pytest.mark.slow
def test_ranks_are_processes_and_a_layout_that_is_not_possible_is_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    words = ["--mode", "train", "--model", "test", "-n", "1,2,3", "-b", "4", "--global-batch", "8"]
    words += ["--dtype", "fp32", "-i", "2", "-w", "1", "-o", str(path), "--plot", str(plot)]
    assert bench.main([*words, "--device", "cpu"]) == 3
    report = read_report(path)
    assert [(c.scaling, c.ranks) for c in report.cells if not c.measured] == [("strong", 3)]
    assert report.cells[1].figures == report.cells[4].figures
    output = capsys.readouterr()
    assert "weak scaling, test, fp32, dp, synthetic, 4 samples a rank" in output.out
    assert "error: 3 ranks in layout dp cannot share a global batch of 8" in output.err
    assert plot.read_text().startswith("<svg xmlns=")
