"""How the sources of a blend share a run: weights, chances, and which caption.

The order of training: how the sources of a blend share a run, and which row each position has.
Pure NumPy: functions of position, without files and without state.

It reads and writes no file.

Invariants:

* In every prefix of a run each source is within one sample of its share
  (tests/train/mixture/test_wheel.py).
* Draw counts of two rows of a source differ by at most 1, and no batch holds a row twice
  (tests/train/mixture/test_order.py, tests/train/mixture/test_draws.py).
* A live run draws every new row before a row a second time
  (tests/train/mixture/test_draws.py).
* An exchange keeps the source of every position and the rows of a block
  (tests/train/mixture/test_draws.py).

A key of a blend (manifests/schema/ablation.py) becomes a rule here. A change
of an order that exists bumps ORDER_VERSION in order.py, and the golden test.
"""
