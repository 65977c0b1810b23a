"""A pool as a page: one HTML file, or a small server.

A pool as one HTML page: what became of its links, what each rule does, a threshold to move,
images. It only reads: commit records, sidecars, score sets, views, tars. Writes nothing.

Invariants, all in `tests/pipeline/look`:

* All numbers sum to the counts of accounting: `test_survey.py`, `test_page.py`.
* A rule of the page, pasted into a recipe, keeps as many rows as the page says: `test_numbers.py`.
* A caption is text, whatever it holds: `test_page.py`.
* Another site gets nothing from the server, no request becomes a path, and a purged row is not
  given out any more: `test_server.py`.

A new section: its numbers in `survey.py`, its data in `page.py`, its part of
`templates/pool.html`, a test.
"""
