from __future__ import annotations

from benchmarks.trainer import report as machine


def test_a_report_names_no_folder_of_a_machine() -> None:
    assert machine.without_folders("/home/a/report.json") == "report.json"
    assert machine.without_folders("read_cache=/home/a/cache/") == "read_cache=cache"
    assert machine.without_folders("--data=/home/a/blend.yaml") == "--data=blend.yaml"
    for word in ("out/report.json", "s3://pool/view", "lr=1e-3", "-n", "/", ""):
        assert machine.without_folders(word) == word
