"""The rows of views, reading and loading.

The batches of the order of training (`train/mixture`): bytes, pixels, tokens. Files, in import
order:

Read: POOL/shards (commit records, sidecars, tars), POOL/views, POOL/scores/tokens@ID. Written:
RUN/segments of a live run. Public names:

`CaptionCoder`, `DamageCounts`, `DamagedSample`, `RunBatch`, `RunLoader`, `StageTimes`,
`copy_tokens`, `open_pool`, `token_set`, `too_many_damaged`; `Batch` and `Loader` of `own_loop.py`,
which `import clipmill` gives

Invariants:

* A batch is a function of blend, seeds and step alone (tests/train/data/test_loader.py).
* A blend that is `distinct` has no uid twice in a batch, over its views and pools
  (tests/train/data/test_view_rows.py).
* A replay draws what a live run drew, to the bit (tests/train/data/test_live_rows.py).
* One damaged image costs one sample, which is replaced and counted
  (tests/train/data/test_loader.py).
* Images of a store come in few requests, at the same time, in bounded memory, and give the same
  batches with and without a folder for parts (tests/train/data/test_read_ahead.py).
* `clipmill.Loader` gives the batches of a run, from any position and on any number of ranks
  (tests/train/data/test_own_loop.py).

To extend: a column for another purpose is read with `open_pool(path).scan`.
"""
