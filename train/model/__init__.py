"""The CLIP model: architectures, attention, towers, patch dropout, FLOPs.

It reads and writes no file.

Invariants:

* Packed and grouped captions have the features and gradients of padded ones
  (tests/train/model/test_attention.py).
* Patch dropout depends on seed, step and position alone, not on micro-batches, ranks or
  recomputation (tests/train/model/test_knobs.py).
* The start has open_clip's distributions (tests/train/model/test_clip.py).
* The groups of a locked tower are open_clip's (tests/train/model/test_clip.py).
* The counted operations are those that torch counts (tests/train/model/test_memory.py).
* The memory of a step is what torch allocates, within 10 % (tests/train/model/test_memory.py).

A new size is a line in `architecture.py` and in tests/train/model/test_clip.py.
"""
