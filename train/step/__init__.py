"""One training step: loss, accumulation, schedules, update.

It reads and writes no file.

Invariants:

* The mean of the ranks' gradients is the gradient of the loss of the global batch
  (tests/train/parallel/test_parallelism.py).
* Micro-batches and tiles change a gradient by rounding alone
  (tests/train/step/test_accumulate.py, tests/train/step/test_loss.py).
* Every micro-batch has its own images and captions, one batch ahead
  (tests/train/step/test_feed.py).
* No buffer on a GPU is read before its copy or overwritten before its last read
  (tests/train/step/test_feed.py).
* A restored state goes on to the bit (tests/train/step/test_update.py).
* Learning rates are open_clip's (tests/train/step/test_update.py).

A new optimizer: a value of `optimizer` in train/config.py, its groups and class in
`update.py`, its state in a test of resume.
"""
