from __future__ import annotations

from benchmarks import latency
from manifests import disk
from train.sizing.device_fit import Report


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


def test_reports_are_put_together_and_another_file_is_refused(tmp_path, monkeypatch, capsys):
    first = stored()[0]
    for name, path in (("RESULTS", tmp_path / "all.json"), ("PAGE", tmp_path / "page.md")):
        monkeypatch.setattr(latency, name, path)
    latency.PAGE.write_text(f"a\n<!-- written by {latency.COMMAND} -->\n<!-- end -->\nb\n")
    report = Report(
        mode="infer", date="2026-01-31T12:00:00Z",
        command="clipmill bench -o /a/b/r.json",
        commit=None, options={
            "repeats": 2, "iterations": 3,
        }, machine=first.machine, cells=first.cells[:2],
    )  # fmt: skip
    disk.write_json(tmp_path / "r.json", report)
    assert latency.main([str(tmp_path / "r.json")]) == 0
    (kept,) = stored()
    assert kept.command == "clipmill bench -o r.json"
    assert (kept.cells, kept.machine) == (report.cells, report.machine)
    text = latency.PAGE.read_text()
    assert "2026-01-31" in text
    assert "2 repeats of 3 calls" in text
    assert text.endswith("<!-- end -->\nb\n")
    disk.write_json(tmp_path / "x.json", disk.to_plain(report) | {"mode": "train"})
    assert latency.main([str(tmp_path / "x.json")]) == 2
    assert "is a report of mode train; give one of infer" in capsys.readouterr().err
    assert stored() == [kept]
