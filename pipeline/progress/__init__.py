"""What a running command does: counted, shown, and stored for those who watch it.

Counted in this process, shown on a terminal or as log lines, and written for those who watch it
from elsewhere. Nothing that goes wrong here reaches the command.

Written: `POOL/progress.json` every 2 s, every 15 s in an object store, under the pool's lease. It
is no part of the pool.

Invariants:

* A screen, a file or a store that fails ends no command: `tests/pipeline/progress/test_view.py`.
* Rows are counted once, those of running tickets too; a resumed stage is not taken for a fast
  one; tables are bounded, whatever the number of hosts: `tests/pipeline/progress/test_state.py`.
* At most one log line in 10 s and stage; a terminal of any width:
  `tests/pipeline/progress/test_view.py`.

To extend: a stage says what a ticket did by a function `result -> Measure` (`Stage.measure`); a
worker that tells rows before its tickets end keeps a `WorkerReport` and has `progress()`
(`Stage`). A number that is shown is a field of `StageState`.
"""
