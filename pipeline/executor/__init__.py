"""Tickets to commits, in this process or on Ray.

Runs the tickets of a stage, in this process or on Ray, and reports how each one ended.

None. The work of a stage reads and writes files; tickets and results carry names and numbers
only.

Invariants:

* Tickets of one group start in order, and only one worker has tickets of it at a time:
  `tests/pipeline/executor/test_tickets.py`.
* Every ticket is counted in `Report.done` or `Report.failures`; a failed try is repeated once,
  after a pause, a try that was lost with its node five times:
  `tests/pipeline/executor/test_tickets.py`, `tests/pipeline/executor/test_stage.py`.
* A worker that dies is replaced; three in a row that die before they are ready end the stage,
  unless their node died: `tests/pipeline/executor/test_ray_actors.py`. Kills on a real Ray:
  `tests/test_ray_kills.py`; on several nodes: `tests/test_nodes.py`.
* Frozen dataclasses and the name of the factory cross to a worker, JSON and texts come back:
  `tests/pipeline/executor/test_tickets.py`.

A new stage is a factory at the top level of a module, `work(job) -> Callable[[Ticket], dict]`,
passed to `execute(Stage(name=..., work=..., job=...), tickets, engine=...)`. A new engine is a
function like `run_inline` in `stage.py`: it calls `Outcomes.record` for every try until that
returns True.
"""
