"""Planned shards to committed shards: guard, opt-outs, requests, downloads.

Planned shards to committed shards: the requests, and one outcome for every row.

A row goes `fetcher > guard > hosts > resolver > sites > request > body > download`.

Read: `POOL/plan/` through `pipeline/planning`. Written: shards through `pipeline/pool`.

Invariants:

* Every row ends once, in bounded time, bytes and memory, and its shard can be committed:
  `tests/pipeline/fetch/test_hostile_routes.py`.
* No socket goes to a forbidden address: `tests/pipeline/fetch/test_guard.py`. A silent name costs
  other rows nothing: `tests/pipeline/fetch/test_resolver.py`.

To extend: a new reason goes to `manifests/columns.py` first. A new fault is an entry of
`tests/support/tables/hostile_routes.json`. A new file of a site is an entry of `OTHER_FILES` in
`sites.py`, its grammar of refusal goes to `filters/optout.py`.
"""
