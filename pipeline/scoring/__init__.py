"""Rows to score columns: models are loaded once per worker.

Rows to score columns: one decode of an image serves all filters of a pass, models are loaded once
per worker.

Reads `shards/`. Writes `scores/NAME@ID/NNNNN/SHARD.parquet` while shards are scored, then
`bundle-NNNNN.parquet` of a thousand of them in their place, then `scores/NAME@ID/scores.json`
(`ScoreSetDocument`). NAME is that of the instance. ID is a hash of the filter's own name, version,
options, weights and of the ids of the sets that it reads.

Invariants:

* Columns are aligned with the sidecar; a bad row costs one value:
  `tests/pipeline/scoring/test_scorer.py`.
* A filter that reads others runs after them: `tests/pipeline/scoring/test_pool_sets.py`.
* A mistake of a filter ends the shard with one line:
  `tests/pipeline/scoring/test_score_worker.py`.
* What is scored is not scored again; options that depend on the machine are fixed before the ID
  is made: `tests/pipeline/scoring/test_scorer.py`.
* A kill while a bundle is made costs no score, and a pool without a stored row names reasons and
  a row: `tests/pipeline/scoring/test_score_sets.py`.

To extend: a new filter is a file in `filters/`; nothing changes here.
"""
