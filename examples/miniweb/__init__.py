"""A small web on loopback, for the demo and the tests.

A small web on loopback with a known truth, for the demo, ablations on photographs and the tests.

`write` leaves two WATs, `truth.parquet` (what is true of every pair), `pairs.parquet` and
`site.json`, which the server answers from. Public name: `small_web`.

Faults of a link: dead_link (404), error500, flaky503 (once), redirect, redirect_loop, html,
truncated, corrupt (no decoder reads it), empty, reset, hang (60 s), drip (4 bytes/s), thumbnail
(24 pixels), optout_header, optout_page, robots_txt. Drawn images have no corrupt, empty, reset,
hang, drip unless `fault_kinds` names them; photographs have no thumbnail, optout_page,
robots_txt.

Invariants:

* Everything follows from the settings and file names: same bytes (`test_drawn_web.py`,
  `test_photographs.py`).
* Every pair of the truth is in the WAT once (`test_drawn_web.py`, `test_photographs.py`), shares
  are exact (the same); shipped ablations run (`test_photographs.py`).
* A change of a drawn image or its caption raises DRAW_VERSION. A new fault: MINIWEB_FAULTS,
  `answers.py`.
"""

from __future__ import annotations

__all__ = []
