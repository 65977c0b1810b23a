"""Results to an HTML report. The page itself is in page.

Read: `ablation.json`, `results.json`, predictions, `run.json`, `log.jsonl`, `costs.json`, pools.
Written (by the commands): `results.json`, `report.json`, `report.html`, `report.md`.

Invariants:

* Metrics are computed again from the samples (`tests/train/reporting/test_results.py`).
* Written again from the same runs, the JSON has the same bytes
  (`tests/train/reporting/test_collect.py`).
"""
