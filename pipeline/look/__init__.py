"""A pool as a page: one HTML file, or a small server.

A pool as one HTML page: what became of its links, what each rule does, a threshold to move,
images. It only reads.

The server is in serving, after `page_data.py`. Reads what is committed: commit records, sidecars,
score sets, views, tars. Writes nothing.

Invariants:

* All numbers sum to the counts of accounting: `tests/pipeline/look/test_view_effects.py`,
  `tests/pipeline/look/test_pool_totals.py`, `tests/pipeline/look/test_value_tables.py`,
  `tests/pipeline/look/test_sections.py`.
* A rule of the page, pasted into a recipe, keeps as many rows as the page says:
  `tests/pipeline/look/test_number_columns.py`.
* A caption is text, whatever it holds: `tests/pipeline/look/test_document.py`.

A new section: a function in `sections.py`, its line in `document.py`, its data in `page_data.py`,
a test.
"""
