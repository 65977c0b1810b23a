from __future__ import annotations

from benchmarks import latency
from clipmill.bench.report_form import Report
from clipmill.manifests import disk


def stored():
    plain = disk.read_json(latency.RESULTS)["reports"]
    return [disk.from_plain(Report, value) for value in plain]


def test_the_tables_of_the_page_are_those_of_the_results(tmp_path, monkeypatch):
    page = tmp_path / "inference.md"
    page.write_text(latency.PAGE.read_text())
    monkeypatch.setattr(latency, "PAGE", page)
    assert latency.main([]) == 0
    assert page.read_text() == latency.PAGE.read_text()
    assert page.read_text().count("```text") == 1
    for report in stored():
        for cell in report.cells:
            assert cell.figures["difference"] <= 1e-5
            assert cell.figures["cpu_s"] > 0
