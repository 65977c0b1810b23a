"""The site is built without a warning, its links are right, and mistakes in it are found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import build_site

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MyST warns of Sphinx 11
def test_the_site_is_built_without_problems(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    report = "<html><a href='results.json'>beside it, and not copied</a></html>"
    (tmp_path / "demo/report.html").write_text(report)
    reports = {"demo": tmp_path / "demo", "absent": tmp_path / "absent"}
    out = tmp_path / "site"
    assert build_site.build_site(ROOT / "docs", out, reports) == []
    page = (out / "measured.html").read_text()
    assert re.search(r"<iframe[^>]+src=\"live/demo.html\"", page)
    assert "absent" not in page
    assert (out / "live/demo.html").read_text() == report
    pages = {str(path.relative_to(out)) for path in out.rglob("*.html")}
    for path in (ROOT / "docs").rglob("*.md"):
        if "tools" not in path.parts:
            assert str(path.relative_to(ROOT / "docs").with_suffix(".html")) in pages
    notebook = (out / "notebook.html").read_text()  # what its cells gave in a kernel
    assert re.search(r"Pool\(.{1,20}pool.{1,20}\): 60 rows, 60 stored", notebook)
    assert notebook.count("<svg") > 1
    assert "<svg" not in (ROOT / "docs/notebook.ipynb").read_text()
    # The reference is made of the code while the site is built.
    made = {"recipe": "patience_s", "commands": "--from-open-clip", "filters": "pdq_quality"}
    for name, word in made.items():
        text = (out / f"reference/{name}.html").read_text()
        assert word in text
        assert "<!-- reference" not in text
    # Every block of commands gets its button from a script of the site.
    for name in ("index.html", "start/img2dataset.html"):
        assert re.search(r"<script[^>]+_static/copy\.js", (out / name).read_text())
    assert (out / "_static/copy.js").read_text().count("copy-block") == 1
    assert (out / "_images/route.svg").exists()
    # The index of the search is a script, not a file that is fetched: it works without a server.
    assert re.search(r"<script[^>]+searchindex\.js", (out / "search.html").read_text())


def test_a_wrong_link_anchor_or_outside_address_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="b.html#gone">x</a><a href="c.html">x</a>'
        '<a href="https://example.org">may be linked</a><a href="#here">x</a>'
        '<script src="https://cdn.example/x.js"></script><p id="here">'
        '<link rel="stylesheet" href="//fonts.example/f.css"><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">x</h2>')
    (tmp_path / "s.css").write_text("@import 'x'")
    assert build_site.find_problems(tmp_path) == [
        "a.html loads https://cdn.example/x.js from outside",
        "a.html loads //fonts.example/f.css from outside",
        "a.html links to b.html#gone: there is no such anchor",
        "a.html links to c.html, which is not there",
        "s.css has @import",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_warning_of_the_builder_is_a_problem(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A\n\n[wrong](other.md#gone)\n")
    (problem,) = build_site.build_site(tmp_path / "docs", tmp_path / "site", {})
    assert "status 1" in problem
    assert "other" in capfd.readouterr().err


def test_a_report_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_site.main(["--report", "out/demo"]) == 2
    assert "NAME=FOLDER" in capsys.readouterr().err
