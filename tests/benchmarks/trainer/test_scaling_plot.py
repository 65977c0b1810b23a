from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.trainer.tables import check_plot, scaling_svg, write_plot
from tests.benchmarks.trainer.test_scaling import cell


def test_the_plot_has_a_line_and_a_perfect_line_for_every_series(tmp_path: Path) -> None:
    cells = [cell(1, 100.0), cell(2, 190.0), cell(4, 350.0)]
    cells += [cell(1, 50.0, dtype="a<b"), cell(2, 90.0, dtype="a<b"), cell(8, None)]
    path = str(tmp_path / "new" / "plot.svg")
    check_plot(path)
    write_plot(path, cells)
    check_plot(path)
    root = ET.fromstring(Path(path).read_text())
    space = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f"{space}polyline")
    assert [line.get("class") for line in lines] == ["perfect", "curve"] * 2
    assert len(root.findall(f"{space}circle")) == 5
    perfect, measured = (line.get("points", "").split() for line in lines[:2])
    assert perfect[0] == measured[0]
    heights = [float(point.partition(",")[2]) for point in (perfect[-1], measured[-1])]
    assert heights[0] < heights[1]  # the measured rate is lower, so further down
    assert "a<b" in "".join(root.itertext())


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no two cells that are measured"):
        scaling_svg([cell(1, 100.0), cell(2, None)])
    with pytest.raises(ValueError, match=r"must end in \.svg"):
        check_plot(str(tmp_path / "plot.png"))
    (tmp_path / "mine.svg").write_text("<svg/>")
    with pytest.raises(ValueError, match="this command did not write"):
        check_plot(str(tmp_path / "mine.svg"))
