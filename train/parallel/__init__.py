"""Processes, layouts, checkpoints and Ray Train.

The processes of a run, the layout of a model over them, and checkpoints that fit every layout.

`RUN/checkpoints/step-N/`: `model.safetensors` and `optimizer.pt`, or `shard-K-….safetensors`, and
last `state.json` with their sha256 (`CheckpointRecord`). The last `keep_checkpoints` are kept.

Invariants:

* A process that is killed at any write leaves a checkpoint to load; a damaged one is never used,
  and one that reads back differently costs no older one:
  `tests/train/parallel/test_checkpoint.py`.
* Gradients, losses and weights of every layout are those of one process, and a checkpoint
  continues in any layout: `tests/train/parallel/test_parallelism.py`.
* A save holds what was there when it began; one that fails leaves the one before:
  `tests/train/parallel/test_checkpoint.py`.
* Only tensors are unpickled: `tests/train/parallel/test_checkpoint.py`.

A new way to lay a model out is one `apply_…` function in `parallelism.py` that `parallelize`
calls in the right order, and a mode in `tests/support/modes.py`. A sharded run writes to a local
folder that all its ranks see, or to a store.
"""
