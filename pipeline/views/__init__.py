"""Columns and rules to a view.

Columns and rules become a view: for each row, whether it is kept, or the first rule that failed.

Reads what is committed (`manifests/commits`), sidecars, `scores/NAME@ID/`. Writes
`views/NAME/bundle-NNNNN.parquet` (the masks of a thousand shards), `rules.json` (what each of
several rules rejects, and alone), `shards-HASH.parquet` (the rows kept of each shard), then
`views/NAME.json` (`ViewDocument`).

Invariants, all in `tests/pipeline/views`:

* A row with NULL in a column that a rule reads fails as `NAME:missing`, unless the rule has the
  column inside IS NULL, IS NOT NULL or coalesce: `test_choose.py` (table `NULLS`).
* NaN is missing too, in columns and where a rule computes it: table `NANS` there. DuckDB evaluates
  every rule, and its answers are those of a reference in Python: `test_answers.py`.
* A rule is not evaluated for rows that are not stored, nor for those that an earlier rule rejects
  where it fails on one of them; rows depend on no shards, parts or threads: `test_choose.py`.
* A rule of any depth and length ends with a tree or one line: `test_rules.py`.
* NAME.json never describes other masks; scores of other rows are refused: `test_view_files.py`.
* The same rows give the same hash: `test_view_hash.py`.

A derived column: `DERIVED` in `rules.py`. A new rule: a field of `Rule` and of `Step`, its plain
form in `rules.py`, its branch in `choose.row_test`.
"""
