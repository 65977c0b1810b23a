"""Columns and rules to a view.

Columns and rules become a view: for each row, whether it is kept, or the first rule that failed.
Files, in import order:

The SQL of rules is in expressions, after `connections.py`; what rules and views amount to is in
outcomes, after `choose.py`.

Reads what is committed (`manifests/commits`), sidecars, `scores/NAME@ID/`. Writes
`views/NAME/bundle-NNNNN.parquet` (the masks of a thousand shards), `rules.json` (what each of
several rules rejects, and alone), `shards-HASH.parquet` (the rows kept of each shard), then
`views/NAME.json` (`ViewDocument`).

Public names: `check_views`, `choose_views`, `random_like`, `hash_view`, `is_selected`,
`funnel_lines`, `columns_of`, `connect`, `list_columns`, `column_lines`, `rule_text`,
`rule_outcomes`, `RuleOutcome`, `with_derived`, `views_not_in`, `differing_views`,
`unlisted_views_line`, `selected_view`, `write_selected_view`, `map_units`

Invariants:

* A row with NULL in a column that a rule reads fails as `NAME:missing`, unless the rule has the
  column inside IS NULL, IS NOT NULL or coalesce: `tests/pipeline/views/test_choose.py` (table
  `NULLS`).
* NaN is missing too, in columns and where a rule computes it: table `NANS` there,
  `expressions/test_computed_numbers.py`. DuckDB evaluates every rule, and its answers are those of
  a reference in Python: `expressions/test_answers.py`.
* Rows depend on no shards, parts or threads: `test_row_tests.py` there. NAME.json never describes
  other masks; scores of other rows are refused: `tests/pipeline/views/test_view_files.py`.
* The same rows give the same hash: `outcomes/test_view_hash.py`.

A derived column: `DERIVED` in `rules.py`, a line in `available_columns.py`. A new rule: a field
of `Rule` and of `Step`, its plain form in `rules.py`, its branch in `row_tests.row_test`.
"""
