"""Arms × seeds: runs, and what came out of them, collected for the verdict.

Read: pools, blends, recipes, finished runs. Written: `blends/ARM.json`,
`runs/ARM/seed-N/`, `runs/.replaced/ARM/seed-N-HASH/`, `overlap.json`, `logs/`, `history.jsonl`,
`measurements.parquet`, `results.json`, `report.json`.

Invariants:

* A finished run is reused, a stale one is moved aside and never deleted (`test_runner.py`).
* Rounds are a replay: killed or not, the same runs and verdicts (`test_rounds.py`). Scores
  without noise claim nothing; a failed run costs its seed only (`test_conclusions.py`).
* A model without seeds counts as one run (`test_models.py`). Predictions of others are put in one
  order (`test_given.py`); ranks change a result by rounding only (`test_runner.py`).
* Metrics are computed again from the samples (`test_results.py`). Written again from the same
  runs, the JSON has the same bytes (`test_collect.py`).
"""
